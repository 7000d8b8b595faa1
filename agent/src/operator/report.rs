//! The agent's reports of pods, as messages of the config stream. Pure.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_proto::v1::{HostStatus, PodReport, PodState};

use crate::{
    figures::{Tally, TargetTallies},
    targets::{
        PodProcesses, TargetsView,
        identity::Source,
        pod_map::{Pod, PodMap},
    },
};

/// State of the pods between two reports.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pods: BTreeMap<String, PodHistory>,
}

/// The history of one pod.
#[derive(Debug, Default)]
struct PodHistory {
    /// Sums over processes that ended.
    ended: Tally,
    /// Why the process with this number of starts cannot be recorded.
    refused: Option<(u32, String)>,
    last_error: String,
}

impl Ledger {
    /// A report of each configured pod, and for each of its nodes if it has two. `dropped` is how many records of each node the spool dropped.
    pub(crate) fn reports(
        &mut self,
        view: &TargetsView,
        tallies: &mut TargetTallies,
        mut dropped: BTreeMap<String, u64>,
    ) -> Vec<PodReport> {
        for (uid, tally) in tallies.ended.drain(..) {
            let history = self.pods.entry(uid).or_default();
            history.ended = history.ended.sum(&tally);
        }
        for (uid, cause) in tallies.refused.drain(..) {
            let starts = view.pods.get(&uid).map_or(0, |pod| pod.starts);
            let history = self.pods.entry(uid).or_default();
            history.last_error.clone_from(&cause);
            history.refused = Some((starts, cause));
        }
        let Some(map) = &view.map else { return Vec::new() };
        self.retain(map, tallies);
        let mut reports = Vec::new();
        for pod in map.pods.values() {
            let report = self.report(pod, view, tallies);
            let of_trace = pod.trace_node().map(|(node, generation)| trace_report(&report, node, generation));
            reports.extend([report].into_iter().chain(of_trace));
        }
        for report in &mut reports {
            // The pods of a node share its stream: the first one takes it all, so that the sum is right.
            report.records_lost += dropped.remove(&report.node).unwrap_or(0);
        }
        reports
    }

    /// Forgets pods that are neither configured nor observed.
    fn retain(&mut self, map: &PodMap, tallies: &TargetTallies) {
        let live: BTreeSet<&String> = tallies.live.values().filter_map(|live| live.pod.as_ref()).collect();
        self.pods.retain(|uid, _| map.pods.contains_key(uid) || live.contains(uid));
    }

    fn report(&self, pod: &Pod, view: &TargetsView, tallies: &TargetTallies) -> PodReport {
        let (no_history, no_processes) = (PodHistory::default(), PodProcesses::default());
        let history = self.pods.get(&pod.uid).unwrap_or(&no_history);
        let processes = view.pods.get(&pod.uid).unwrap_or(&no_processes);
        let live = tallies.live.values().filter(|live| live.pod.as_deref() == Some(&*pod.uid));
        let mut total = live.fold(history.ended.clone(), |total, live| total.sum(&live.tally));
        if total.peer_id.is_empty() && total.identity_error.is_empty() {
            // An identity from the configuration, or its absence, is known without a process.
            match &pod.assignment.identity {
                Source::Given(identity) => identity.peer_id().clone_into(&mut total.peer_id),
                Source::Missing(reason) => total.identity_error.clone_from(reason),
                _ => {}
            }
        }
        let is_refused = history.refused.as_ref().is_some_and(|(starts, _)| *starts >= processes.starts);
        let fault = pod.fault.clone().unwrap_or_default();
        let last_error = [&fault, &history.last_error].into_iter().find(|error| !error.is_empty()).cloned();
        let state = match processes.pids.first() {
            _ if !fault.is_empty() => PodState::Failed,
            _ if !pod.is_observed() => PodState::Unspecified,
            Some(_) if pod.assignment.observe.network.is_none() => PodState::Profiling,
            Some(_) if is_refused => PodState::Failed,
            Some(_) => PodState::Recording,
            None if view.with_container.contains(&pod.uid) => PodState::WaitingForProcess,
            None => PodState::WaitingForContainer,
        };
        PodReport {
            uid: pod.uid.clone(),
            node: pod.assignment.node.to_string(),
            node_generation: pod.node_generation,
            state: state.into(),
            pid: processes.pids.first().copied().unwrap_or(0),
            peer_id: total.peer_id,
            identity_error: total.identity_error,
            messages: total.messages,
            connections_open: total.connections_open,
            bytes_seen: total.bytes_seen,
            bytes_lost: total.bytes_lost,
            records_lost: total.records_lost,
            last_error: last_error
                .or_else(|| pod.logs_fault.clone())
                .or_else(|| pod.trace_fault.clone())
                .unwrap_or_default(),
            process_starts: processes.starts,
            process_started_ns: processes.started_ns,
            last_record_ns: total.last_record_ns,
            trace_events: total.trace_events,
            trace_events_lost: total.trace_events_lost,
            trace_attached: total.trace_attached,
            trace_error: pod.trace_fault.clone().unwrap_or(total.trace_error),
            latency_functions: total.latency_functions,
            latency_error: total.latency_error,
        }
    }
}

/// The report on a pod of a `TezosNode` for the node of its `NodeTrace`: of its process and its tracepoints.
fn trace_report(report: &PodReport, node: &str, generation: i64) -> PodReport {
    let state = match report.state() {
        // What prevents the recording of messages does not matter here.
        PodState::Recording | PodState::Failed if report.pid != 0 => PodState::Profiling,
        other => other,
    };
    PodReport {
        uid: report.uid.clone(),
        node: node.to_owned(),
        node_generation: generation,
        state: state.into(),
        pid: report.pid,
        process_starts: report.process_starts,
        process_started_ns: report.process_started_ns,
        trace_events: report.trace_events,
        trace_events_lost: report.trace_events_lost,
        trace_attached: report.trace_attached,
        trace_error: report.trace_error.clone(),
        latency_functions: report.latency_functions,
        latency_error: report.latency_error.clone(),
        ..PodReport::default()
    }
}

/// Whether a status has a change that must not wait for the regular interval: anything but counters that advance.
pub(crate) fn is_significant_change(last: &HostStatus, now: &HostStatus) -> bool {
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
        trace_events: pod.trace_events.min(1),
        trace_events_lost: pod.trace_events_lost.min(1),
        last_record_ns: 0,
        ..pod.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chainscope_proto::v1::{LogsOptions, ObservedPod, TraceOptions};

    use super::*;
    use crate::{
        figures::LiveTally,
        targets::pod_map::tests::{pod, snapshot},
    };

    fn three_pods() -> TargetsView {
        let other = ObservedPod { node: "default/other".to_owned(), ..pod("c", 'c') };
        let mut map = PodMap::default();
        map.apply(snapshot(1, vec![pod("a", 'a'), pod("b", 'b'), other]), true).unwrap();
        let mut view = TargetsView { map: Some(Arc::new(map)), ..TargetsView::default() };
        for (uid, pid) in [("a", 1), ("b", 2), ("c", 3)] {
            view.started(uid, pid, 0);
        }
        view
    }

    fn tallies() -> TargetTallies {
        let live = [("a", 1), ("b", 2), ("c", 3)].map(|(uid, pid)| {
            let tally = Tally { records_lost: pid.into(), ..Tally::default() };
            (pid, LiveTally { node: "n".into(), pod: Some(uid.to_owned()), tally })
        });
        TargetTallies { live: live.into(), ..TargetTallies::default() }
    }

    #[test]
    fn a_fault_of_the_logs_is_reported_and_prevents_nothing_else() {
        let logs = LogsOptions { enabled: true, redact: vec!["(".to_owned()] };
        let mut map = PodMap::default();
        map.apply(snapshot(1, vec![ObservedPod { logs: Some(logs), ..pod("a", 'a') }]), true).unwrap();
        let view = TargetsView { map: Some(Arc::new(map)), ..TargetsView::default() };
        let report = Ledger::default().reports(&view, &mut TargetTallies::default(), BTreeMap::new()).remove(0);
        assert_eq!(report.state(), PodState::WaitingForContainer);
        assert!(report.last_error.starts_with("no log messages are recorded: invalid pattern"), "{report:?}");
    }

    #[test]
    fn a_pod_of_two_nodes_has_a_report_for_each() {
        let trace = TraceOptions { node: "default/trace:t".to_owned(), node_generation: 7, ..TraceOptions::default() };
        let both = ObservedPod { trace: Some(trace.clone()), ..pod("a", 'a') };
        let alone = ObservedPod { node: trace.node.clone(), trace: Some(trace), ..pod("b", 'b') };
        let mut map = PodMap::default();
        map.apply(snapshot(1, vec![both, alone]), true).unwrap();
        assert!(map.nodes().contains("default/trace:t") && map.nodes().contains("default/octez"));
        let mut view = TargetsView { map: Some(Arc::new(map)), ..TargetsView::default() };
        view.started("a", 1, 5);
        let refused = vec![("a".to_owned(), "map full".to_owned())];
        let mut tallies = TargetTallies { refused, ..tallies() };
        let dropped = BTreeMap::from([("default/trace:t".to_owned(), 9)]);
        let reports = Ledger::default().reports(&view, &mut tallies, dropped);
        let summary = |report: &PodReport| {
            (report.uid.clone(), report.node.clone(), report.state(), report.pid, report.records_lost)
        };
        let expected = [
            ("a", "default/octez", PodState::Failed, 1, 1),
            ("a", "default/trace:t", PodState::Profiling, 1, 9),
            ("b", "default/trace:t", PodState::WaitingForContainer, 0, 2),
        ];
        let expected =
            expected.map(|(uid, node, state, pid, lost)| (uid.to_owned(), node.to_owned(), state, pid, lost));
        assert_eq!(reports.iter().map(summary).collect::<Vec<_>>(), expected);
        assert_eq!((reports[1].node_generation, &*reports[1].last_error), (7, ""));
    }

    #[test]
    fn what_the_spool_dropped_of_a_node_is_lost_once() {
        let view = three_pods();
        let lost = |dropped: &[(&str, u64)]| {
            let dropped = dropped.iter().map(|(node, records)| ((*node).to_owned(), *records)).collect();
            let reports = Ledger::default().reports(&view, &mut tallies(), dropped);
            reports.into_iter().map(|report| (report.uid, report.records_lost)).collect::<Vec<_>>()
        };
        let of = |a, b, c| vec![("a".to_owned(), a), ("b".to_owned(), b), ("c".to_owned(), c)];
        assert_eq!(lost(&[]), of(1, 2, 3));
        assert_eq!(lost(&[("default/octez", 40), ("default/gone", 500)]), of(41, 2, 3));
        assert_eq!(lost(&[("default/octez", 40), ("default/other", 7)]), of(41, 2, 10));
    }

    #[test]
    fn a_refusal_holds_until_the_next_process_and_ended_counts_stay() {
        let mut view = three_pods();
        let mut ledger = Ledger::default();
        let mut report = |view: &TargetsView, mut tallies: TargetTallies| {
            ledger.reports(view, &mut tallies, BTreeMap::new()).into_iter().next().unwrap()
        };
        let refused = vec![("a".to_owned(), "map full".to_owned())];
        let first = report(&view, TargetTallies { refused, ..tallies() });
        assert_eq!((first.state(), first.last_error.as_str()), (PodState::Failed, "map full"));
        assert_eq!(report(&view, tallies()).state(), PodState::Failed);
        view.ended(1);
        let ended = vec![("a".to_owned(), Tally { messages: 7, ..Tally::default() })];
        report(&view, TargetTallies { ended, ..tallies() });
        view.started("a", 9, 5);
        let next = report(&view, tallies());
        assert_eq!((next.state(), next.messages, next.pid, next.process_starts), (PodState::Recording, 7, 9, 2));
    }
}
