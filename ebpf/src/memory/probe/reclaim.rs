//! Frees nodes of the call tree and modules that nothing refers to any more, and divides the tree among the targets.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use super::super::abi::Globals;
use super::super::programs;
use super::super::reading::ModuleId;
use super::MemoryProbe;
use crate::error::Error;

/// Readings between two searches for idle nodes: the programs have to unwind each stack anew after it.
const MIN_READINGS: u32 = 10;
/// Number of nodes, and of modules, from which on idle ones are searched for.
const MIN_NODES: u32 = 1024;
const MIN_MODULES: usize = 64;
/// Least share of a target, in nodes.
const MIN_SHARE: u32 = 64;

/// Progress of freeing the nodes of removed targets: mark and sweep. A program that was running when its target was removed
/// may still count a page, so each step happens at another reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfRemoved {
    /// Nothing to free.
    Idle,
    /// Removed targets have nodes.
    Pending,
    /// The nodes are marked as dead.
    Marked,
}

/// What is being freed.
#[derive(Debug)]
pub(super) struct Reclaiming {
    pub(super) of_removed: OfRemoved,
    /// Idle nodes of running targets whose edges were removed at the last reading.
    retired: Vec<u32>,
    /// Readings since the last search for idle nodes.
    readings: u32,
    /// Number of nodes in use, and of modules, at which they are searched for again.
    nodes_at: u32,
    modules_at: usize,
}

impl Reclaiming {
    pub(super) fn new(nodes: u32) -> Self {
        let nodes_at = MIN_NODES.min(nodes / 2);
        Self { of_removed: OfRemoved::Idle, retired: Vec::new(), readings: 0, nodes_at, modules_at: MIN_MODULES }
    }
}

impl MemoryProbe {
    /// Advances the freeing of nodes by one step.
    pub(super) fn reclaim_nodes(&mut self) -> Result<(), Error> {
        let retired = std::mem::take(&mut self.reclaiming.retired);
        if !retired.is_empty() {
            let idle: HashSet<u32> = self.tree.idle_nodes(&self.roots_in_use(), self.last_node()).into_iter().collect();
            let free: Vec<u32> = retired.into_iter().filter(|number| idle.contains(number)).collect();
            self.tree.free_all(&free);
            self.reuse(&free);
        }
        self.reclaiming.of_removed = match self.reclaiming.of_removed {
            OfRemoved::Idle => return Ok(()),
            OfRemoved::Pending => {
                // With the nodes that were created since the last reading.
                self.tree.update(self.last_node());
                if self.tree.mark_dead() > 0 { OfRemoved::Marked } else { OfRemoved::Idle }
            }
            OfRemoved::Marked => {
                programs::sweep(&mut self.bpf, self.max_pfn)?;
                let cleared = self.tree.clear_dead();
                for (_, edge) in cleared.iter().filter(|(_, edge)| edge.parent != 0) {
                    // An error means that there is none: another CPU was first when the node was created.
                    let _ = self.edges.remove(edge);
                }
                // Invalidates the edge caches of the CPUs before an id is reused.
                self.globals.fetch_next(0, offset_of!(Globals, edge_generation));
                let numbers: Vec<u32> = cleared.into_iter().map(|(number, _)| number).collect();
                self.reuse(&numbers);
                OfRemoved::Idle
            }
        };
        Ok(())
    }

    fn reuse(&mut self, numbers: &[u32]) {
        for number in numbers {
            // The queue has the capacity of the tree.
            let _ = self.free_nodes.push(number, 0);
        }
    }

    /// Roots that nodes may be added to, or that are read for their pages.
    fn roots_in_use(&self) -> HashSet<u32> {
        let mut roots = self.address_spaces.roots();
        let preexisting = self.processes.values().filter_map(|process| process.preexisting_roots.as_ref()).flatten();
        roots.extend(preexisting.map(|(root, _)| *root));
        roots
    }

    /// Divides the tree among the running targets; one share is left for the next one.
    pub(super) fn share_nodes(&self) -> u32 {
        let running = self.processes.values().filter(|process| process.alive).count();
        let share = (self.nodes / u32::try_from(running + 1).unwrap_or(u32::MAX)).max(MIN_SHARE);
        if let Some(node_share) = self.globals.atomic(0, offset_of!(Globals, node_share)) {
            node_share.store(share, Ordering::Relaxed);
        }
        share
    }

    /// Corrects what the programs count, and searches for idle nodes if there are many, or if a target has nearly its share.
    /// They are freed at the next reading.
    pub(super) fn retire_nodes(&mut self) {
        let share = self.share_nodes();
        let nodes = self.tree.nodes_by_target();
        let mut is_near = false;
        for (target, process) in self.processes.iter().filter(|(_, process)| process.alive) {
            let count = nodes.get(target).copied().unwrap_or(0);
            is_near |= count >= share / 4 * 3;
            self.address_spaces.set_nodes(process.mm, count);
        }
        let used: u32 = nodes.values().sum();
        self.reclaiming.readings = self.reclaiming.readings.saturating_add(1);
        if self.reclaiming.readings < MIN_READINGS || (used < self.reclaiming.nodes_at && !is_near) {
            return;
        }
        self.reclaiming.readings = 0;
        let idle = self.tree.idle_nodes(&self.roots_in_use(), self.last_node());
        let left = used.saturating_sub(u32::try_from(idle.len()).unwrap_or(u32::MAX));
        self.reclaiming.nodes_at = left.saturating_mul(2).max(MIN_NODES).min(self.nodes / 2);
        if idle.is_empty() {
            return;
        }
        for edge in self.tree.edges(&idle) {
            // An error means that there is none: another CPU was first when the node was created.
            let _ = self.edges.remove(&edge);
        }
        // Invalidates the edges and stacks that the CPUs have cached.
        self.globals.fetch_next(0, offset_of!(Globals, edge_generation));
        self.address_spaces.renew_generations();
        self.reclaiming.retired = idle;
    }

    /// Removes the modules that no process maps and no call is in, if there are many; returns those of earlier readings.
    pub(super) fn remove_modules(&mut self) -> Vec<ModuleId> {
        if self.modules.held() < self.reclaiming.modules_at {
            return Vec::new();
        }
        let mut in_use = self.tree.modules();
        let mapped = self.processes.values().flat_map(|process| process.mappings.iter());
        let read = self.code_readings.values().flat_map(|reading| &reading.resolved);
        in_use.extend(mapped.chain(read).filter_map(|mapping| mapping.module));
        let mut removed = self.modules.remove_unused(&in_use);
        self.reclaiming.modules_at = (2 * self.modules.held()).max(MIN_MODULES);
        removed.retain(|module| *module < self.modules_reported);
        removed
    }
}
