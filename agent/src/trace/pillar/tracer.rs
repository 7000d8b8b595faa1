//! The tracer of one process: attaches, records events, and accounts for them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{Loss, Record, TargetEvent, record::Kind};
use chainscope_spec::Trace;
use chainscope_trace::{
    Attachment, Event, Pattern, Polled, Source,
    record::{encode_attachment, encode_event},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{
    figures::{ByTracepoint, Figures},
    rules::{self, Rules},
};
use crate::{
    clock::realtime_ns,
    pillar::RecordSink,
    targets::proc::Proc,
    thread::Heartbeat,
    trace::{Observed, ProbeSource, Wanted},
    workers::{Subject, Task, has_ended},
};

/// Longest wait for an event; also the delay until a stop is noticed.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// Interval at which counts are published and losses recorded.
const ACCOUNT_INTERVAL: Duration = Duration::from_secs(1);
/// First and longest pause between two attempts to attach.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The state of the thread.
pub(super) struct Tracer<S> {
    subject: Subject,
    trace: Arc<Trace>,
    sink: S,
    figures: Arc<Figures>,
    stopped: Receiver<()>,
    heartbeat: Heartbeat,
    /// What was recorded of each tracepoint.
    counts: ByTracepoint,
    /// Losses that are records already, by tracepoint and reason, and their time.
    reported: BTreeMap<(String, String), u64>,
    reported_ns: i64,
    /// Encoded attachments, by their address: the source keeps them.
    attachments: Vec<(Arc<Attachment>, Bytes)>,
}

impl<S: RecordSink> Tracer<S> {
    pub(super) fn new(task: Task<Trace>, sink: S, figures: Arc<Figures>) -> Self {
        let Task { subject, options: trace, stopped, heartbeat } = task;
        let (counts, reported, attachments) = (ByTracepoint::default(), BTreeMap::new(), Vec::new());
        let reported_ns = realtime_ns();
        Self { subject, trace, sink, figures, stopped, heartbeat, counts, reported, reported_ns, attachments }
    }

    /// Runs until it is stopped or the process ends.
    pub(super) fn run(mut self) {
        self.figures.start(&self.subject, Some(self.heartbeat.clone()));
        let (mut pause, mut last) = (BACKOFF.0, String::new());
        loop {
            self.heartbeat.beat();
            let cause = match self.attach() {
                Ok((mut source, rules)) => {
                    self.record(&mut source, &rules);
                    break;
                }
                Err(cause) => cause,
            };
            if cause != last {
                warn_limited!(node = %self.subject.node, pid = self.subject.pid, cause = %EscapedTruncated(&cause), "tracepoints are not recorded");
                self.event("tracepoints error", cause.clone());
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

    fn attach(&mut self) -> Result<(ProbeSource, Rules), String> {
        let rules = Rules::new(&self.trace)?;
        let contracts = rules::contracts(&self.trace)?;
        let (observed, options) = (Observed::Process(self.subject.pid), rules::options(&self.trace));
        let patterns = rules.patterns();
        let is_contract_named = self.trace.contract.is_some();
        let wanted = Wanted { patterns: patterns.clone(), contracts, is_contract_named };
        let source = ProbeSource::attach(&observed, wanted, &options, options.ring_bytes.into());
        let source = source.map_err(|error| error.to_string())?;
        if Proc::default().start_of(self.subject.pid) != Some(self.subject.start) {
            return Err("the process has ended".to_owned());
        }
        let (attachments, locations) = (source.attachments(), source.attachments().len());
        let is_missing = |pattern: &&Pattern| {
            let mut names = attachments.iter().map(|one| (&*one.provider, &*one.name));
            !names.any(|(provider, name)| pattern.matches(provider, name))
        };
        let missing = patterns.iter().filter(is_missing).map(|pattern| format!("no tracepoint matches {pattern}"));
        let skipped = source.skipped().iter();
        let skipped = skipped.map(|one| format!("not to {} at {:#x}: {}", one.tracepoint, one.location, one.reason));
        let faults = missing.chain(skipped).collect::<Vec<_>>().join("; ");
        let separator = if faults.is_empty() { "" } else { "; " };
        self.event("tracepoints", format!("attached to {locations} locations{separator}{faults}"));
        let fault = Some(faults).filter(|faults| !faults.is_empty());
        self.figures.attached(&self.subject, u32::try_from(locations).unwrap_or(u32::MAX), fault);
        Ok((source, rules))
    }

    /// Records events until it is stopped, and what was captured by then.
    pub(super) fn record(&mut self, source: &mut impl Source, rules: &Rules) {
        let (mut accounted, mut is_stopping) = (Instant::now(), false);
        loop {
            self.heartbeat.beat();
            if !is_stopping && has_ended(&self.stopped) {
                is_stopping = true;
                source.stop();
            }
            match source.poll(POLL_TIMEOUT) {
                Ok(Polled::Event(event)) => self.pass(&event, rules),
                Ok(Polled::Idle { .. } | Polled::Process(_)) => {}
                Ok(Polled::End) => break,
                Err(error) => {
                    self.event("tracepoints error", error.to_string());
                    self.figures.fail(&self.subject, error.to_string());
                    break;
                }
            }
            if accounted.elapsed() >= ACCOUNT_INTERVAL {
                for notice in source.notices() {
                    self.event("tracepoints", notice);
                }
                self.account(source);
                accounted = Instant::now();
            }
        }
        self.account(source);
    }

    fn pass(&mut self, event: &Event, rules: &Rules) {
        let is_selected = rules.select(event);
        let is_recorded = is_selected && {
            let kind = Kind::TraceEvent(encode_event(event, &self.attachment(&event.attachment)));
            self.push(event.time.wall_ns, kind)
        };
        let counts = self.counts.0.entry(event.attachment.full_name()).or_default();
        match (is_selected, is_recorded) {
            (true, true) => {
                counts.recorded += 1;
                counts.last_ns = event.time.wall_ns;
            }
            (true, false) => *counts.dropped.entry("queue_full".to_owned()).or_default() += 1,
            (false, _) => counts.filtered += 1,
        }
    }

    fn attachment(&mut self, of: &Arc<Attachment>) -> Bytes {
        if let Some((_, encoded)) = self.attachments.iter().find(|(known, _)| Arc::ptr_eq(known, of)) {
            return encoded.clone();
        }
        let encoded = encode_attachment(of);
        self.attachments.push((Arc::clone(of), encoded.clone()));
        encoded
    }

    /// Publishes the counts, and records what the probe has lost since the last time. What does not fit into the record stream
    /// is counted by the stream.
    fn account(&mut self, source: &mut impl Source) {
        let (accounting, now) = (source.accounting(), realtime_ns());
        let mut are_reported = true;
        for (name, found) in accounting.tracepoints {
            let counts = self.counts.0.entry(name.clone()).or_default();
            counts.hits = found.hits;
            for (reason, count) in found.dropped {
                counts.dropped.insert(reason.to_string(), count);
                let key = (name.clone(), reason.to_string());
                let lost = count - self.reported.get(&key).copied().unwrap_or(0).min(count);
                if lost == 0 {
                    continue;
                }
                let loss = Loss {
                    stage: "tracepoint".to_owned(),
                    reason: format!("{} {reason}", EscapedTruncated(&name)),
                    records: lost,
                    from_ns: self.reported_ns,
                    to_ns: now,
                    ..Loss::default()
                };
                let record =
                    Record { time_ns: now, target: self.subject.label.to_string(), kind: Some(Kind::Loss(loss)) };
                if self.sink.push(&self.subject.node, record) {
                    self.reported.insert(key, count);
                } else {
                    are_reported = false;
                }
            }
        }
        if are_reported {
            self.reported_ns = now;
        }
        self.figures.set_counts(&self.subject, &self.counts);
    }

    fn event(&mut self, event: &str, detail: String) {
        let (event, pid) = (event.to_owned(), self.subject.pid);
        let detail = EscapedTruncated(&detail).to_string();
        self.push(realtime_ns(), Kind::TargetEvent(TargetEvent { event, pid, detail }));
    }

    fn push(&mut self, time_ns: i64, kind: Kind) -> bool {
        let record = Record { time_ns, target: self.subject.label.to_string(), kind: Some(kind) };
        self.sink.push(&self.subject.node, record)
    }
}
