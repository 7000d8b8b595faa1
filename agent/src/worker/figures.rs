//! Counts for metrics and reports.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use chainscope_proto::v1::{HostStatus, PodReport, SpoolReport};

use super::{Worker, rounds::NOTE_EVERY};
use crate::{
    network::holding::Discarded,
    network::interpreter::Tally,
    operator::{Report, report},
    targets::Plan,
};

/// What metrics show, as of at most a second ago.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) nodes: BTreeMap<Arc<str>, NodeFigures>,
    /// Pods by state, as the numbers of `PodState`.
    pub(crate) pods: BTreeMap<i32, u64>,
    pub(crate) generation: u64,
    pub(crate) held_processes: usize,
    pub(crate) held_bytes: usize,
    pub(crate) discarded: Discarded,
    told: Option<Instant>,
}

/// Counts of one node on this host.
#[derive(Debug, Default)]
pub(crate) struct NodeFigures {
    /// Observed processes.
    pub(crate) processes: u64,
    /// Sums over processes that are observed and that were.
    pub(crate) total: Tally,
    ended: Tally,
}

impl Figures {
    /// Something changed that should be said soon.
    pub(super) fn spoil(&mut self) {
        self.told = None;
    }

    pub(super) fn ended(&mut self, node: &Arc<str>, tally: &Tally) {
        let figures = self.nodes.entry(Arc::clone(node)).or_default();
        figures.ended = Tally { connections_open: 0, ..report::sum(&figures.ended, tally) };
    }
}

impl Worker {
    /// Says once a second how it goes.
    pub(super) fn tell(&mut self) {
        let is_due = self.figures.lock().told.is_none_or(|told| told.elapsed() >= NOTE_EVERY);
        if is_due {
            self.tell_now();
        }
    }

    pub(super) fn tell_now(&mut self) {
        let pods = match self.roster.plan() {
            Plan::Pods(plan) => {
                self.ledger.reports(plan, |pid| self.interpreter.tally(pid), self.streams.spool_dropped())
            }
            Plan::Entries(_) => Vec::new(),
        };
        let generation = match self.roster.plan() {
            Plan::Pods(plan) => plan.map().generation,
            Plan::Entries(_) => 0,
        };
        self.update_figures(&pods, generation);
        self.streams.expect(&self.expected_nodes());
        if let Some(cluster) = &self.cluster {
            let spool = Some(self.spool());
            let status = HostStatus { generation, pods, spool, error: String::new() };
            // Nobody listens once the client has ended.
            cluster.reports.send_replace(Report { serial: self.serial, status });
        }
    }

    fn update_figures(&self, pods: &[PodReport], generation: u64) {
        let mut figures = self.figures.lock();
        let figures = &mut *figures;
        for node in figures.nodes.values_mut() {
            (node.processes, node.total) = (0, node.ended.clone());
        }
        for (pid, observed) in &self.observed {
            let Some(tally) = self.interpreter.tally(*pid) else { continue };
            let node = figures.nodes.entry(Arc::clone(&observed.node)).or_default();
            node.processes += 1;
            node.total = report::sum(&node.total, &tally);
        }
        figures.pods.clear();
        for pod in pods {
            *figures.pods.entry(pod.state).or_default() += 1;
        }
        figures.generation = generation;
        figures.held_processes = self.holding.processes();
        figures.held_bytes = self.holding.bytes();
        figures.discarded = self.holding.discarded();
        figures.told = Some(Instant::now());
    }

    fn spool(&self) -> SpoolReport {
        let streams = self.streams.status();
        SpoolReport {
            bytes: streams.iter().map(|stream| stream.pending_bytes as u64).sum(),
            limit_bytes: self.limit_bytes,
            records_dropped: streams.iter().map(|stream| stream.dropped.records).sum(),
            oldest_ns: self.streams.oldest_pending_ns().unwrap_or(0),
        }
    }
}
