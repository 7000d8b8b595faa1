//! Targets of a cluster: processes in containers of the pods in the operator's configuration. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    ContainerLocation, Owner, ProcessFacts,
    pod_map::{Pod, PodMap},
    tracked::{MatchResult, TargetState, TrackedProcess},
};
use crate::config::Watch;

/// The configured pods, and the processes that are held until their pod is configured.
#[derive(Debug)]
pub(crate) struct PodPlan {
    watch: Watch,
    map: Arc<PodMap>,
    /// Containers in which the last scan, or a match since, saw a process.
    seen: BTreeSet<ContainerLocation>,
    /// Until when pods are held whose identity comes from the operator and has not arrived since the agent started:
    /// without the identity their sessions could not be resumed.
    waiting_until: Option<Instant>,
}

impl PodPlan {
    pub(crate) fn new(watch: Watch) -> Self {
        let waiting_until = Some(Instant::now() + watch.hold);
        Self { watch, map: Arc::default(), seen: BTreeSet::new(), waiting_until }
    }

    pub(crate) fn set(&mut self, map: Arc<PodMap>) {
        self.map = map;
    }

    /// Ports on which a process that begins to listen is matched.
    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        let configured = self.map.pods.values().filter_map(|pod| pod.assignment.p2p_port);
        configured.chain(self.watch.ports.iter().copied()).collect()
    }

    /// File names of executables whose execution is matched.
    pub(crate) fn process_names(&self) -> BTreeSet<String> {
        let configured = self.map.pods.values().map(|pod| pod.process.clone()).filter(|name| !name.is_empty());
        configured.chain(self.watch.process_names.iter().cloned()).collect()
    }

    pub(crate) fn evaluate(&mut self, facts: &ProcessFacts, tracked: &BTreeMap<u32, TrackedProcess>) -> MatchResult {
        let Some(location) = &facts.location else { return MatchResult::Ignore };
        self.seen.insert(location.clone());
        if let Some(pod) = self.map.pod_at(location) {
            let is_target = pod.is_observed()
                && pod.fault.is_none()
                && facts.is_program(&pod.process)
                && !is_helper(facts, tracked);
            return match is_target {
                true if pod.assignment.observe.network.is_some()
                    && pod.awaits_identity
                    && self.waiting_until.is_some() =>
                {
                    MatchResult::Hold
                }
                true => MatchResult::Observe(Owner::Pod(pod.uid.clone()), pod.assignment.clone()),
                false => MatchResult::Ignore,
            };
        }
        let is_known = self.process_names().iter().any(|name| facts.is_program(name))
            || facts.listens.iter().any(|local| self.ports().contains(&local.port()));
        // Also in a container that no configured pod has yet: its id arrives a moment later.
        if is_known && !is_helper(facts, tracked) { MatchResult::Hold } else { MatchResult::Ignore }
    }

    /// Whether the wait for the operator's identities ends just now.
    pub(crate) fn stops_waiting(&mut self, now: Instant) -> bool {
        self.waiting_until.take_if(|end| *end <= now).is_some()
    }

    /// A scan begins.
    pub(crate) fn forget_containers(&mut self) {
        self.seen.clear();
    }

    pub(crate) fn saw(&mut self, facts: &ProcessFacts) {
        self.seen.extend(facts.location.clone());
    }

    /// Pods of whose container a process was seen, by uid.
    pub(crate) fn pods_with_container(&self) -> BTreeSet<String> {
        self.seen.iter().filter_map(|location| self.map.pod_at(location)).map(|pod| pod.uid.clone()).collect()
    }

    /// Whether some pod has no process yet.
    pub(crate) fn is_incomplete(&self, tracked: &BTreeMap<u32, TrackedProcess>) -> bool {
        let with_process: BTreeSet<&str> =
            tracked.values().filter_map(TrackedProcess::owner).filter_map(Owner::pod).collect();
        let has_process = |pod: &Pod| with_process.contains(pod.uid.as_str());
        self.map.pods.values().any(|pod| pod.is_observed() && pod.fault.is_none() && !has_process(pod))
    }

    pub(crate) fn hold(&self) -> Duration {
        self.watch.hold
    }

    pub(crate) fn map(&self) -> &Arc<PodMap> {
        &self.map
    }
}

/// Whether the process is a child that the node executed from its own executable, as `octez-validator` is: the parent is
/// the target.
fn is_helper(facts: &ProcessFacts, tracked: &BTreeMap<u32, TrackedProcess>) -> bool {
    tracked.get(&facts.parent).is_some_and(|parent| {
        !matches!(parent.state, TargetState::Released)
            && parent.facts.start <= facts.start
            && parent.facts.location.as_ref().map(|location| &location.container)
                == facts.location.as_ref().map(|location| &location.container)
    })
}

#[cfg(test)]
mod tests;
