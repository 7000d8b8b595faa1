//! Targets of one machine: processes that the configuration file's entries describe.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Assignment, ContainerId, Logs, Network, Observe, Owner, ProcessFacts,
    entry_match::{Entry, Names, entry_of},
    identity::Source,
    system::System,
    tracked::{MatchResult, TrackedProcess},
};
use crate::config::NodeConfig;

/// Least time between two requests to Docker because of a process.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// After a slow answer the next request waits this many times its duration.
const REST: u32 = 10;
/// Answers without a container until it is taken for one that no entry names. Docker lists a container only a moment
/// after its first program was executed.
pub(crate) const TRIES: u8 = 3;
/// Most containers and processes that wait for an answer; the regular scan finds the others.
const MAX_REMEMBERED: usize = 4096;

/// The entries, and the node names that were given to their processes.
#[derive(Debug)]
pub(crate) struct EntryPlan {
    entries: Vec<Entry>,
    names: Names,
    questions: Questions,
}

/// Requests to Docker for the containers that entries name.
#[derive(Debug, Default)]
struct Questions {
    /// Time of the next request at the earliest.
    next: Option<Instant>,
    /// Processes in containers that are not known yet.
    waiting: BTreeMap<u32, ContainerId>,
    /// Containers that were missing from answers, and how often.
    missed: BTreeMap<ContainerId, u8>,
}

impl Questions {
    fn is_time(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    fn is_unnamed(&self, container: &ContainerId) -> bool {
        self.missed.get(container).is_some_and(|missed| *missed >= TRIES)
    }

    /// An answer arrived after `took`.
    fn answered(&mut self, now: Instant, took: Duration, is_known: impl Fn(&ContainerId) -> bool) {
        self.next = Some(now + ASK_INTERVAL.max(took * REST));
        if self.missed.len() >= MAX_REMEMBERED {
            self.missed.clear();
        }
        let unknown: BTreeSet<&ContainerId> = self.waiting.values().filter(|container| !is_known(container)).collect();
        for container in unknown {
            let missed = self.missed.entry(container.clone()).or_default();
            *missed = missed.saturating_add(1);
        }
    }
}

/// Whether a container is one that an entry names.
fn is_known(entries: &[Entry], container: &ContainerId) -> bool {
    entries.iter().any(|entry| entry.containers.contains(container))
}

/// What an entry calls its container, if that is not its id.
fn container_name(entry: &Entry) -> Option<&str> {
    entry.config.container.as_deref().filter(|name| ContainerId::parse(name).is_none())
}

impl EntryPlan {
    pub(crate) fn new(nodes: &[NodeConfig]) -> Self {
        Self {
            entries: nodes.iter().cloned().map(Entry::new).collect(),
            names: Names::default(),
            questions: Questions::default(),
        }
    }

    /// Ports to watch in the kernel, with the namespace if the entry names one that exists.
    pub(crate) fn watched_ports(&self) -> BTreeSet<(Option<u32>, u16)> {
        let watched = |entry: &Entry| {
            let port = entry.config.p2p_port?;
            // Until its namespace exists, the port is watched in all.
            Some((entry.netns, port))
        };
        self.entries.iter().filter_map(watched).collect()
    }

    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        self.entries.iter().filter_map(|entry| entry.config.p2p_port).collect()
    }

    /// Nodes of the entries.
    pub(crate) fn nodes(&self) -> BTreeSet<String> {
        self.entries.iter().map(|entry| entry.config.name.clone()).collect()
    }

    /// Whether programs that are executed can be targets.
    pub(crate) fn needs_exec(&self) -> bool {
        self.entries.iter().any(|entry| entry.config.p2p_port.is_none() && entry.config.pid.is_none())
    }

    /// Looks up what the entries name: namespaces, containers.
    pub(crate) fn resolve(&mut self, system: &dyn System) {
        self.resolve_namespaces(system);
        self.resolve_containers(system);
    }

    fn resolve_namespaces(&mut self, system: &dyn System) {
        for entry in &mut self.entries {
            entry.netns = entry.config.netns.as_deref().and_then(|path| system.netns(path));
        }
    }

    fn resolve_containers(&mut self, system: &dyn System) {
        for entry in &mut self.entries {
            let Some(containers) = container_name(entry).map(|name| system.containers(name)) else { continue };
            self.questions.missed.retain(|container, _| !containers.contains(container));
            entry.containers = containers;
        }
    }

    /// Resolves again for a process that matches no entry: namespaces, and containers if its own may have started since
    /// the last answer. If it is too early for a request, [`Self::due`] returns the process later.
    pub(crate) fn resolve_for(&mut self, facts: &ProcessFacts, system: &dyn System, now: Instant) {
        if entry_of(&self.entries, facts).is_some() {
            return;
        }
        self.resolve_namespaces(system);
        let Some(container) = &facts.container else { return };
        let has_names = self.entries.iter().any(|entry| container_name(entry).is_some());
        let is_full = self.questions.waiting.len() >= MAX_REMEMBERED;
        if !has_names || is_full || is_known(&self.entries, container) || self.questions.is_unnamed(container) {
            return;
        }
        self.questions.waiting.insert(facts.pid, container.clone());
        if self.questions.is_time(now) {
            self.ask(system, now);
        }
    }

    fn ask(&mut self, system: &dyn System, now: Instant) {
        let asked = Instant::now();
        self.resolve_containers(system);
        self.questions.answered(now, asked.elapsed(), |container| is_known(&self.entries, container));
    }

    /// Processes to match again because their containers are known by now; sends a request if one is due.
    pub(crate) fn due(&mut self, system: &dyn System, now: Instant) -> Vec<u32> {
        if self.questions.waiting.values().any(|container| !is_known(&self.entries, container))
            && self.questions.is_time(now)
        {
            self.ask(system, now);
        }
        let known = |_: &u32, container: &mut ContainerId| is_known(&self.entries, container);
        let due = self.questions.waiting.extract_if(.., known).map(|(pid, _)| pid).collect();
        let Questions { waiting, missed, .. } = &mut self.questions;
        waiting.retain(|_, container| missed.get(container).is_none_or(|missed| *missed < TRIES));
        due
    }

    pub(crate) fn evaluate(&mut self, facts: &ProcessFacts, tracked: &BTreeMap<u32, TrackedProcess>) -> MatchResult {
        let found = entry_of(&self.entries, facts);
        let Some((index, entry)) = found.and_then(|index| Some((index, self.entries.get(index)?.config.clone())))
        else {
            return MatchResult::Ignore;
        };
        let is_live = |netns: u32| {
            tracked.values().any(|process| {
                process.owner() == Some(&Owner::Entry(index))
                    && process.facts.netns == netns
                    && !process.exit.has_exited()
            })
        };
        let node = self.names.name(index, &entry, facts.netns, is_live);
        let label = match &facts.container {
            Some(container) => format!("pid {} in {}", facts.pid, container.short()),
            None => format!("pid {}", facts.pid),
        };
        let assignment = Assignment {
            node: node.into(),
            label: label.into(),
            p2p_port: entry.p2p_port,
            identity: entry.identity.map_or(Source::Detect, Source::Path),
            observe: Observe {
                network: (!entry.is_network_disabled).then_some(Network { store: entry.store }),
                memory: entry.memory,
                logs: entry.logs.map(|logs| Logs { redact: logs.redact, pod_dir: None }),
                trace: entry.trace.map(Arc::new),
                trace_node: None,
            },
        };
        MatchResult::Observe(Owner::Entry(index), assignment)
    }

    /// Whether some entry has no live process.
    pub(crate) fn is_incomplete(&self, tracked: &BTreeMap<u32, TrackedProcess>) -> bool {
        let with_process: BTreeSet<&Owner> = tracked.values().filter_map(TrackedProcess::owner).collect();
        !(0..self.entries.len()).all(|index| with_process.contains(&Owner::Entry(index)))
    }
}
