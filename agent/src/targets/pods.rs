//! Targets of a cluster: processes in containers of pods that the operator names. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Judgement, Live, Owner, Place, Standing, matching::ProcessFacts};
use crate::operator::pods::{Pod, PodMap};

/// What is waited for in pods before anything is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// File names of programs.
    pub programs: BTreeSet<String>,
    /// Ports on which such programs listen for peers.
    pub ports: BTreeSet<u16>,
    /// How long a process is captured that nobody configured.
    pub hold: Duration,
}

impl Default for Watch {
    /// As in the charts that run Octez: `octez-node`, 9732, 60 seconds.
    fn default() -> Self {
        Self {
            programs: BTreeSet::from(["octez-node".to_owned()]),
            ports: BTreeSet::from([9732]),
            hold: Duration::from_secs(60),
        }
    }
}

/// The pods, and what is waited for.
#[derive(Debug)]
pub(crate) struct PodPlan {
    watch: Watch,
    map: Arc<PodMap>,
    /// Where the last look around, or an execution since, saw a process.
    seen: HashSet<Place>,
    /// Until when pods are held whose identity the operator has yet to hand over again: their sessions could not be gone
    /// on with otherwise.
    patience: Option<Instant>,
}

impl PodPlan {
    pub(crate) fn new(watch: Watch) -> Self {
        let patience = Some(Instant::now() + watch.hold);
        Self { watch, map: Arc::default(), seen: HashSet::new(), patience }
    }

    pub(crate) fn set(&mut self, map: Arc<PodMap>) {
        self.map = map;
    }

    /// Ports on which a process that begins to listen is looked at.
    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        let configured = self.map.pods.values().filter_map(|pod| pod.assignment.p2p_port);
        configured.chain(self.watch.ports.iter().copied()).collect()
    }

    /// Programs whose execution is looked at.
    pub(crate) fn programs(&self) -> BTreeSet<String> {
        let configured = self.map.pods.values().map(|pod| pod.process.clone()).filter(|name| !name.is_empty());
        configured.chain(self.watch.programs.iter().cloned()).collect()
    }

    pub(crate) fn judge(&mut self, facts: &ProcessFacts, live: &BTreeMap<u32, Live>) -> Judgement {
        let Some(place) = &facts.place else { return Judgement::Ignore };
        self.seen.insert(place.clone());
        if let Some(pod) = self.map.pod_at(place) {
            let is_meant =
                pod.is_observed() && pod.fault.is_none() && facts.is_program(&pod.process) && !is_helper(facts, live);
            return match is_meant {
                true if pod.assignment.network && pod.is_waiting && self.patience.is_some() => Judgement::Hold,
                true => Judgement::Observe(Owner::Pod(pod.uid.clone()), pod.assignment.clone()),
                false => Judgement::Ignore,
            };
        }
        let is_known = self.programs().iter().any(|name| facts.is_program(name))
            || facts.listens.iter().any(|port| self.ports().contains(port));
        // Also in a container that is not among a configured pod's yet: its id comes a moment later.
        if is_known && !is_helper(facts, live) { Judgement::Hold } else { Judgement::Ignore }
    }

    /// Whether the operator was waited for long enough, just now.
    pub(crate) fn loses_patience(&mut self, now: Instant) -> bool {
        self.patience.take_if(|end| *end <= now).is_some()
    }

    /// A look around begins.
    pub(crate) fn forget_containers(&mut self) {
        self.seen.clear();
    }

    pub(crate) fn saw(&mut self, facts: &ProcessFacts) {
        self.seen.extend(facts.place.clone());
    }

    /// Whether a process of the pod's container was seen.
    pub(crate) fn has_container(&self, pod: &Pod) -> bool {
        self.seen.iter().any(|place| self.map.pod_at(place).is_some_and(|at| at.uid == pod.uid))
    }

    /// Whether some pod has no process yet.
    pub(crate) fn is_incomplete(&self, live: &BTreeMap<u32, Live>) -> bool {
        let has_process = |pod: &Pod| live.values().any(|live| live.is_of(&pod.uid));
        self.map.pods.values().any(|pod| pod.is_observed() && pod.fault.is_none() && !has_process(pod))
    }

    pub(crate) fn hold(&self) -> Duration {
        self.watch.hold
    }

    pub(crate) fn map(&self) -> &Arc<PodMap> {
        &self.map
    }
}

/// A node executes itself for a part of its work (`octez-validator` has the node's executable): the parent is the node.
fn is_helper(facts: &ProcessFacts, live: &BTreeMap<u32, Live>) -> bool {
    live.get(&facts.parent).is_some_and(|parent| {
        !matches!(parent.standing, Standing::Released)
            && parent.facts.start <= facts.start
            && parent.facts.place.as_ref().map(|place| &place.container)
                == facts.place.as_ref().map(|place| &place.container)
    })
}

#[cfg(test)]
mod tests;
