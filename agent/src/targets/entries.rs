//! Targets of one machine: processes that the configuration file's entries describe.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Assignment, Judgement, Live, Owner, Standing, System,
    cgroup::ContainerId,
    matching::{Entry, Names, ProcessFacts, entry_of},
};
use crate::{config::NodeConfig, identity::Source};

/// The entries, and the names they gave.
#[derive(Debug)]
pub(crate) struct EntryPlan {
    entries: Vec<Entry>,
    names: Names,
}

impl EntryPlan {
    pub(crate) fn new(nodes: &[NodeConfig]) -> Self {
        Self { entries: nodes.iter().cloned().map(Entry::new).collect(), names: Names::default() }
    }

    /// Ports to watch in the kernel, with the namespace if the entry names one that is there.
    pub(crate) fn watched_ports(&self) -> BTreeSet<(Option<u32>, u16)> {
        let watched = |entry: &Entry| {
            let port = entry.config.p2p_port?;
            // Before its namespace is there, the port is watched everywhere.
            Some((entry.netns, port))
        };
        self.entries.iter().filter_map(watched).collect()
    }

    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        self.entries.iter().filter_map(|entry| entry.config.p2p_port).collect()
    }

    /// Whether programs that are executed can be targets.
    pub(crate) fn needs_exec(&self) -> bool {
        self.entries.iter().any(|entry| entry.config.p2p_port.is_none() && entry.config.pid.is_none())
    }

    /// Looks up what the entries name: namespaces, containers.
    pub(crate) fn resolve(&mut self, system: &dyn System) {
        for entry in &mut self.entries {
            entry.netns = entry.config.netns.as_deref().and_then(|path| system.netns(path));
            if let Some(name) = entry.config.container.as_deref().filter(|name| ContainerId::parse(name).is_none()) {
                entry.containers = system.containers(name);
            }
        }
    }

    /// Once more with the containers' names looked up, if they may matter.
    pub(crate) fn resolve_for(&mut self, facts: &ProcessFacts, system: &dyn System) {
        let by_name = |entry: &Entry| {
            entry.config.container.as_deref().is_some_and(|name| ContainerId::parse(name).is_none())
                || entry.config.netns.is_some()
        };
        if entry_of(&self.entries, facts).is_none() && self.entries.iter().any(by_name) {
            self.resolve(system);
        }
    }

    pub(crate) fn judge(&mut self, facts: &ProcessFacts, live: &BTreeMap<u32, Live>) -> Judgement {
        let found = entry_of(&self.entries, facts);
        let Some((index, entry)) = found.and_then(|index| Some((index, self.entries.get(index)?.config.clone())))
        else {
            return Judgement::Ignore;
        };
        let is_live = |netns: u32| {
            live.values().any(|live| {
                matches!(live.standing, Standing::Observed(Owner::Entry(of), _) if of == index)
                    && live.facts.netns == netns
                    && !live.life.is_over()
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
            store: entry.store,
            identity: entry.identity.map_or(Source::Habit, Source::Path),
            network: true,
            memory: entry.memory,
        };
        Judgement::Observe(Owner::Entry(index), assignment)
    }

    /// Whether some entry has no live process.
    pub(crate) fn is_incomplete(&self, live: &BTreeMap<u32, Live>) -> bool {
        let has_process = |index: usize| {
            live.values().any(|live| matches!(live.standing, Standing::Observed(Owner::Entry(of), _) if of == index))
        };
        !(0..self.entries.len()).all(has_process)
    }
}
