//! Transactions: by type over time, the slowest ones, and their applications.

use super::{Page, Safe, short, timeline::Course};
use crate::report::{Report, ReturnCount};

/// Types with charts.
const CHARTED: usize = 4;

impl Page {
    pub(super) fn transactions(&mut self, report: &Report) {
        if report.slowest_transactions.is_empty() {
            return;
        }
        self.transaction_types(report);
        self.push("<h2>Slowest transactions</h2>");
        let rows: Vec<Vec<String>> = report
            .slowest_transactions
            .iter()
            .enumerate()
            .map(|(index, row)| {
                let at = |field: &str| format!("/slowest_transactions/{index}/{field}");
                vec![
                    self.duration(&at("duration_ns")),
                    self.integer(&at("type")),
                    self.integer(&at("result")),
                    Safe(&row.time).to_string(),
                    format!("<code>{}</code>", Safe(&short(&row.run))),
                    format!("<code>{}</code>", Safe(&row.id)),
                ]
            })
            .collect();
        self.table(&["Duration", "Type", "Result", "Time", "Run", "Transaction"], 6, &rows);
        self.transaction_groups(report);
    }

    fn transaction_types(&mut self, report: &Report) {
        if report.transaction_types.is_empty() {
            return;
        }
        self.push("<h2>Transactions by type</h2>");
        let is_of_b = |run: &str| report.sides.get(1).is_some_and(|runs| runs.iter().any(|known| known.id == run));
        for (index, of) in report.transaction_types.iter().enumerate().take(CHARTED) {
            let kind = self.integer(&format!("/transaction_types/{index}/type"));
            self.push(format_args!("<h3>Type {kind}</h3><div class=\"charts\">"));
            let side = |run: &str| (report.sides.len() > 1).then(|| usize::from(is_of_b(run)));
            let courses: Vec<Course<'_>> =
                of.runs.iter().map(|run| Course { side: side(&run.run), periods: &run.timeline }).collect();
            self.courses(&courses);
            self.push("</div>");
        }
        let rows: Vec<Vec<String>> = report
            .transaction_types
            .iter()
            .enumerate()
            .map(|(index, of)| {
                let pointer = format!("/transaction_types/{index}");
                let mut row = vec![
                    self.integer(&format!("{pointer}/type")),
                    self.results(&format!("{pointer}/returns"), &of.statistics.returns),
                ];
                row.extend(self.statistics(&pointer, &of.statistics).into_iter().take(8));
                row
            })
            .collect();
        let header = ["Type", "Results", "Applications", "Min", "p50", "p90", "p99", "p99.9", "Max", "Mean"];
        self.table(&header, 2, &rows);
    }

    /// Results with their counts.
    fn results(&self, pointer: &str, results: &[ReturnCount]) -> String {
        let result = |(index, _)| {
            let at = |field: &str| format!("{pointer}/{index}/{field}");
            format!("{} × {}", self.integer(&at("code")), self.count(&at("count")))
        };
        results.iter().enumerate().map(result).collect::<Vec<_>>().join(", ")
    }

    fn transaction_groups(&mut self, report: &Report) {
        if report.transaction_groups.is_empty() {
            return;
        }
        self.push("<h2>Applications of the slowest transactions</h2>");
        let rows: Vec<Vec<String>> = report
            .transaction_groups
            .iter()
            .enumerate()
            .map(|(index, group)| {
                let at = |field: &str| format!("/transaction_groups/{index}/{field}");
                vec![
                    format!("<code>{}</code>", Safe(&group.id)),
                    self.integer(&at("type")),
                    self.results(&at("results"), &group.results),
                    Safe(&group.first).to_string(),
                    Safe(&group.last).to_string(),
                    self.count(&at("applications")),
                    self.duration(&at("min_ns")),
                    self.duration(&at("max_ns")),
                    self.duration(&at("sum_ns")),
                ]
            })
            .collect();
        let header =
            ["Transaction", "Type", "Results", "First", "Last", "Applications", "Fastest", "Slowest", "Together"];
        self.table(&header, 5, &rows);
    }
}
