//! A recording: the attached probe, and the blocks that it has counted.

use std::{
    collections::BTreeMap,
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    time::{Duration, Instant},
};

use chainscope_ebpf::latency::{LatencyOptions, LatencyProbe, Pairing, Span, SpanId};
use chainscope_latency::{Block, Function, Resolution, RunId, RunInfo, Time, Transaction};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    Plan, RecordError, RecordOptions, Skipped,
    blocks::{Total, difference},
    transactions::Transactions,
};
use crate::{clock::realtime_ns, targets::proc::Proc};

/// Functions that are attached to at once: few enough to show progress, many enough that detaching is one wait for all of them.
const PART: usize = 250;

/// What became of the observed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs the program.
    Running,
    /// It runs the program, whose file was replaced or deleted: another start runs another program.
    Replaced,
    /// It executed another program, which is not observed.
    Executed,
    /// It ended.
    Ended,
}

/// Records spans. Dropping it detaches.
#[derive(Debug)]
pub struct Recorder {
    probe: LatencyProbe,
    spans: Vec<SpanId>,
    skipped: Vec<Skipped>,
    info: RunInfo,
    functions: Vec<Function>,
    totals: Vec<Total>,
    /// Start of the next block.
    since: (Time, Instant),
    process: Option<(u32, OwnedFd)>,
    /// Device and inode of the file, if it is the executable of the process.
    executable: Option<(u64, u64)>,
    transactions: Option<Transactions>,
}

impl Recorder {
    /// Attaches to the functions of a plan.
    ///
    /// # Errors
    /// [`RecordError`]: the probe cannot be loaded, the kernel refuses to probe any of the functions, or the process has ended.
    pub fn attach(plan: &Plan, options: &RecordOptions) -> Result<Self, RecordError> {
        Self::attach_with(plan, options, &mut |_, _| {})
    }

    /// Attaches like [`Self::attach`], and reports after each part how many functions of how many are done.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_with(
        plan: &Plan,
        options: &RecordOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let planned: Vec<Span> = plan.functions.iter().map(|function| function.span.clone()).collect();
        let max_spans = u32::try_from(planned.len()).unwrap_or(u32::MAX);
        let mut probe = LatencyProbe::load(&LatencyOptions { max_spans, pairing: None })?;
        let program = &plan.program;
        let process = match program.pid {
            Some(pid) => Some((pid, pidfd(pid).ok_or(RecordError::NoProcess(pid))?)),
            None => None,
        };
        let (mut spans, mut timed, mut skipped, mut done) = (Vec::new(), Vec::new(), Vec::new(), 0);
        progress(0, planned.len());
        for part in planned.chunks(PART) {
            let attached = probe.attach_accepted(&program.file, program.pid, part)?;
            for (span, function) in attached.spans.into_iter().zip(plan.functions.iter().skip(done)) {
                match span {
                    Ok(span) => {
                        spans.push(span);
                        timed.push(&function.timed);
                    }
                    Err(error) => {
                        let function = function.timed.name.clone();
                        skipped.push(Skipped { function, reason: error.to_string() });
                    }
                }
            }
            done += part.len();
            progress(done, planned.len());
        }
        if spans.is_empty() {
            return Err(RecordError::Nothing(skipped));
        }
        let transactions = match &plan.transactions {
            Some(planned) => Some(Transactions::attach(planned, &program.file, program.pid)?),
            None => None,
        };
        let transacted = plan.transactions.iter().map(|planned| &planned.timed);
        let system = rustix::system::uname();
        let start = Time(realtime_ns());
        let info = RunInfo {
            id: RunId(rand::random()),
            node: None,
            pid: program.pid.unwrap_or(0),
            executable: program.path.display().to_string(),
            build_id: program.build_id.clone(),
            version: None,
            commit: options.commit.clone(),
            tags: options.tags.clone(),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            start,
            end: None,
            block: options.block,
            resolution: Resolution::LogLinear,
        };
        Ok(Self {
            totals: vec![Total::default(); spans.len()],
            functions: timed.into_iter().chain(transacted).cloned().collect(),
            executable: program.identity().filter(|file| executable_of(program.pid) == Some(*file)),
            since: (start, Instant::now()),
            probe,
            spans,
            skipped,
            info,
            process,
            transactions,
        })
    }

    /// The run, whose end is not known yet.
    #[must_use]
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// What is timed; blocks refer to it by index.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// What of the plan is not timed, because the kernel refuses to probe it.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// How calls are followed that end by return probes.
    #[must_use]
    pub fn pairing(&self) -> Pairing {
        self.probe.pairing()
    }

    /// What became of the process; running, if a file is observed.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let Some((pid, process)) = &self.process else { return ProcessState::Running };
        if has_ended(process) {
            return ProcessState::Ended;
        }
        let executed = executable_of(Some(*pid));
        if self.executable.is_none() || executed.is_none() {
            return ProcessState::Running;
        }
        if executed != self.executable {
            return ProcessState::Executed;
        }
        let path = fs::read_link(Proc::default().path(*pid, "exe")).unwrap_or_default();
        match path.to_string_lossy().ends_with(" (deleted)") {
            true => ProcessState::Replaced,
            false => ProcessState::Running,
        }
    }

    /// What was counted since the last call, or since the start: a block of each function that was called.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn sample(&mut self) -> Result<Vec<Block>, RecordError> {
        self.blocks(false)
    }

    /// Takes transactions out of the kernel's ring, which has room for some seconds of them: call it several times a second.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn poll(&mut self) -> Result<(), RecordError> {
        self.transactions.as_mut().map_or(Ok(()), |transactions| Ok(transactions.poll(Duration::ZERO)?))
    }

    /// The transactions of the blocks since the last call, by time. After [`Self::stop`] those of the last block.
    pub fn take_transactions(&mut self) -> Vec<Transaction> {
        self.transactions.as_mut().map(Transactions::take_facts).unwrap_or_default()
    }

    /// Detaches: nothing is counted any more.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn stop(&mut self) -> Result<(), RecordError> {
        self.probe.detach_all();
        self.transactions.as_mut().map_or(Ok(()), |transactions| Ok(transactions.stop()?))
    }

    /// Detaches, and returns the run and what was counted since the last sample. Spans that have not ended count as such.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn finish(mut self) -> Result<(RunInfo, Vec<Block>), RecordError> {
        self.stop()?;
        let blocks = self.blocks(true)?;
        self.info.end = Some(self.since.0);
        Ok((self.info, blocks))
    }

    fn blocks(&mut self, is_last: bool) -> Result<Vec<Block>, RecordError> {
        self.poll()?;
        let mut returns: BTreeMap<SpanId, BTreeMap<i32, u64>> = BTreeMap::new();
        for ((span, code), count) in self.probe.returns()? {
            returns.entry(span).or_default().insert(code, count);
        }
        let now = (Time(realtime_ns()), Instant::now());
        let period = (self.since.0, now.1 - self.since.1);
        let mut blocks = Vec::new();
        for (index, (span, before)) in self.spans.iter().zip(&mut self.totals).enumerate() {
            let total = Total { counts: self.probe.counts(*span), returns: returns.remove(span).unwrap_or_default() };
            blocks.extend(difference(index, period, before, &total, is_last));
            *before = total;
        }
        if let Some(transactions) = &mut self.transactions {
            blocks.extend(transactions.block(self.spans.len(), period, is_last));
        }
        self.since = now;
        Ok(blocks)
    }
}

/// Device and inode of the file that a process executes.
fn executable_of(pid: Option<u32>) -> Option<(u64, u64)> {
    let metadata = fs::metadata(Proc::default().path(pid?, "exe")).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
