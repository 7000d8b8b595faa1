//! The timer of one process: attaches, and records blocks.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_latency::{
    Block, LossReason, RunId, Time, Transaction,
    record::{encode_counts, encode_run, encode_transaction, nanoseconds},
};
use chainscope_proto::v1::{LatencyBlock, LatencyCounts, LatencyRun, Record, TargetEvent, record::Kind};
use chainscope_spec::Latency;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use prost::Message as _;

use super::{
    super::{Exits, ProcessState, Program, RecordOptions, Recorder},
    figures::{Counts, Figures},
    requests::{MAX_FUNCTIONS, Requested, requested},
};
use crate::{
    clock::realtime_ns,
    pillar::RecordSink,
    targets::proc::Proc,
    thread::Heartbeat,
    workers::{Subject, Task},
};

/// Longest wait for a stop; also the interval at which the process is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// First and longest pause between two attempts to attach: each reads the symbols of the executable.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(600));
/// Names of functions of a run, in bytes: each description of the run has them.
const MAX_RUN_BYTES: usize = 256 << 10;
/// Counts of a record, in bytes; a block with more is several records.
const MAX_RECORD_BYTES: usize = 256 << 10;
/// Blocks after which a run is described again.
const BLOCKS_PER_DESCRIPTION: u32 = 120;

/// How a recording ended.
enum End {
    /// The timer was stopped, or the process has ended.
    Stopped,
    /// The process executes another program.
    Executed,
}

/// Counts of blocks that did not fit into the record stream; a later record reports them.
#[derive(Debug, Default)]
struct Carried {
    unended: u64,
    lost: BTreeMap<LossReason, u64>,
}

/// The state of the thread.
pub(super) struct Timer<S> {
    subject: Subject,
    latency: Arc<Latency>,
    host: String,
    sink: S,
    figures: Arc<Figures>,
    stopped: Receiver<()>,
    heartbeat: Heartbeat,
    counts: Counts,
}

impl<S: RecordSink> Timer<S> {
    pub(super) fn new(task: Task<Latency>, host: String, sink: S, figures: Arc<Figures>) -> Self {
        let Task { subject, options: latency, stopped, heartbeat } = task;
        Self { subject, latency, host, sink, figures, stopped, heartbeat, counts: Counts::default() }
    }

    /// Runs until it is stopped or the process ends.
    pub(super) fn run(mut self) {
        self.figures.start(&self.subject, Some(self.heartbeat.clone()));
        let (mut pause, mut last) = (BACKOFF.0, String::new());
        loop {
            self.heartbeat.beat();
            let cause = match self.attach() {
                Ok(recorder) => match self.record(recorder) {
                    Ok(End::Stopped) => break,
                    Ok(End::Executed) => continue,
                    Err(cause) => cause,
                },
                Err(cause) => cause,
            };
            if cause != last {
                warn_limited!(node = %self.subject.node, pid = self.subject.pid, cause = %EscapedTruncated(&cause), "functions are not timed");
                self.event("functions error", &cause);
                self.figures.fail(&self.subject, cause.clone());
                last = cause;
            }
            self.heartbeat.rest();
            if !matches!(self.stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                break;
            }
            pause = (2 * pause).min(BACKOFF.1);
        }
        self.heartbeat.rest();
        self.figures.end(&self.subject);
    }

    fn attach(&mut self) -> Result<Recorder, String> {
        let options = RecordOptions {
            exits: Exits::Automatic,
            max_functions: MAX_FUNCTIONS,
            block: self.latency.block,
            commit: self.latency.commit.clone(),
            tags: self.latency.tags(),
        };
        let program = Program::open(Some(self.subject.pid), None).map_err(|error| error.to_string())?;
        let Requested { plan, mut faults, absent } = requested(&self.latency, program, &options)?;
        let recorder = Recorder::attach(&plan, &options).map_err(|error| error.to_string())?;
        // Those of transactions are said apart.
        let count = recorder.functions().len() - usize::from(plan.transactions.is_some());
        if Proc::default().start_of(self.subject.pid) != Some(self.subject.start) {
            return Err("the process has ended".to_owned());
        }
        let size = self.described(&recorder).encoded_len();
        if size > MAX_RUN_BYTES {
            return Err(format!("the names of the functions take {size} of {MAX_RUN_BYTES} bytes: select fewer"));
        }
        faults.extend(recorder.skipped().iter().map(|skipped| format!("not {}: {}", skipped.function, skipped.reason)));
        let transactions = plan.transactions.as_ref().map(|planned| format!("{} one by one", planned.timed.name));
        let notes: String = transactions.iter().chain(&absent).chain(&faults).map(|note| format!("; {note}")).collect();
        self.event("functions", &format!("{count} functions are timed{notes}"));
        let fault = Some(faults.join("; ")).filter(|faults| !faults.is_empty());
        self.figures.attached(&self.subject, u32::try_from(count).unwrap_or(u32::MAX), fault);
        Ok(recorder)
    }

    fn described(&self, recorder: &Recorder) -> LatencyRun {
        let (host, version) = (self.host.clone(), self.latency.version.clone());
        LatencyRun { host, version, ..encode_run(recorder.info(), recorder.functions()) }
    }

    /// Records blocks until it is stopped, the process ends or executes another program, and what was counted by then.
    fn record(&mut self, mut recorder: Recorder) -> Result<End, String> {
        let run = self.described(&recorder);
        let run_id = recorder.info().id.0.to_vec();
        let head = LatencyBlock { run_id, ..LatencyBlock::default() };
        let mut carried = BTreeMap::new();
        self.push_block(run.start_ns, LatencyBlock { run: Some(run.clone()), ..head.clone() });
        let (mut next, mut number, mut is_replaced) = (Instant::now() + self.latency.block, 0, false);
        let end = loop {
            self.heartbeat.beat();
            let wait = next.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
            if !matches!(self.stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                break End::Stopped;
            }
            match recorder.state() {
                ProcessState::Ended => break End::Stopped,
                ProcessState::Executed => break End::Executed,
                ProcessState::Replaced if !is_replaced => {
                    is_replaced = true;
                    self.event("functions", "the executable was replaced: what runs now is timed until it ends");
                }
                ProcessState::Replaced | ProcessState::Running => {}
            }
            recorder.poll().map_err(|error| error.to_string())?;
            self.push_transactions(&mut recorder, &mut carried);
            if Instant::now() >= next {
                next += self.latency.block;
                number += 1;
                let is_described = number % BLOCKS_PER_DESCRIPTION == 0;
                let head = LatencyBlock { run: is_described.then(|| run.clone()), ..head.clone() };
                let blocks = recorder.sample().map_err(|error| error.to_string())?;
                self.push_blocks(&head, blocks, &mut carried);
            }
        };
        recorder.stop().map_err(|error| error.to_string())?;
        self.push_transactions(&mut recorder, &mut carried);
        let (info, blocks) = recorder.finish().map_err(|error| error.to_string())?;
        let end_ns = info.end.map(|end| end.0);
        self.push_blocks(&LatencyBlock { run: Some(run), end_ns, ..head }, blocks, &mut carried);
        Ok(end)
    }

    /// Records the transactions since the last call. Those that do not fit into the record stream are reported by the next block: their
    /// durations are in it.
    fn push_transactions(&mut self, recorder: &mut Recorder, carried: &mut BTreeMap<usize, Carried>) {
        let transactions = recorder.take_transactions();
        // What is timed one by one is the last one.
        let function = recorder.functions().len().saturating_sub(1);
        self.push_each(recorder.info().id, function, &transactions, carried);
    }

    fn push_each(
        &mut self,
        run: RunId,
        function: usize,
        transactions: &[Transaction],
        carried: &mut BTreeMap<usize, Carried>,
    ) {
        for transaction in transactions {
            let time_ns = transaction.time.0;
            if self.push(time_ns, Kind::LatencyTransaction(encode_transaction(run, transaction))) {
                self.counts.transactions += 1;
                self.counts.last_ns = self.counts.last_ns.max(time_ns);
            } else {
                self.counts.transactions_not_kept += 1;
                let lost = &mut carried.entry(function).or_default().lost;
                *lost.entry(LossReason::TransactionsFull).or_default() += 1;
            }
        }
        if !transactions.is_empty() {
            self.figures.set_counts(&self.subject, &self.counts);
        }
    }

    /// Records what was counted in a period: in several records if there is much. The next ones report what does not fit into the
    /// record stream.
    fn push_blocks(&mut self, head: &LatencyBlock, mut blocks: Vec<Block>, carried: &mut BTreeMap<usize, Carried>) {
        let period = blocks.first().map(|block| (block.start, block.length));
        let (start, length) = period.unwrap_or_else(|| (Time(head.end_ns.unwrap_or_else(realtime_ns)), Duration::ZERO));
        for (function, Carried { unended, lost }) in std::mem::take(carried) {
            let at = blocks.iter().position(|block| block.function == function).unwrap_or_else(|| {
                blocks.push(Block { function, start, length, ..Block::default() });
                blocks.len() - 1
            });
            let block = &mut blocks[at];
            block.unended += unended;
            lost.into_iter().for_each(|(reason, count)| *block.lost.entry(reason).or_default() += count);
        }
        let mut head = head.clone();
        head.length_ns = nanoseconds(length);
        for group in groups(blocks) {
            let functions = group.iter().map(|(_, counts)| counts.clone()).collect();
            if self.push_block(start.0, LatencyBlock { functions, ..head.clone() }) {
                // Once is enough.
                head.run = None;
                group.iter().for_each(|(block, _)| self.counts.add(block));
            } else {
                for (Block { function, histogram, unended, mut lost, .. }, _) in group {
                    self.counts.not_kept += histogram.count();
                    *lost.entry(LossReason::NotKept).or_default() += histogram.count();
                    carried.insert(function, Carried { unended, lost });
                }
            }
        }
        // The end of a run, or its description, without anything that was counted.
        if head.run.is_some() && carried.is_empty() {
            self.push_block(start.0, head);
        }
        self.figures.set_counts(&self.subject, &self.counts);
    }

    fn push_block(&mut self, time_ns: i64, block: LatencyBlock) -> bool {
        let is_recorded = self.push(time_ns, Kind::LatencyBlock(block));
        if is_recorded {
            self.counts.blocks += 1;
            self.counts.last_ns = self.counts.last_ns.max(time_ns);
        }
        is_recorded
    }

    fn event(&mut self, event: &str, detail: &str) {
        let (event, pid) = (event.to_owned(), self.subject.pid);
        let detail = EscapedTruncated(detail).to_string();
        self.push(realtime_ns(), Kind::TargetEvent(TargetEvent { event, pid, detail }));
    }

    fn push(&mut self, time_ns: i64, kind: Kind) -> bool {
        let record = Record { time_ns, target: self.subject.label.to_string(), kind: Some(kind) };
        self.sink.push(&self.subject.node, record)
    }
}

/// Blocks with their encoded counts, in groups that fit into a record each.
fn groups(blocks: Vec<Block>) -> Vec<Vec<(Block, LatencyCounts)>> {
    let (mut groups, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for block in blocks {
        let counts = encode_counts(&block);
        let size = counts.encoded_len();
        match groups.last_mut() {
            Some(group) if bytes + size <= MAX_RECORD_BYTES => {
                bytes += size;
                group.push((block, counts));
            }
            _ => {
                bytes = size;
                groups.push(vec![(block, counts)]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use chainscope_latency::{Histogram, TransactionId};
    use crossbeam_channel::bounded;
    use parking_lot::Mutex;

    use super::*;

    /// A record stream that takes records while it is open.
    #[derive(Clone, Default)]
    struct Stream(Arc<Mutex<(bool, Vec<LatencyBlock>)>>);

    impl RecordSink for Stream {
        fn push(&mut self, _: &str, record: Record) -> bool {
            let mut stream = self.0.lock();
            if let (true, Some(Kind::LatencyBlock(block))) = (stream.0, record.kind) {
                stream.1.push(block);
            }
            stream.0
        }

        fn merge(&mut self, _: &str, _: Record) {}
    }

    fn block(function: usize, values: impl IntoIterator<Item = u64>) -> Block {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        Block { function, histogram, unended: 1, ..Block::default() }
    }

    fn timer(stream: &Stream) -> Timer<Stream> {
        let subject = Subject { pid: 1, start: 2, node: "n".into(), label: "pid 1".into(), pod: None };
        let options = Arc::new(Latency::of(["f"]));
        let task = Task { subject, options, stopped: bounded(0).1, heartbeat: Heartbeat::new("test") };
        Timer::new(task, "h".to_owned(), stream.clone(), Arc::default())
    }

    #[test]
    fn what_does_not_fit_into_the_stream_is_told_by_a_later_block() {
        let (stream, head, mut carried) = (Stream::default(), LatencyBlock::default(), BTreeMap::new());
        let mut timer = timer(&stream);
        timer.push_blocks(&head, vec![block(0, [1, 2]), block(1, [3])], &mut carried);
        timer.push_blocks(&head, vec![block(1, [3, 4])], &mut carried);
        assert!(stream.0.lock().1.is_empty());
        stream.0.lock().0 = true;
        timer.push_blocks(&head, vec![block(1, [5])], &mut carried);
        let sent = std::mem::take(&mut stream.0.lock().1);
        let reported = |counts: &LatencyCounts| {
            (counts.function, counts.counts.iter().sum::<u64>(), counts.unended, counts.lost["not_kept"])
        };
        assert_eq!(
            sent.iter().flat_map(|block| &block.functions).map(reported).collect::<Vec<_>>(),
            [(1, 1, 3, 3), (0, 0, 1, 2)]
        );
        assert_eq!((timer.counts.spans, timer.counts.not_kept, carried.len()), (1, 5, 0));
        timer.push_blocks(&head, vec![], &mut carried);
        assert!(stream.0.lock().1.is_empty(), "nothing happened");
    }

    #[test]
    fn transactions_that_do_not_fit_are_told_by_a_later_block() {
        let (stream, head, mut carried) = (Stream::default(), LatencyBlock::default(), BTreeMap::new());
        let mut timer = timer(&stream);
        let fact = |number: u8| Transaction {
            id: TransactionId([number; 32]),
            kind: 7,
            result: 0,
            duration_ns: 5,
            time: Time(number.into()),
        };
        timer.push_each(RunId([1; 16]), 1, &[fact(1), fact(2)], &mut carried);
        stream.0.lock().0 = true;
        timer.push_each(RunId([1; 16]), 1, &[fact(3)], &mut carried);
        timer.push_blocks(&head, vec![block(1, [5, 5, 5])], &mut carried);
        let sent = std::mem::take(&mut stream.0.lock().1);
        let counts = &sent[0].functions[0];
        assert_eq!((counts.function, counts.counts[0], counts.lost["transactions_full"]), (1, 3, 2));
        assert_eq!((timer.counts.transactions, timer.counts.transactions_not_kept), (1, 2));
    }

    #[test]
    fn much_is_several_records_of_which_one_describes_the_run() {
        let stream = Stream::default();
        stream.0.lock().0 = true;
        let mut timer = timer(&stream);
        let head = LatencyBlock { run: Some(LatencyRun::default()), end_ns: Some(9), ..LatencyBlock::default() };
        let wide =
            |function| block(function, (0..1900).filter_map(|index| Some(chainscope_latency::bucket_bounds(index)?.0)));
        timer.push_blocks(&head, (0..100).map(wide).collect(), &mut BTreeMap::new());
        let sent = std::mem::take(&mut stream.0.lock().1);
        assert!(
            sent.len() > 1 && sent.iter().all(|block| block.encoded_len() <= MAX_RECORD_BYTES + 100),
            "{}",
            sent.len()
        );
        assert_eq!(sent.iter().flat_map(|block| &block.functions).count(), 100);
        assert_eq!(sent.iter().filter(|block| block.run.is_some()).count(), 1);
        timer.push_blocks(&head, vec![], &mut BTreeMap::new());
        let sent = std::mem::take(&mut stream.0.lock().1);
        assert_eq!(sent, [head], "the end of a run is reported, whatever was counted");
    }
}
