//! The status thread: once a second, or when a pillar or discovery has changed, it assembles the agent's report
//! to the operator and its metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::{HostStatus, PodReport, Record, SpoolReport};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    clock::realtime_ns,
    delivery::RecordStreams,
    figures::TargetTallies,
    folder::Folder,
    operator::{Report, report::Ledger},
    pillar::{PillarStatus, RecordSink},
    targets::TargetsView,
    thread::Heartbeat,
};

/// Interval at which the thread polls for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reports without a change, because counters advance.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The record streams as pillars write to them.
#[derive(Debug, Clone)]
pub(crate) struct ActiveSink {
    pub(crate) streams: RecordStreams,
    /// A record was written since the status thread's last poll.
    pub(crate) active: Arc<AtomicBool>,
}

impl RecordSink for ActiveSink {
    fn push(&mut self, node: &str, record: Record) -> bool {
        self.active.store(true, Ordering::Relaxed);
        self.streams.push(node, record)
    }

    fn merge(&mut self, node: &str, record: Record) {
        self.streams.merge(node, record);
    }
}

/// Metrics of the pods.
#[derive(Debug, Default)]
pub(crate) struct PodFigures {
    /// Pods by state, as the numbers of `PodState`.
    pub(crate) pods: BTreeMap<i32, u64>,
    /// Generation of the configuration in use.
    pub(crate) generation: u64,
}

/// The thread's state.
pub(crate) struct StatusReporter {
    pub(crate) view: Arc<Mutex<TargetsView>>,
    pub(crate) pillars: Vec<Arc<dyn PillarStatus>>,
    pub(crate) sink: ActiveSink,
    pub(crate) folder: Folder,
    /// To the client of the operator, if there is one.
    pub(crate) reports: Option<watch::Sender<Report>>,
    pub(crate) figures: Arc<Mutex<PodFigures>>,
    /// Most bytes of records that are not acknowledged.
    pub(crate) limit_bytes: u64,
    pub(crate) heartbeat: Heartbeat,
}

impl StatusReporter {
    /// Runs until the sender of `stop` is dropped.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        let mut ledger = Ledger::default();
        let mut shown: Option<(u64, Instant)> = None;
        loop {
            self.heartbeat.beat();
            let version = self.version();
            let is_due = |(of, at): (u64, Instant)| of != version || at.elapsed() >= REPORT_INTERVAL;
            if shown.is_none_or(is_due) {
                shown = Some((version, Instant::now()));
                self.report(&mut ledger);
                self.note_settled();
            }
            match stop.recv_timeout(POLL_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
        }
    }

    fn version(&self) -> u64 {
        self.pillars.iter().map(|pillar| pillar.version()).sum::<u64>() + self.view.lock().version
    }

    fn report(&self, ledger: &mut Ledger) {
        let view = self.view.lock().clone();
        let mut tallies = TargetTallies::default();
        self.pillars.iter().for_each(|pillar| pillar.tally(&mut tallies));
        let mut nodes = view.nodes.clone();
        // Also of targets whose capture is ending.
        nodes.extend(tallies.live.values().map(|live| live.node.to_string()));
        self.sink.streams.expect(&nodes);
        let pods = ledger.reports(&view, &mut tallies, self.sink.streams.spool_dropped());
        let generation = view.map.as_ref().map_or(0, |map| map.generation);
        *self.figures.lock() = pod_figures(&pods, generation);
        if let Some(reports) = &self.reports {
            let status = HostStatus { generation, pods, spool: Some(self.spool()), error: String::new() };
            // There is no receiver once the client has ended.
            reports.send_replace(Report { serial: view.serial, status });
        }
    }

    fn spool(&self) -> SpoolReport {
        let streams = self.sink.streams.status();
        SpoolReport {
            bytes: streams.iter().map(|stream| stream.pending_bytes as u64).sum(),
            limit_bytes: self.limit_bytes,
            records_dropped: streams.iter().map(|stream| stream.dropped.records).sum(),
            oldest_ns: self.sink.streams.oldest_pending_ns().unwrap_or(0),
        }
    }

    /// Writes the time up to which all records are acknowledged or in the spool: after a kill the loss begins there.
    fn note_settled(&self) {
        let now = realtime_ns();
        let is_active = self.sink.active.swap(false, Ordering::Relaxed);
        let oldest = self.sink.streams.oldest_volatile_ns();
        if (is_active || oldest.is_some())
            && let Err(error) = self.folder.set_settled_ns(oldest.map_or(now, |oldest| oldest.min(now)))
        {
            warn_limited!(%error, "the time of the last acknowledgement cannot be written");
        }
    }
}

fn pod_figures(pods: &[PodReport], generation: u64) -> PodFigures {
    let mut figures = PodFigures { generation, ..PodFigures::default() };
    for pod in pods {
        *figures.pods.entry(pod.state).or_default() += 1;
    }
    figures
}
