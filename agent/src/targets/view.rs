//! What discovery shows to reports: the plan in use and the processes of each pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::pod_map::PodMap;

/// The targets at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct TargetsView {
    /// Counts the changes of targets and plan: a report is due when it differs.
    pub(crate) version: u64,
    /// Number of the pod map in use, over all streams of the operator.
    pub(crate) serial: u64,
    /// The operator's configuration; none without an operator.
    pub(crate) map: Option<Arc<PodMap>>,
    /// Pods of whose container a process was seen, by uid.
    pub(crate) with_container: BTreeSet<String>,
    /// By pod uid.
    pub(crate) pods: BTreeMap<String, PodProcesses>,
    /// Nodes that records are expected of.
    pub(crate) nodes: BTreeSet<String>,
}

/// The observed processes of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodProcesses {
    /// Those that run, in the order in which they were found.
    pub(crate) pids: Vec<u32>,
    /// How many were found since the agent started. One that the kernel captures only after a refusal counts twice.
    pub(crate) starts: u32,
    /// When the newest one started, nanoseconds since 1970.
    pub(crate) started_ns: i64,
}

impl TargetsView {
    /// A process of a pod begins to be observed.
    pub(crate) fn started(&mut self, uid: &str, pid: u32, started_ns: i64) {
        let pod = self.pods.entry(uid.to_owned()).or_default();
        // The number of a process whose exit was not noticed yet.
        pod.pids.retain(|known| *known != pid);
        pod.pids.push(pid);
        pod.starts += 1;
        pod.started_ns = started_ns;
    }

    /// The kernel captures a process that it refused before. Counts as a start: a refusal holds until the next one.
    pub(crate) fn captured(&mut self, pid: u32) {
        for pod in self.pods.values_mut().filter(|pod| pod.pids.contains(&pid)) {
            pod.starts += 1;
        }
    }

    /// A process is observed no more.
    pub(crate) fn ended(&mut self, pid: u32) {
        for pod in self.pods.values_mut() {
            pod.pids.retain(|known| *known != pid);
        }
    }

    /// Forgets pods that are neither configured nor observed.
    pub(crate) fn prune(&mut self) {
        if let Some(map) = &self.map {
            self.pods.retain(|uid, pod| map.pods.contains_key(uid) || !pod.pids.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::PodState;

    use super::*;
    use crate::{
        figures::TargetTallies,
        operator::report::Ledger,
        targets::pod_map::tests::{UID, pod, snapshot},
    };

    #[test]
    fn a_pod_is_recording_again_when_its_refused_process_is_captured() {
        let mut map = PodMap::default();
        map.apply(snapshot(1, vec![pod(UID, 'a')]), true).unwrap();
        let mut view = TargetsView { map: Some(Arc::new(map)), ..TargetsView::default() };
        view.started(UID, 7, 5);
        let mut ledger = Ledger::default();
        let mut state = |view: &TargetsView, refused: &[(String, String)]| {
            let mut tallies = TargetTallies { refused: refused.to_vec(), ..TargetTallies::default() };
            ledger.reports(view, &mut tallies, BTreeMap::new()).remove(0).state()
        };
        assert_eq!(state(&view, &[(UID.to_owned(), "table full".to_owned())]), PodState::Failed);
        view.captured(8);
        assert_eq!(state(&view, &[]), PodState::Failed);
        view.captured(7);
        assert_eq!(state(&view, &[]), PodState::Recording);
    }
}
