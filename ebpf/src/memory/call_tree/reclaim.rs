//! Nodes of running targets that hold no pages any more.
//!
//! A process may execute code at ever new addresses: generated code, libraries that are loaded and unloaded. The calls that hold
//! no pages are removed in two steps, at two readings, since a program that runs during the first may still use them:
//!
//! ```text
//!   idle nodes ─▶ their edges are removed, caches of the programs are invalidated ─▶ those that are still idle are freed
//! ```

use std::collections::{BTreeMap, HashSet};

use super::super::abi::{Edge, RawNode, TREE_FULL, UNUSED_NODE};
use super::super::reading::{Frame, ModuleId, NodeId, TargetId};
use super::CallTree;

impl CallTree {
    /// Nodes without pages whose callees have none either. `roots` are in use also without pages. `last` is the greatest id in
    /// the kernel tree.
    pub(crate) fn idle_nodes(&self, roots: &HashSet<u32>, last: u32) -> Vec<u32> {
        let last = last.min(self.raw.length().saturating_sub(1));
        let mut is_needed = vec![false; last as usize + 1];
        for number in 1..=last {
            let Some(raw) = self.raw.get(number) else { continue };
            if !self.holds_pages(number, &raw, roots) {
                continue;
            }
            // And its callers.
            let mut next = number;
            while let Some(needed @ false) = is_needed.get_mut(next as usize).filter(|_| next != 0) {
                *needed = true;
                next = self.raw.get(next).map_or(0, |raw| raw.parent);
            }
        }
        let is_known = |number: u32| self.known.get(number as usize).copied().flatten().is_some();
        let idle = (0..=last).zip(is_needed).skip(1).filter(|(number, needed)| !needed && is_known(*number));
        idle.map(|(number, _)| number).collect()
    }

    fn holds_pages(&self, number: u32, raw: &RawNode, roots: &HashSet<u32>) -> bool {
        match self.known.get(number as usize).copied().flatten() {
            // Free; or too new to be known.
            None => raw.pc != 0,
            Some(known) => {
                // Those of removed targets are freed together.
                raw.pages != [0; 3]
                    || known.pages != [0; 3]
                    || self.removed.contains(&known.target)
                    || raw.pc != UNUSED_NODE && raw.parent == 0 && roots.contains(&number)
                    || raw.pc == TREE_FULL && roots.contains(&raw.parent)
            }
        }
    }

    /// Edges by which the programs find these nodes; a root has none.
    pub(crate) fn edges(&self, numbers: &[u32]) -> Vec<Edge> {
        let raw = numbers.iter().filter_map(|number| self.raw.get(*number));
        let found = raw.filter(|raw| raw.parent != 0 && raw.pc != UNUSED_NODE);
        found.map(|raw| Edge { pc: raw.pc, parent: raw.parent, pad: 0 }).collect()
    }

    /// Frees nodes that nothing refers to.
    pub(crate) fn free_all(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.free(*number));
        self.drop_unused_names();
    }

    /// Removes calls that are in no node of the kernel tree any more.
    pub(super) fn drop_unused_names(&mut self) {
        let mut used: HashSet<NodeId> = self.known.iter().flatten().map(|known| known.node).collect();
        #[expect(clippy::disallowed_methods, reason = "collected into a set")]
        let counted = self.counts.iter().filter(|(_, pages)| **pages != [0; 3]).map(|((_, node), _)| *node);
        for node in counted.collect::<Vec<_>>() {
            let mut next = Some(node);
            while let Some(node) = next.filter(|node| used.insert(*node)) {
                next = self.list.get(&node).map(|node| node.parent);
            }
        }
        let unused: Vec<NodeId> = self.list.keys().filter(|node| !used.contains(node)).copied().collect();
        for node in unused.into_iter().filter_map(|id| self.list.remove(&id)) {
            self.names.remove(&(node.parent, node.frame));
            if node.id <= self.reported {
                self.dropped.push(node.id);
            }
        }
        let changed = &self.changed;
        self.counts.retain(|key, _| used.contains(&key.1) || changed.contains(key));
    }

    /// Takes the calls of earlier readings that were removed.
    pub(crate) fn take_dropped(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.dropped)
    }

    /// Number of nodes of each target in the kernel tree.
    pub(crate) fn nodes_by_target(&self) -> BTreeMap<TargetId, u32> {
        let mut nodes = BTreeMap::new();
        for known in self.known.iter().skip(1).flatten() {
            *nodes.entry(known.target).or_default() += 1;
        }
        nodes
    }

    /// Modules of all calls, and of mappings that further calls may be in.
    pub(crate) fn modules(&self) -> HashSet<ModuleId> {
        let called = self.list.values().filter_map(|node| match node.frame {
            Frame::Code { module, .. } => Some(module),
            Frame::Anonymous { .. } | Frame::Incomplete(_) => None,
        });
        #[expect(clippy::disallowed_methods, reason = "collected into a set")]
        let mapped = self.roots.values().flat_map(|mappings| mappings.iter().filter_map(|mapping| mapping.module));
        called.chain(mapped).collect()
    }
}
