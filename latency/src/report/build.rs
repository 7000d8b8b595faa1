//! Reports computed from runs.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BucketCount, FunctionReport, GroupStatistics, Report, RunStatistics, RunSummary, SideDifference, SideReport,
    Statistics, return_counts, timeline, transactions,
};
use crate::{
    Histogram,
    model::{Block, Run, RunInfo},
    verdict::{Comparison, Options, Side, change_points, compare},
};

/// Blocks that are summed up.
fn statistics<'a>(blocks: impl Iterator<Item = &'a Block>) -> (Statistics, Histogram) {
    let mut histogram = Histogram::default();
    let mut returns = BTreeMap::<i64, u64>::new();
    let mut lost = BTreeMap::<String, u64>::new();
    let mut unended = 0_u64;
    for block in blocks {
        histogram.merge(&block.histogram);
        unended = unended.saturating_add(block.unended);
        for (&code, count) in &block.returns {
            let held = returns.entry(code).or_default();
            *held = held.saturating_add(*count);
        }
        for (reason, count) in &block.lost {
            let held = lost.entry(reason.as_str().to_owned()).or_default();
            *held = held.saturating_add(*count);
        }
    }
    let statistics = Statistics::new(&histogram, return_counts(returns), unended, lost);
    (statistics, histogram)
}

/// Blocks of a function by name.
fn blocks<'a>(run: &'a Run, function: &str) -> impl Iterator<Item = &'a Block> + Clone {
    let index = run.functions.iter().position(|known| known.name == function);
    index.into_iter().flat_map(|index| run.blocks_of(index))
}

fn function_report(sides: &[&[Run]], name: &str) -> FunctionReport {
    let all = || sides.iter().copied().flatten();
    let known = all().flat_map(|run| &run.functions).rfind(|function| function.name == name);
    let side_report = |runs: &&[Run]| {
        let (statistics, histogram) = statistics(runs.iter().flat_map(|run| blocks(run, name)));
        let bucket =
            |held: crate::Bucket| BucketCount { least_ns: held.least, greatest_ns: held.greatest, count: held.count };
        SideReport { statistics, histogram: histogram.buckets().map(bucket).collect() }
    };
    let timed: Vec<&Run> = all().filter(|run| run.functions.iter().any(|function| function.name == name)).collect();
    let runs = timed.iter().map(|run| RunStatistics {
        run: run.info.id.to_string(),
        tags: run.info.tags.iter().cloned().collect(),
        commit: run.info.commit.clone(),
        statistics: statistics(blocks(run, name)).0,
        timeline: timeline::of_blocks(run, timed.len(), blocks(run, name)),
    });
    FunctionReport {
        function: name.to_owned(),
        entry: known.map(|known| known.entry.pattern.clone()).unwrap_or_default(),
        exit: known.map(|known| known.exit.pattern.clone()).unwrap_or_default(),
        sides: sides.iter().map(side_report).collect(),
        groups: groups(&timed, name),
        runs: runs.collect(),
    }
}

/// A function in the runs of each tag and of each commit that have several, but not all.
fn groups(runs: &[&Run], name: &str) -> Vec<GroupStatistics> {
    let mut groups = BTreeMap::<(Option<&str>, Option<&str>), Vec<&Run>>::new();
    for run in runs {
        let tags = run.info.tags.iter().map(|tag| (Some(tag.as_str()), None));
        let commits = run.info.commit.iter().map(|commit| (None, Some(commit.as_str())));
        tags.chain(commits).for_each(|key| groups.entry(key).or_default().push(run));
    }
    groups.retain(|_, group| group.len() > 1 && group.len() < runs.len());
    let group = |((tag, commit), group): ((Option<&str>, Option<&str>), Vec<&Run>)| GroupStatistics {
        tag: tag.map(str::to_owned),
        commit: commit.map(str::to_owned),
        run_count: group.len(),
        statistics: statistics(group.iter().flat_map(|run| blocks(run, name))).0,
    };
    groups.into_iter().map(group).collect()
}

/// Hosts and kernels, if they are not the same on both sides.
fn differences(a: &[Run], b: &[Run]) -> Vec<SideDifference> {
    let of = |what: &str, value: fn(&RunInfo) -> &String| {
        let values = |runs: &[Run]| runs.iter().map(|run| value(&run.info).clone()).collect::<BTreeSet<String>>();
        let (a, b) = (values(a), values(b));
        let difference =
            || SideDifference { what: what.to_owned(), a: a.iter().cloned().collect(), b: b.iter().cloned().collect() };
        // Imported runs do not know.
        (a != b && !a.contains("") && !b.contains("")).then(difference)
    };
    [of("host", |info| &info.host), of("kernel", |info| &info.kernel)].into_iter().flatten().collect()
}

impl Report {
    /// Report of runs in order of time.
    #[must_use]
    pub fn of_runs(runs: &[Run], options: &Options) -> Self {
        let mut report = Self::new(&[runs], None);
        report.functions.sort_by_key(|function| std::cmp::Reverse(function.sides[0].statistics.sum_ns));
        report.histories = change_points(runs, options.margin);
        report.histories.retain(|history| !history.changes.is_empty());
        report
    }

    /// Report of what changed from `a` to `b`.
    #[must_use]
    pub fn of_comparison(a: &[Run], b: &[Run], options: &Options) -> Self {
        let comparison = compare(Side { runs: a }, Side { runs: b }, options);
        let mut report = Self::new(&[a, b], None);
        let rank = |name: &str| comparison.functions.iter().position(|function| function.function == name);
        report.functions.sort_by_key(|function| rank(&function.function));
        report.comparison = Some(comparison);
        report.differences = differences(a, b);
        report
    }

    fn new(sides: &[&[Run]], comparison: Option<Comparison>) -> Self {
        let runs = || sides.iter().copied().flatten();
        let mut names: Vec<&String> = runs().flat_map(|run| &run.functions).map(|function| &function.name).collect();
        names.sort_unstable();
        names.dedup();
        let slowest = transactions::slowest(runs());
        Self {
            sides: sides.iter().map(|runs| runs.iter().map(|run| RunSummary::from(&run.info)).collect()).collect(),
            comparison,
            differences: Vec::new(),
            functions: names.into_iter().map(|name| function_report(sides, name)).collect(),
            histories: Vec::new(),
            transaction_groups: transactions::groups(runs(), &slowest),
            slowest_transactions: slowest,
            transaction_types: transactions::types(&runs().collect::<Vec<_>>()),
        }
    }
}
