//! Runs as records: agents send them and aggregators store them block by block, transactions one by one. Input is untrusted.

mod transaction;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chainscope_proto::v1::{LatencyBlock, LatencyCounts, LatencyFunction, LatencyLocation, LatencyRun};

pub use self::transaction::{decode_transaction, encode_transaction};
use crate::{
    Histogram,
    model::{Block, Function, Location, LossReason, Resolution, Run, RunId, RunInfo, Time},
};

/// Most functions of a run.
pub const MAX_FUNCTIONS: usize = 1000;

/// The description of a run.
#[must_use]
pub fn encode_run(info: &RunInfo, functions: &[Function]) -> LatencyRun {
    let location = |of: &Location| Some(LatencyLocation { pattern: of.pattern.clone(), symbols: of.symbols.clone() });
    let function =
        |of: &Function| LatencyFunction { name: of.name.clone(), entry: location(&of.entry), exit: location(&of.exit) };
    LatencyRun {
        pid: info.pid,
        executable: info.executable.clone(),
        build_id: info.build_id.clone(),
        commit: info.commit.clone(),
        tags: info.tags.iter().cloned().collect(),
        host: info.host.clone(),
        kernel: info.kernel.clone(),
        start_ns: info.start.0,
        block_ns: nanoseconds(info.block),
        functions: functions.iter().map(function).collect(),
        version: info.version.clone(),
    }
}

/// What was counted of a function.
#[must_use]
pub fn encode_counts(block: &Block) -> LatencyCounts {
    let histogram = &block.histogram;
    let lost = block.lost.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count));
    LatencyCounts {
        function: u32::try_from(block.function).unwrap_or(u32::MAX),
        buckets: histogram.buckets().map(|bucket| u32::from(bucket.index)).collect(),
        counts: histogram.buckets().map(|bucket| bucket.count).collect(),
        sum_ns: histogram.sum(),
        min_ns: histogram.min().unwrap_or(0),
        max_ns: histogram.max().unwrap_or(0),
        returns: block.returns.clone(),
        unended: block.unended,
        lost: lost.collect(),
    }
}

/// Nanoseconds of a duration, as records have them.
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Checks a block of an agent.
///
/// # Errors
/// What of it is not valid.
pub fn check(block: &LatencyBlock) -> Result<(), &'static str> {
    run_id(block)?;
    if block.run.as_ref().is_some_and(|run| run.functions.len() > MAX_FUNCTIONS) {
        return Err("functions of a run");
    }
    block.functions.iter().try_for_each(|counts| decode_counts(counts, Time(0), 0).map(drop))
}

fn run_id(block: &LatencyBlock) -> Result<RunId, &'static str> {
    block.run_id.as_slice().try_into().map(RunId).map_err(|_| "id of a run")
}

fn decode_counts(counts: &LatencyCounts, start: Time, length_ns: u64) -> Result<Block, &'static str> {
    let LatencyCounts { function, buckets, counts, sum_ns, min_ns, max_ns, returns, unended, lost } = counts;
    let function = usize::try_from(*function).unwrap_or(usize::MAX);
    if function >= MAX_FUNCTIONS {
        return Err("index of a function");
    }
    if buckets.len() != counts.len() {
        return Err("buckets");
    }
    let indexes = buckets.iter().map(|index| u16::try_from(*index).unwrap_or(u16::MAX));
    let histogram =
        Histogram::from_parts(indexes.zip(counts.iter().copied()), *sum_ns, *min_ns, *max_ns).ok_or("buckets")?;
    let mut known = BTreeMap::new();
    for (name, count) in lost {
        // A later agent may know further reasons.
        let known: &mut u64 = known.entry(LossReason::from_name(name).unwrap_or(LossReason::NotKept)).or_default();
        *known = known.saturating_add(*count);
    }
    let length = Duration::from_nanos(length_ns);
    Ok(Block { function, start, length, histogram, returns: returns.clone(), unended: *unended, lost: known })
}

/// Puts runs of a node together from their blocks, in any order.
#[derive(Debug)]
pub struct Runs {
    node: String,
    runs: BTreeMap<RunId, Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    described: Option<(RunInfo, Vec<Function>)>,
    end: Option<Time>,
    /// End of the newest block.
    last: Option<Time>,
    blocks: Vec<Block>,
}

impl Runs {
    /// Runs of a node, none yet.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), runs: BTreeMap::new() }
    }

    /// Adds a block with what it says of its run. Without `with_counts`, what was counted is left out. Returns the number of blocks of
    /// functions that were added.
    ///
    /// # Errors
    /// What of it is not valid: nothing of it is added.
    pub fn add(&mut self, time_ns: i64, block: &LatencyBlock, with_counts: bool) -> Result<usize, &'static str> {
        let id = run_id(block)?;
        let start = Time(time_ns);
        let counts = block.functions.iter().filter(|_| with_counts);
        let blocks =
            counts.map(|counts| decode_counts(counts, start, block.length_ns)).collect::<Result<Vec<_>, _>>()?;
        let parts = self.runs.entry(id).or_default();
        if parts.described.is_none()
            && let Some(run) = &block.run
        {
            parts.described = Some(decode_run(&self.node, id, run));
        }
        parts.end = parts.end.or(block.end_ns.map(Time));
        let last = Time(time_ns.saturating_add(i64::try_from(block.length_ns).unwrap_or(i64::MAX)));
        parts.last = parts.last.max(Some(last));
        let count = blocks.len();
        parts.blocks.extend(blocks);
        Ok(count)
    }

    /// The runs in order of their start, each with the end of its newest block. Those that no block describes are left out.
    #[must_use]
    pub fn infos(&self) -> Vec<(RunInfo, Time)> {
        let described = self.runs.values().filter_map(|parts| {
            let (info, _) = parts.described.as_ref()?;
            Some((RunInfo { end: parts.end, ..info.clone() }, parts.last.unwrap_or(info.start)))
        });
        let mut infos: Vec<(RunInfo, Time)> = described.collect();
        infos.sort_by_key(|(info, _)| (info.start, info.id));
        infos
    }

    /// The runs with their blocks and without transactions, in order of their start.
    #[must_use]
    pub fn into_runs(self) -> Vec<Run> {
        let whole = self.runs.into_values().filter_map(|parts| {
            let (info, mut functions) = parts.described?;
            let mut blocks = parts.blocks;
            blocks.sort_by_key(|block| (block.start, block.function));
            let named = blocks.iter().map(|block| block.function + 1).max().unwrap_or(0);
            // An agent sends none that it has not described.
            functions.extend((functions.len()..named).map(|index| Function {
                name: format!("function {index}"),
                entry: Location::default(),
                exit: Location::default(),
            }));
            Some(Run { info: RunInfo { end: parts.end, ..info }, functions, blocks, transactions: Vec::new() })
        });
        let mut runs: Vec<Run> = whole.collect();
        runs.sort_by_key(|run| (run.info.start, run.info.id));
        runs
    }
}

fn decode_run(node: &str, id: RunId, run: &LatencyRun) -> (RunInfo, Vec<Function>) {
    let location = |of: &Option<LatencyLocation>| {
        let of = of.clone().unwrap_or_default();
        Location { pattern: of.pattern, symbols: of.symbols }
    };
    let function =
        |of: &LatencyFunction| Function { name: of.name.clone(), entry: location(&of.entry), exit: location(&of.exit) };
    let info = RunInfo {
        id,
        node: Some(node.to_owned()),
        pid: run.pid,
        executable: run.executable.clone(),
        build_id: run.build_id.clone(),
        version: run.version.clone(),
        commit: run.commit.clone(),
        tags: run.tags.iter().cloned().collect::<BTreeSet<_>>(),
        host: run.host.clone(),
        kernel: run.kernel.clone(),
        start: Time(run.start_ns),
        end: None,
        block: Duration::from_nanos(run.block_ns),
        resolution: Resolution::LogLinear,
    };
    (info, run.functions.iter().map(function).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(function: usize, start: i64, values: &[u64]) -> Block {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        Block {
            function,
            start: Time(start),
            length: Duration::from_secs(30),
            histogram,
            returns: BTreeMap::from([(-3, 7)]),
            unended: 2,
            lost: BTreeMap::from([(LossReason::NoEntry, 1)]),
        }
    }

    fn run() -> Run {
        let location = Location { pattern: "apply".to_owned(), symbols: vec!["a::apply()".to_owned()] };
        let function = |name: &str| Function { name: name.to_owned(), entry: location.clone(), exit: location.clone() };
        Run {
            info: RunInfo {
                id: RunId([7; 16]),
                node: Some("n".to_owned()),
                pid: 4711,
                executable: "/usr/bin/node".to_owned(),
                build_id: Some("ab".to_owned()),
                version: Some("2.4".to_owned()),
                commit: Some("c0".to_owned()),
                tags: BTreeSet::from(["new".to_owned()]),
                host: "h".to_owned(),
                kernel: "6.18".to_owned(),
                start: Time(5),
                end: Some(Time(99)),
                block: Duration::from_secs(30),
                resolution: Resolution::LogLinear,
            },
            functions: vec![function("f"), function("g")],
            blocks: vec![counted(0, 5, &[1, 1000, 2_000_000]), counted(1, 5, &[]), counted(1, 30, &[u64::MAX])],
            transactions: Vec::new(),
        }
    }

    fn record(run: &Run, index: usize, is_described: bool) -> (i64, LatencyBlock) {
        let block = &run.blocks[index];
        let record = LatencyBlock {
            run_id: run.info.id.0.to_vec(),
            run: is_described.then(|| encode_run(&run.info, &run.functions)),
            length_ns: nanoseconds(block.length),
            functions: vec![encode_counts(block)],
            end_ns: (index == 2).then_some(99),
        };
        check(&record).unwrap();
        (block.start.0, record)
    }

    #[test]
    fn a_run_is_put_together_from_its_blocks() {
        let whole = run();
        let mut runs = Runs::new("n");
        // What describes it is the last block alone.
        for index in [1, 0, 2] {
            let (time, record) = record(&whole, index, index == 2);
            assert_eq!(runs.add(time, &record, true), Ok(1));
        }
        assert_eq!(runs.infos(), [(whole.info.clone(), Time(30 + 30_000_000_000))]);
        assert_eq!(runs.into_runs(), [whole]);
    }

    #[test]
    fn blocks_without_a_description_are_no_run() {
        let mut runs = Runs::new("n");
        let (time, record) = record(&run(), 0, false);
        runs.add(time, &record, true).unwrap();
        assert!(runs.infos().is_empty() && runs.into_runs().is_empty());
    }

    #[test]
    fn what_an_agent_must_not_send_is_refused() {
        let valid = record(&run(), 0, true).1;
        let of = |counts: LatencyCounts| LatencyBlock { functions: vec![counts], ..valid.clone() };
        let counts = valid.functions[0].clone();
        let many = LatencyRun { functions: vec![LatencyFunction::default(); 1001], ..LatencyRun::default() };
        for (block, says) in [
            (LatencyBlock { run_id: vec![1; 15], ..valid.clone() }, "id of a run"),
            (LatencyBlock { run: Some(many), ..valid.clone() }, "functions of a run"),
            (of(LatencyCounts { function: 1000, ..counts.clone() }), "index of a function"),
            (of(LatencyCounts { counts: vec![1], ..counts.clone() }), "buckets"),
            (of(LatencyCounts { buckets: vec![0, 1, 70_000], ..counts.clone() }), "buckets"),
            (of(LatencyCounts { counts: vec![u64::MAX; 3], ..counts }), "buckets"),
        ] {
            assert_eq!(check(&block), Err(says));
            assert_eq!(Runs::new("n").add(0, &block, true).is_err(), says != "functions of a run");
        }
    }
}
