//! The section of a function: charts and tables.

use super::{
    Page, Safe, chart, short,
    timeline::{self, Course},
};
use crate::report::{FunctionReport, Report, Statistics};
use crate::verdict::FunctionComparison;

/// Functions whose sections are unfolded.
const UNFOLDED: usize = 12;

/// Functions with charts: a page of more would be too large for a browser.
const CHARTED: usize = 40;

impl Page {
    pub(super) fn statistics(&self, pointer: &str, statistics: &Statistics) -> Vec<String> {
        let lost: Vec<String> = statistics
            .lost
            .keys()
            .map(|reason| format!("{} {}", self.count(&format!("{pointer}/lost/{reason}")), Safe(reason)))
            .collect();
        let at = |field: &str| self.duration(&format!("{pointer}/{field}"));
        vec![
            self.count(&format!("{pointer}/spans")),
            at("min_ns"),
            at("p50_ns"),
            at("p90_ns"),
            at("p99_ns"),
            at("p999_ns"),
            at("max_ns"),
            at("mean_ns"),
            self.count(&format!("{pointer}/unended")),
            if lost.is_empty() { "0".to_owned() } else { lost.join(", ") },
        ]
    }

    pub(super) fn figure(&mut self, chart: Option<String>, caption: &str) {
        if let Some(chart) = chart {
            self.push(format_args!("<figure>{chart}<figcaption>{caption}</figcaption></figure>"));
        }
    }

    /// A section of each function, those beyond the first ones to be unfolded.
    pub(super) fn functions(&mut self, report: &Report) {
        self.push("<h2>Functions</h2>");
        let folded = report.functions.len().saturating_sub(UNFOLDED);
        if folded > 0 {
            self.push(format_args!("<p class=\"muted\">The others, after the first {UNFOLDED}, unfold on a click"));
            if report.functions.len() > CHARTED {
                self.push(format_args!("; those after the first {CHARTED} have tables and no charts"));
            }
            self.push(".</p>");
        }
        for (index, function) in report.functions.iter().enumerate() {
            self.function(report, index, function);
        }
    }

    fn function(&mut self, report: &Report, index: usize, function: &FunctionReport) {
        let judged = report.comparison.as_ref().and_then(|comparison| comparison.functions.get(index));
        let open = if index < UNFOLDED { " open" } else { "" };
        self.push(format_args!(
            "<details class=\"f\" id=\"f{index}\"{open}><summary><h3>{}</h3>",
            Safe(&function.function)
        ));
        if let Some(judged) = judged {
            self.push(format_args!(" <span class=\"v {0}\">{0}</span>", judged.verdict.as_str()));
        }
        self.push("</summary>");
        if !function.entry.is_empty() {
            self.push(format_args!(
                "<p class=\"muted\"><code>{}</code> → <code>{}</code></p>",
                Safe(&function.entry),
                Safe(&function.exit)
            ));
        }
        if index < CHARTED {
            self.charts(report, judged, function);
        }
        self.function_tables(index, function);
        self.push("</details>");
    }

    fn charts(&mut self, report: &Report, judged: Option<&FunctionComparison>, function: &FunctionReport) {
        self.push("<div class=\"charts\">");
        let two = function.sides.len() > 1;
        let is_of_b = |run: &str| report.sides.get(1).is_some_and(|runs| runs.iter().any(|known| known.id == run));
        let course: Vec<Course<'_>> = function
            .runs
            .iter()
            .map(|run| Course { side: two.then(|| usize::from(is_of_b(&run.run))), periods: &run.timeline })
            .collect();
        self.courses(&course);
        let legend = if two { "Durations: <b class=\"a\">A</b> and <b class=\"b\">B</b>" } else { "Durations" };
        self.figure(chart::histograms(function), legend);
        if let (Some(judged), Some(comparison)) = (judged, &report.comparison) {
            let caption = "Change from A to B at each quantile with its interval; the green lines are the margin";
            self.figure(chart::shift(&judged.shift, comparison.margin_percent), caption);
        }
        if function.runs.len() > 1 {
            let caption = "<b class=\"a\">p50</b>, <b class=\"b\">p90</b> and <b class=\"c\">p99</b> of each run";
            self.figure(chart::percentiles(function), caption);
        }
        self.push("</div>");
    }

    /// What was measured, counted and returned in the course of runs.
    pub(super) fn courses(&mut self, courses: &[Course<'_>]) {
        let caption = match courses.iter().any(|course| course.side.is_some()) {
            true => "Over time, <b class=\"a\">A</b> and <b class=\"b\">B</b>: p50 (thick), mean (pale), p99 (thin)",
            false => "Over time: <b class=\"a\">p50</b>, <b class=\"b\">mean</b> and <b class=\"c\">p99</b>",
        };
        self.figure(timeline::durations(courses), caption);
        self.figure(timeline::counts(courses), "Over time: spans a second");
        let codes = timeline::frequent_codes(courses);
        let names = codes.iter().zip(["a", "b", "c"]).map(|(code, class)| format!("<b class=\"{class}\">{code}</b>"));
        let caption = format!("Over time: share of the return codes {}", names.collect::<Vec<_>>().join(", "));
        self.figure(timeline::codes(courses, &codes), &caption);
    }

    fn function_tables(&mut self, index: usize, function: &FunctionReport) {
        let header = ["Spans", "Min", "p50", "p90", "p99", "p99.9", "Max", "Mean", "Unended", "Lost"];
        let names = if function.sides.len() > 1 { ["All of A", "All of B"] } else { ["All", ""] };
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (side, name) in names.iter().enumerate().take(function.sides.len()) {
            let mut row = vec![format!("<b>{name}</b>"), String::new(), String::new()];
            row.extend(self.statistics(&format!("/functions/{index}/sides/{side}"), &function.sides[side].statistics));
            rows.push(row);
        }
        for (number, group) in function.groups.iter().enumerate() {
            let pointer = format!("/functions/{index}/groups/{number}");
            let commit = group.commit.as_deref().map(short).unwrap_or_default();
            let mut row = vec![
                format!("{} runs", self.count(&format!("{pointer}/run_count"))),
                Safe(group.tag.as_deref().unwrap_or_default()).to_string(),
                format!("<code>{}</code>", Safe(&commit)),
            ];
            row.extend(self.statistics(&pointer, &group.statistics));
            rows.push(row);
        }
        for (number, run) in function.runs.iter().enumerate().filter(|_| function.runs.len() > 1) {
            let commit = run.commit.as_deref().map(short).unwrap_or_default();
            let mut row = vec![
                format!("{} <code>{}</code>", number + 1, Safe(&short(&run.run))),
                Safe(&run.tags.join(", ")).to_string(),
                format!("<code>{}</code>", Safe(&commit)),
            ];
            row.extend(self.statistics(&format!("/functions/{index}/runs/{number}"), &run.statistics));
            rows.push(row);
        }
        let columns: Vec<&str> = ["Run", "Tags", "Commit"].into_iter().chain(header).collect();
        self.table(&columns, 3, &rows);
        self.returns(index, function);
    }

    /// Return codes of all sides, side by side.
    fn returns(&mut self, index: usize, function: &FunctionReport) {
        let mut codes = std::collections::BTreeMap::<i64, Vec<(usize, usize)>>::new();
        for (side, report) in function.sides.iter().enumerate() {
            for (place, held) in report.statistics.returns.iter().enumerate() {
                codes.entry(held.code).or_default().push((side, place));
            }
        }
        if codes.is_empty() {
            return;
        }
        let rows: Vec<Vec<String>> = codes
            .values()
            .map(|places| {
                let pointer = |(side, place): (usize, usize), field: &str| {
                    format!("/functions/{index}/sides/{side}/returns/{place}/{field}")
                };
                let mut row =
                    vec![places.first().map(|&place| self.integer(&pointer(place, "code"))).unwrap_or_default()];
                row.extend((0..function.sides.len()).map(|side| {
                    let held = places.iter().find(|(held, _)| *held == side);
                    held.map_or_else(|| "0".to_owned(), |&place| self.count(&pointer(place, "count")))
                }));
                row
            })
            .collect();
        let header = ["Return code", if function.sides.len() > 1 { "A" } else { "Count" }, "B"];
        self.push("<p></p>");
        self.table(&header[..=function.sides.len()], 1, &rows);
    }
}
