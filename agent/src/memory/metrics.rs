//! Counts of memory profiles, for metrics.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_ebpf::memory::Health;
use chainscope_proto::v1::MemoryTotals;

use super::profile::Profile;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Names of the kinds, in their order in [`MemoryTotals::kinds`].
pub(crate) const KINDS: [&str; 3] = ["anonymous", "cache", "kernel"];

/// Names of what the kernel counts.
pub(crate) const RESIDENT: [&str; 3] = ["anonymous", "file", "shared"];

/// What metrics show of the memory profiler.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) nodes: BTreeMap<Arc<str>, NodeFigures>,
    /// What the probe lost, by reason, since it was loaded.
    pub(crate) lost: Vec<(&'static str, u64)>,
    /// Calls in the tree, and those that there is room for.
    pub(crate) calls: u64,
    pub(crate) calls_room: u64,
    /// Memory for symbols that are being read.
    pub(crate) symbol_bytes: u64,
    /// Why nothing is profiled.
    pub(crate) error: Option<String>,
}

/// Sums over the processes of a node that are profiled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeFigures {
    pub(crate) processes: u64,
    /// Anonymous, of files, shared: as the kernel counts them.
    pub(crate) resident_bytes: [u64; 3],
    /// By kind, as [`KINDS`].
    pub(crate) attributed_bytes: [u64; 3],
    pub(crate) before_attach_bytes: [u64; 3],
    /// Anonymous pages of the kernel's count that are nobody's; negative if more is attributed than that.
    pub(crate) unattributed_bytes: i64,
    /// Stacks by how their unwinding ended.
    pub(crate) stacks: BTreeMap<String, u64>,
}

pub(super) fn figures<'a>(
    profiles: impl Iterator<Item = &'a Profile>,
    health: &Health,
    tree: usize,
    symbol_bytes: u64,
    error: Option<&String>,
) -> Figures {
    let mut nodes: BTreeMap<Arc<str>, NodeFigures> = BTreeMap::new();
    for profile in profiles.filter(|profile| !profile.has_ended()) {
        nodes.entry(Arc::clone(&profile.subject.node)).or_default().add(profile.totals());
    }
    Figures {
        nodes,
        lost: health.lost.clone(),
        calls: u64::from(health.nodes_used).max(tree as u64),
        calls_room: u64::from(health.nodes_max),
        symbol_bytes,
        error: error.cloned(),
    }
}

impl NodeFigures {
    fn add(&mut self, totals: &MemoryTotals) {
        self.processes += 1;
        let resident = [totals.control_anon, totals.control_file, totals.control_shmem];
        for (sum, pages) in self.resident_bytes.iter_mut().zip(resident) {
            *sum += pages * PAGE;
        }
        for (index, kind) in totals.kinds.iter().take(KINDS.len()).enumerate() {
            self.attributed_bytes[index] += kind.attributed * PAGE;
            self.before_attach_bytes[index] += kind.before_attach * PAGE;
            self.unattributed_bytes += kind.unattributed.saturating_mul(PAGE as i64);
        }
        for stack in &totals.stacks {
            *self.stacks.entry(stack.reason.clone()).or_default() += stack.count;
        }
    }
}
