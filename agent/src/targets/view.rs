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
    /// How many were found since the agent started.
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
