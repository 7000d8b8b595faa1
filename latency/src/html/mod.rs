//! The report as one page: no scripts, no files beside it.
//!
//! Each number of the report stands in a `<data>` element with its exact value and the JSON pointer of the field that it shows.

mod chart;
mod function;
mod timeline;
mod transactions;

use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::format;
use crate::report::{Report, RunSummary};
use crate::verdict::{Comparison, FunctionComparison};

/// Text of others, escaped for HTML text and attributes. Control characters become U+FFFD.
struct Safe<'a>(&'a str);

impl fmt::Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other if chainscope_hygiene::is_printable(other) => f.write_char(other)?,
                _ => f.write_char(char::REPLACEMENT_CHARACTER)?,
            }
        }
        Ok(())
    }
}

/// Writes the page; numbers are read from the JSON of the report, by pointer.
struct Page {
    json: Value,
    html: String,
}

/// The page.
#[must_use]
pub fn render(report: &Report) -> String {
    let json = serde_json::to_value(report).unwrap_or_default();
    let mut page = Page { json, html: String::new() };
    page.head(report);
    if let Some(comparison) = &report.comparison {
        page.summary(comparison);
    }
    for difference in &report.differences {
        page.push(format_args!("<p class=\"v inconclusive\">{}.</p>", Safe(&difference.describe())));
    }
    page.functions(report);
    page.histories(report);
    page.transactions(report);
    page.runs(report);
    page.push("</main></body></html>\n");
    page.html
}

impl Page {
    fn push(&mut self, text: impl fmt::Display) {
        // Writing to a string does not fail.
        let _ = write!(self.html, "{text}");
    }

    /// The number at a pointer, shown by `show`; a dash if there is none.
    fn number(&self, pointer: &str, show: impl Fn(&Value) -> Option<String>) -> String {
        let value = self.json.pointer(pointer).unwrap_or(&Value::Null);
        show(value).map_or_else(
            || "<span class=\"muted\">–</span>".to_owned(),
            |shown| {
                format!("<data value=\"{value}\" data-pointer=\"{pointer}\">{shown}</data>", pointer = Safe(pointer))
            },
        )
    }

    fn duration(&self, pointer: &str) -> String {
        self.number(pointer, |value| {
            value.as_u64().or_else(|| value.as_f64().map(|v| v.round() as u64)).map(format::duration)
        })
    }

    fn count(&self, pointer: &str) -> String {
        self.number(pointer, |value| value.as_u64().map(format::count))
    }

    fn integer(&self, pointer: &str) -> String {
        self.number(pointer, |value| value.as_i64().map(|number| number.to_string()))
    }

    fn change(&self, pointer: &str) -> String {
        self.number(pointer, |value| value.as_f64().map(format::change))
    }

    fn table(&mut self, header: &[&str], left: usize, rows: &[Vec<String>]) {
        let class = |column: usize| if column < left { "" } else { " class=\"n\"" };
        self.push("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
        for (column, name) in header.iter().enumerate() {
            self.push(format_args!("<th scope=\"col\"{}>{name}</th>", class(column)));
        }
        self.push("</tr></thead><tbody>");
        for row in rows {
            self.push("<tr>");
            for (column, cell) in row.iter().enumerate() {
                self.push(format_args!("<td{}>{cell}</td>", class(column)));
            }
            self.push("</tr>");
        }
        self.push("</tbody></table></div>");
    }

    fn head(&mut self, report: &Report) {
        let title =
            if report.comparison.is_some() { "Latency: two sets of runs compared" } else { "Latency of functions" };
        self.push(format_args!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <style>{}</style></head><body><header><h1>{title}</h1>",
            include_str!("style.css")
        ));
        for (runs, class) in report.sides.iter().zip(["a", "b"]) {
            let name = if report.sides.len() > 1 {
                format!("<b class=\"{class}\">{}</b> ", class.to_uppercase())
            } else {
                String::new()
            };
            let described: Vec<String> = runs.iter().take(4).map(describe).collect();
            let more = if runs.len() > 4 { format!(" and {} more", runs.len() - 4) } else { String::new() };
            self.push(format_args!("<p>{name}{}{more}</p>", described.join("; ")));
        }
        self.push("</header><main>");
    }

    fn summary(&mut self, comparison: &Comparison) {
        let verdict = comparison.verdict.as_str();
        self.push(format_args!(
            "<h2>Verdict: <span class=\"v {verdict}\">{verdict}</span></h2>\
             <p class=\"muted\">Change from A to B beyond a margin of {} %; the chance of any wrong verdict is {} %. Intervals \
             are those of each quantile alone. Most significant change first.</p>",
            self.number("/comparison/margin_percent", |value| value.as_f64().map(|margin| margin.to_string())),
            comparison.alpha * 100.0,
        ));
        let rows: Vec<Vec<String>> = comparison
            .functions
            .iter()
            .enumerate()
            .map(|(index, function)| {
                let mut row = vec![
                    format!("<span class=\"v {0}\">{0}</span>", function.verdict.as_str()),
                    format!("<a href=\"#f{index}\">{}</a>", Safe(&function.function)),
                ];
                row.extend((0..function.quantiles.len()).map(|quantile| {
                    let at = |field: &str| {
                        self.change(&format!("/comparison/functions/{index}/quantiles/{quantile}/{field}"))
                    };
                    match function.quantiles[quantile].change_percent {
                        Some(_) => format!(
                            "{} <span class=\"muted\">[{}, {}]</span>",
                            at("change_percent"),
                            at("low_percent"),
                            at("high_percent")
                        ),
                        None => at("change_percent"),
                    }
                }));
                row.push(self.reason(index, function));
                row
            })
            .collect();
        self.table(&["Verdict", "Function", "p50", "p90", "p99", ""], 6, &rows);
    }

    fn reason(&self, index: usize, function: &FunctionComparison) -> String {
        let Some(reason) = function.reason else { return String::new() };
        let planned = function.record_seconds.map(|_| {
            let pointer = format!("/comparison/functions/{index}/record_seconds");
            format!("; {} a side would do", self.number(&pointer, |value| value.as_u64().map(format::seconds)))
        });
        format!("<span class=\"muted\">{}{}</span>", reason.describe(), planned.unwrap_or_default())
    }

    fn histories(&mut self, report: &Report) {
        let mut rows = Vec::new();
        for (index, history) in report.histories.iter().enumerate() {
            for (place, change) in history.changes.iter().enumerate() {
                let at = |field: &str| format!("/histories/{index}/changes/{place}/{field}");
                rows.push(vec![
                    Safe(&history.function).to_string(),
                    format!("<code>{}</code>", Safe(&short(&change.run))),
                    format!("<code>{}</code>", Safe(&change.commit.as_deref().map(short).unwrap_or_default())),
                    self.change(&at("change_percent")),
                    self.number(&at("p_value"), |value| value.as_f64().map(|p| format!("{p:.4}"))),
                ]);
            }
        }
        if !rows.is_empty() {
            self.push("<h2>Lasting changes of the median</h2>");
            self.table(&["Function", "Since run", "Commit", "Change", "Chance"], 3, &rows);
        }
    }

    fn runs(&mut self, report: &Report) {
        self.push("<h2>Runs</h2>");
        let mut rows = Vec::new();
        for (side, runs) in report.sides.iter().enumerate() {
            for (index, run) in runs.iter().enumerate() {
                let at = |field: &str| format!("/sides/{side}/{index}/{field}");
                let side_name = if report.sides.len() > 1 { ["A", "B"][side.min(1)] } else { "" };
                rows.push(vec![
                    format!("{side_name} <code>{}</code>", Safe(&run.id)),
                    Safe(&run.start).to_string(),
                    Safe(run.end.as_deref().unwrap_or("–")).to_string(),
                    Safe(&run.tags.join(", ")).to_string(),
                    format!("<code>{}</code>", Safe(run.commit.as_deref().unwrap_or_default())),
                    Safe(&run.version_or_build()).to_string(),
                    Safe(run.node.as_deref().unwrap_or_default()).to_string(),
                    self.integer(&at("pid")),
                    format!("<code>{}</code>", Safe(&run.executable)),
                    format!("{} {}", Safe(&run.host), Safe(&run.kernel)),
                    self.number(&at("block_seconds"), |value| value.as_f64().map(|seconds| format!("{seconds} s"))),
                    self.number(&at("resolution_percent"), |value| value.as_f64().map(|error| format!("{error} %"))),
                ]);
            }
        }
        let header = [
            "Run",
            "Start",
            "End",
            "Tags",
            "Commit",
            "Version",
            "Node",
            "PID",
            "Executable",
            "Host, kernel",
            "Block",
            "Resolution",
        ];
        self.table(&header, 12, &rows);
    }
}

fn short(text: &str) -> String {
    text.chars().take(8).collect()
}

/// A run in a few words.
fn describe(run: &RunSummary) -> String {
    let mut parts = Vec::new();
    if !run.tags.is_empty() {
        parts.push(run.tags.join(", "));
    }
    parts.extend(run.version.clone());
    parts.extend(run.commit.as_deref().map(|commit| format!("commit {}", short(commit))));
    parts.extend(run.node.as_deref().map(|node| format!("node {node}")));
    parts.push(run.start.chars().take(16).collect());
    Safe(&parts.join(" · ")).to_string()
}
