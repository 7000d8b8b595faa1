//! The plan: which processes are targets, from a configuration file's entries or an operator's pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    ProcessFacts,
    entries::EntryPlan,
    pod_map::PodMap,
    pods::PodPlan,
    tracked::{MatchResult, TrackedProcess},
};
use crate::config::{NodeConfig, Watch};

/// Where the observed nodes are named.
#[derive(Debug)]
pub(crate) enum Plan {
    /// In the configuration file of this machine.
    Entries(EntryPlan),
    /// In the operator's configuration of this host.
    Pods(PodPlan),
}

/// Which executions of programs probes report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecInterest {
    /// None.
    None,
    /// Those of the programs in the watch list.
    Watched,
    /// All.
    All,
}

impl Plan {
    /// The plan of a configuration file.
    pub(crate) fn entries(nodes: &[NodeConfig]) -> Self {
        Self::Entries(EntryPlan::new(nodes))
    }

    /// The plan of an operator, as far as it is known at start.
    pub(crate) fn pods(watch: Watch, map: Arc<PodMap>) -> Self {
        let mut plan = PodPlan::new(watch);
        plan.set(map);
        Self::Pods(plan)
    }

    /// Which executions can make targets.
    pub(crate) fn exec_interest(&self) -> ExecInterest {
        match self {
            Self::Entries(entries) if entries.needs_exec() => ExecInterest::All,
            Self::Entries(_) => ExecInterest::None,
            Self::Pods(_) => ExecInterest::Watched,
        }
    }

    /// Nodes that the plan names.
    pub(crate) fn nodes(&self) -> BTreeSet<String> {
        match self {
            Self::Entries(entries) => entries.nodes(),
            Self::Pods(plan) => plan.map().nodes(),
        }
    }

    /// Whether the kernel captures processes that match the watch list before they are matched here.
    pub(super) fn is_captured_at_exec(&self) -> bool {
        matches!(self, Self::Pods(_))
    }

    /// Matches a process with the plan.
    pub(super) fn evaluate(&mut self, facts: &ProcessFacts, tracked: &BTreeMap<u32, TrackedProcess>) -> MatchResult {
        match self {
            Self::Entries(entries) => entries.evaluate(facts, tracked),
            Self::Pods(pods) => pods.evaluate(facts, tracked),
        }
    }
}
