//! Snapshot of memory profiles for metrics.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_ebpf::memory::Health;
use chainscope_proto::v1::MemoryTotals;

use super::profile::Profile;

/// Page size in bytes.
const PAGE_SIZE: u64 = 4096;
/// Label values of the kinds, in the order of [`MemoryTotals::kinds`].
pub(crate) const KINDS: [&str; 3] = ["anonymous", "cache", "kernel"];

/// Label values of the kernel's resident counters.
pub(crate) const RESIDENT: [&str; 3] = ["anonymous", "file", "shared"];

/// Values exported by the memory profiler.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MemoryMetrics {
    pub(crate) nodes: BTreeMap<Arc<str>, NodeMetrics>,
    /// Events lost by the probe since it was loaded, by reason.
    pub(crate) lost: Vec<(&'static str, u64)>,
    /// Calls in the tree, and its capacity.
    pub(crate) calls: u64,
    pub(crate) calls_capacity: u64,
    /// Files whose unwind table could not be built, or not of all functions.
    pub(crate) refused_files: u64,
    /// Number of times that a file was not opened or read in time for its symbols.
    pub(crate) late_files: u64,
    /// Memory used by copies of symbols, in bytes.
    pub(crate) symbol_bytes: u64,
    /// Error that prevents profiling.
    pub(crate) error: Option<String>,
}

/// Sums over the profiled processes of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeMetrics {
    pub(crate) processes: u64,
    /// Anonymous, file and shared memory as counted by the kernel.
    pub(crate) resident_bytes: [u64; 3],
    /// By kind, in the order of [`KINDS`].
    pub(crate) attributed_bytes: [u64; 3],
    pub(crate) before_attach_bytes: [u64; 3],
    /// Anonymous memory counted by the kernel minus the attributed memory; negative if more is attributed.
    pub(crate) unattributed_bytes: i64,
    /// Number of stacks by unwind result.
    pub(crate) stacks: BTreeMap<String, u64>,
}

pub(super) fn snapshot<'a>(
    profiles: impl Iterator<Item = &'a Profile>,
    health: &Health,
    tree_calls: usize,
    symbol_bytes: u64,
    error: Option<&String>,
) -> MemoryMetrics {
    let mut nodes: BTreeMap<Arc<str>, NodeMetrics> = BTreeMap::new();
    for profile in profiles.filter(|profile| !profile.has_ended()) {
        nodes.entry(Arc::clone(&profile.subject.node)).or_default().add(profile.totals());
    }
    MemoryMetrics {
        nodes,
        lost: health.lost.clone(),
        calls: u64::from(health.nodes_used).max(tree_calls as u64),
        calls_capacity: u64::from(health.nodes_max),
        refused_files: health.refused.len() as u64,
        late_files: 0,
        symbol_bytes,
        error: error.cloned(),
    }
}

impl NodeMetrics {
    fn add(&mut self, totals: &MemoryTotals) {
        self.processes += 1;
        let resident = [totals.control_anon, totals.control_file, totals.control_shmem];
        for (sum, pages) in self.resident_bytes.iter_mut().zip(resident) {
            *sum += pages * PAGE_SIZE;
        }
        for (index, kind) in totals.kinds.iter().take(KINDS.len()).enumerate() {
            self.attributed_bytes[index] += kind.attributed * PAGE_SIZE;
            self.before_attach_bytes[index] += kind.before_attach * PAGE_SIZE;
            self.unattributed_bytes += kind.unattributed.saturating_mul(PAGE_SIZE as i64);
        }
        for stack in &totals.stacks {
            *self.stacks.entry(stack.reason.clone()).or_default() += stack.count;
        }
    }
}
