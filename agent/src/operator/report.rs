//! How it goes on the host, in the words of the config stream. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_proto::v1::{HostStatus, PodReport, PodState};

use super::pods::{Pod, PodMap};
use crate::{network::interpreter::Tally, targets::identity::Source, targets::pods::PodPlan};

/// What happened in the pods since the agent began to observe them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pods: BTreeMap<String, Life>,
}

/// One pod's.
#[derive(Debug, Default)]
struct Life {
    /// Observed processes, by when they were found.
    pids: Vec<u32>,
    starts: u32,
    started_ns: i64,
    /// Sums over processes that ended.
    ended: Tally,
    /// Why the last process cannot be recorded.
    refused: String,
    last_error: String,
}

impl Ledger {
    /// A process of the pod begins to be observed; it started then.
    pub(crate) fn started(&mut self, uid: &str, pid: u32, started_ns: i64) {
        let life = self.pods.entry(uid.to_owned()).or_default();
        life.starts += 1;
        life.started_ns = started_ns;
        life.refused.clear();
        life.pids.push(pid);
    }

    /// It is observed no more.
    pub(crate) fn ended(&mut self, uid: &str, pid: u32, tally: Tally) {
        let Some(life) = self.pods.get_mut(uid) else { return };
        life.pids.retain(|known| *known != pid);
        life.ended = sum(&life.ended, &tally);
    }

    /// It cannot be recorded.
    pub(crate) fn refused(&mut self, uid: &str, cause: &str) {
        let Some(life) = self.pods.get_mut(uid) else { return };
        cause.clone_into(&mut life.refused);
        cause.clone_into(&mut life.last_error);
    }

    /// Forgets pods that are not observed any more.
    pub(crate) fn retain(&mut self, map: &PodMap) {
        let uids: BTreeSet<&String> = map.pods.keys().collect();
        self.pods.retain(|uid, life| uids.contains(uid) || !life.pids.is_empty());
    }

    /// A report of each pod; `tally` is what is known of a live process, `dropped` how many records of each node the spool
    /// dropped.
    pub(crate) fn reports(
        &self,
        plan: &PodPlan,
        tally: impl Fn(u32) -> Option<Tally>,
        mut dropped: BTreeMap<String, u64>,
    ) -> Vec<PodReport> {
        let report = |pod: &Arc<Pod>| {
            let mut report = self.report(pod, plan, &tally);
            // The pods of a node share its stream: the first one takes it all, so that the sum is right.
            report.records_lost += dropped.remove(&report.node).unwrap_or(0);
            report
        };
        plan.map().pods.values().map(report).collect()
    }

    fn report(&self, pod: &Pod, plan: &PodPlan, tally: &impl Fn(u32) -> Option<Tally>) -> PodReport {
        let nothing = Life::default();
        let life = self.pods.get(&pod.uid).unwrap_or(&nothing);
        let live = life.pids.iter().filter_map(|pid| tally(*pid));
        let mut total = live.fold(life.ended.clone(), |total, tally| sum(&total, &tally));
        if total.peer_id.is_empty() && total.identity_error.is_empty() {
            // What was handed over, or is missing, needs no process to be known.
            match &pod.assignment.identity {
                Source::Given(identity) => identity.peer_id().clone_into(&mut total.peer_id),
                Source::Missing(reason) => total.identity_error.clone_from(reason),
                _ => {}
            }
        }
        let fault = pod.fault.clone().unwrap_or_default();
        let state = match life.pids.first() {
            _ if !fault.is_empty() => PodState::Failed,
            _ if !pod.is_observed() => PodState::Unspecified,
            Some(_) if !pod.assignment.network => PodState::Profiling,
            Some(_) if !life.refused.is_empty() => PodState::Failed,
            Some(_) => PodState::Recording,
            None if plan.has_container(pod) => PodState::WaitingForProcess,
            None => PodState::WaitingForContainer,
        };
        PodReport {
            uid: pod.uid.clone(),
            node: pod.assignment.node.to_string(),
            node_generation: pod.node_generation,
            state: state.into(),
            pid: life.pids.first().copied().unwrap_or(0),
            peer_id: total.peer_id,
            identity_error: total.identity_error,
            messages: total.messages,
            connections_open: total.connections_open,
            bytes_seen: total.bytes_seen,
            bytes_lost: total.bytes_lost,
            records_lost: total.records_lost,
            last_error: if fault.is_empty() { life.last_error.clone() } else { fault },
            process_starts: life.starts,
            process_started_ns: life.started_ns,
            last_record_ns: total.last_record_ns,
        }
    }
}

/// Counts added up; of identities the later one's.
pub(crate) fn sum(earlier: &Tally, later: &Tally) -> Tally {
    let is_told = !later.peer_id.is_empty() || !later.identity_error.is_empty();
    let identity = if is_told { later } else { earlier };
    Tally {
        messages: earlier.messages + later.messages,
        connections_open: earlier.connections_open + later.connections_open,
        bytes_seen: earlier.bytes_seen + later.bytes_seen,
        bytes_lost: earlier.bytes_lost + later.bytes_lost,
        records_lost: earlier.records_lost + later.records_lost,
        last_record_ns: earlier.last_record_ns.max(later.last_record_ns),
        peer_id: identity.peer_id.clone(),
        identity_error: identity.identity_error.clone(),
    }
}

/// Whether a status says something that should not wait for its turn: anything but counts that go on.
pub(crate) fn is_worth_telling(last: &HostStatus, now: &HostStatus) -> bool {
    let without_counts = |status: &HostStatus| HostStatus {
        pods: status.pods.iter().map(significant).collect(),
        spool: None,
        ..status.clone()
    };
    let drops = |status: &HostStatus| status.spool.as_ref().is_some_and(|spool| spool.records_dropped > 0);
    without_counts(last) != without_counts(now) || drops(last) != drops(now)
}

/// Of counts only whether there is anything.
fn significant(pod: &PodReport) -> PodReport {
    PodReport {
        messages: pod.messages.min(1),
        connections_open: 0,
        bytes_seen: pod.bytes_seen.min(1),
        bytes_lost: pod.bytes_lost.min(1),
        records_lost: pod.records_lost.min(1),
        last_record_ns: 0,
        ..pod.clone()
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::ObservedPod;

    use super::*;
    use crate::{
        operator::pods::tests::{pod, snapshot},
        targets::pods::Watch,
    };

    #[test]
    fn what_the_spool_dropped_of_a_node_is_lost_once() {
        let other = ObservedPod { node: "default/other".to_owned(), ..pod("c", 'c') };
        let mut map = PodMap::default();
        map.apply(snapshot(1, vec![pod("a", 'a'), pod("b", 'b'), other]), true).unwrap();
        let mut plan = PodPlan::new(Watch::default());
        plan.set(Arc::new(map));
        let mut ledger = Ledger::default();
        for (uid, pid) in [("a", 1), ("b", 2), ("c", 3)] {
            ledger.started(uid, pid, 0);
        }
        let tally = |pid: u32| Some(Tally { records_lost: pid.into(), ..Tally::default() });
        let lost = |dropped: &[(&str, u64)]| {
            let dropped = dropped.iter().map(|(node, records)| ((*node).to_owned(), *records)).collect();
            let reports = ledger.reports(&plan, tally, dropped);
            reports.into_iter().map(|report| (report.uid, report.records_lost)).collect::<Vec<_>>()
        };
        let of = |a, b, c| vec![("a".to_owned(), a), ("b".to_owned(), b), ("c".to_owned(), c)];
        assert_eq!(lost(&[]), of(1, 2, 3));
        assert_eq!(lost(&[("default/octez", 40), ("default/gone", 500)]), of(41, 2, 3));
        assert_eq!(lost(&[("default/octez", 40), ("default/other", 7)]), of(41, 2, 10));
    }
}
