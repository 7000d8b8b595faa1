//! Runs of a node, read from the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_latency::{Run, RunId, RunInfo, Time, record::Runs, report::RunSummary, select};
use chainscope_proto::v1::{LatencyBlock, Record, record::Kind};
use chainscope_store::{Budget, Error as StoreError, LatencyQuery, Store};

use super::{
    super::{code::Code, problem::Problem},
    params::{CompareQuery, Period, ReportQuery, RunsQuery},
};

/// Most blocks of functions of a report or comparison: what it takes to hold and compute one is bounded.
const MAX_BLOCKS: usize = 200_000;
/// Most functions of all runs of a report or comparison, each of them in each run.
const MAX_FUNCTIONS: usize = 200_000;

/// Runs of a node, by start.
pub(super) fn list(
    store: &Store,
    node: &str,
    query: &RunsQuery,
    budget: &Budget,
) -> Result<Vec<RunSummary>, StoreError> {
    let (from, to) = query.period;
    let mut infos = infos(store, node, budget)?;
    infos.retain(|(info, _)| query.filter.matches(info) && to.is_none_or(|to| info.start.0 < to));
    if let Some(from) = from {
        let ends = ends(store, node, &infos, budget)?;
        infos.retain(|(info, last)| info.end.or(ends.get(&info.id).copied()).unwrap_or(*last).0 >= from);
    }
    let surplus = infos.len().saturating_sub(query.limit);
    Ok(infos[surplus..].iter().map(|(info, _)| RunSummary::from(info)).collect())
}

/// The runs of a report; all if none is named.
pub(super) fn chosen(
    store: &Store,
    node: &str,
    query: &ReportQuery,
    budget: &Budget,
) -> Result<Result<Vec<Run>, Problem>, StoreError> {
    let known = known(store, node, budget)?;
    let chosen = match selected(&known, "run", &query.runs) {
        Err(problem) => return Ok(Err(problem)),
        Ok(_) if query.runs.is_empty() => known.iter().map(|info| info.id).collect(),
        Ok(chosen) => chosen,
    };
    read(store, node, &chosen, query.period, budget)
}

/// The runs of both sides of a comparison.
pub(super) fn sides(
    store: &Store,
    node: &str,
    query: &CompareQuery,
    budget: &Budget,
) -> Result<Result<[Vec<Run>; 2], Problem>, StoreError> {
    let known = known(store, node, budget)?;
    let sides = selected(&known, "a", &query.a).and_then(|a| Ok((a, selected(&known, "b", &query.b)?)));
    let (a, b) = match sides {
        Err(problem) => return Ok(Err(problem)),
        Ok(sides) => sides,
    };
    if let Some(both) = a.intersection(&b).next() {
        return Ok(Err(Problem::parameter("b", format!("run {both} is on both sides"))));
    }
    let both: BTreeSet<RunId> = a.union(&b).copied().collect();
    Ok(read(store, node, &both, query.period, budget)?.map(|runs| {
        let (a, b): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(|run| a.contains(&run.info.id));
        [a, b]
    }))
}

/// The runs that selectors mean, any of them.
pub(super) fn named(
    store: &Store,
    node: &str,
    parameter: &str,
    selectors: &[String],
    budget: &Budget,
) -> Result<Result<BTreeSet<RunId>, Problem>, StoreError> {
    Ok(selected(&known(store, node, budget)?, parameter, selectors))
}

/// What is known of the runs, by start.
fn known(store: &Store, node: &str, budget: &Budget) -> Result<Vec<RunInfo>, StoreError> {
    Ok(infos(store, node, budget)?.into_iter().map(|(info, _)| info).collect())
}

/// Runs by start, each with the end of the newest block that describes it.
fn infos(store: &Store, node: &str, budget: &Budget) -> Result<Vec<(RunInfo, Time)>, StoreError> {
    let mut runs = Runs::new(node);
    let query = LatencyQuery { is_described: true, budget: budget.clone(), ..LatencyQuery::default() };
    each_block(store, node, &query, |time_ns, block| {
        add(&mut runs, time_ns, block, false);
        ControlFlow::Continue(())
    })?;
    Ok(runs.infos())
}

/// Ends of the newest blocks of runs that have no end.
fn ends(
    store: &Store,
    node: &str,
    infos: &[(RunInfo, Time)],
    budget: &Budget,
) -> Result<BTreeMap<RunId, Time>, StoreError> {
    let mut ends = BTreeMap::new();
    let open = infos.iter().filter(|(info, _)| info.end.is_none());
    // The description is repeated regularly, so that few blocks are newer.
    for (info, last) in open {
        let (runs, from_ns) = (vec![info.id.0], Some(last.0));
        let query = LatencyQuery { runs, from_ns, budget: budget.clone(), ..LatencyQuery::default() };
        let end = ends.entry(info.id).or_insert(*last);
        each_block(store, node, &query, |time_ns, block| {
            let length = i64::try_from(block.length_ns).unwrap_or(i64::MAX);
            *end = Time(time_ns.saturating_add(length)).max(*end);
            ControlFlow::Continue(())
        })?;
    }
    Ok(ends)
}

/// The runs that selectors mean.
fn selected(known: &[RunInfo], parameter: &str, selectors: &[String]) -> Result<BTreeSet<RunId>, Problem> {
    let mut chosen = BTreeSet::new();
    for selector in selectors {
        let found = select(known, selector).map_err(|names| {
            let hint = match names.is_empty() {
                true => "there is no run".to_owned(),
                false => format!("there is {}", names.join(", ")),
            };
            let why = format!("no run has the tag, commit or id {}: {hint}", EscapedTruncated(selector));
            Problem::of_parameter(Code::UnknownRun, parameter, why)
        })?;
        chosen.extend(found.into_iter().map(|info| info.id));
    }
    Ok(chosen)
}

/// The chosen runs with the blocks that start in the period.
fn read(
    store: &Store,
    node: &str,
    chosen: &BTreeSet<RunId>,
    (from_ns, to_ns): Period,
    budget: &Budget,
) -> Result<Result<Vec<Run>, Problem>, StoreError> {
    if chosen.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let ids = || chosen.iter().map(|id| id.0).collect();
    let mut runs = Runs::new(node);
    // A description may lie outside of the period.
    let described = LatencyQuery { runs: ids(), is_described: true, budget: budget.clone(), ..LatencyQuery::default() };
    each_block(store, node, &described, |time_ns, block| {
        add(&mut runs, time_ns, block, false);
        ControlFlow::Continue(())
    })?;
    let query = LatencyQuery { runs: ids(), from_ns, to_ns, budget: budget.clone(), ..LatencyQuery::default() };
    let mut left = Some(MAX_BLOCKS);
    each_block(store, node, &query, |time_ns, block| {
        left = left.and_then(|left| left.checked_sub(add(&mut runs, time_ns, block, true)));
        if left.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let runs = runs.into_runs();
    let names: BTreeSet<&str> = runs.iter().flat_map(|run| &run.functions).map(|known| known.name.as_str()).collect();
    let excess = match left {
        None => Some(format!("the runs have more than {MAX_BLOCKS} blocks of functions together")),
        Some(_) if names.len().saturating_mul(runs.len()) > MAX_FUNCTIONS => Some(format!(
            "the {} runs have {} functions, {MAX_FUNCTIONS} by number of runs at most",
            runs.len(),
            names.len()
        )),
        Some(_) => None,
    };
    let how = "name fewer runs, or give a shorter range of time (from, to)";
    Ok(excess.map_or(Ok(runs), |excess| Err(Problem::new(Code::QueryTooWide, format!("{excess}: {how}")))))
}

/// Adds a block; returns the number of blocks of functions that were added.
fn add(runs: &mut Runs, time_ns: i64, block: &LatencyBlock, with_counts: bool) -> usize {
    runs.add(time_ns, block, with_counts).unwrap_or_else(|defect| {
        // Ingest stores none.
        warn_limited!(defect, "a stored block of a run is not valid");
        0
    })
}

fn each_block(
    store: &Store,
    node: &str,
    query: &LatencyQuery,
    mut each: impl FnMut(i64, &LatencyBlock) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    store.each_latency_block(node, query, &mut |_, record| match record {
        Record { time_ns, kind: Some(Kind::LatencyBlock(block)), .. } => each(time_ns, &block),
        _ => ControlFlow::Continue(()),
    })
}
