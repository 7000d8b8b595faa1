//! Splits a state into messages of at most 1 MiB: strings, frames, nodes, counts, then totals.

use chainscope_proto::v1::{MemoryCounts, MemoryKind, MemoryState, MemoryTarget, MemoryTotals};
use prost::Message as _;

use super::dictionary::{Dictionary, TableLengths};

/// Maximum size of a part without its header and the totals, in bytes.
const PART_BYTES: usize = 900 << 10;
/// Maximum number of mappings listed in the split at attach, largest first.
const MAX_MAPPINGS: usize = 256;

/// Fields common to all parts of a state.
#[derive(Debug, Clone)]
pub(super) struct StateHeader {
    pub(super) node: String,
    pub(super) target: String,
    pub(super) profile: u64,
    pub(super) sequence: u64,
    pub(super) base: u64,
    pub(super) time_ns: i64,
}

/// Counts of one kind: node and pages.
pub(super) type Counts = (MemoryKind, Vec<(u32, u64)>);

/// Builder of the parts of a state.
struct StateParts {
    header: StateHeader,
    finished: Vec<MemoryState>,
    current: MemoryState,
    size: usize,
}

impl StateParts {
    /// Reserves space for `bytes`, starting a new part if the current one is full.
    fn reserve(&mut self, bytes: usize) {
        if self.size + bytes > PART_BYTES && self.size > 0 {
            let next = self.new_part(self.current.part + 1);
            let mut full = std::mem::replace(&mut self.current, next);
            full.more = true;
            self.finished.push(full);
            self.size = 0;
        }
        self.size += bytes;
    }

    fn new_part(&self, part: u32) -> MemoryState {
        MemoryState {
            node: self.header.node.clone(),
            target: self.header.target.clone(),
            profile: self.header.profile,
            sequence: self.header.sequence,
            base: self.header.base,
            part,
            time_ns: self.header.time_ns,
            page_bytes: 4096,
            ..MemoryState::default()
        }
    }
}

/// Builds the messages of one state: dictionary entries after `from`, and the counts. Returns at least one message.
pub(super) fn parts(
    header: StateHeader,
    dictionary: &Dictionary,
    from: TableLengths,
    counts: &[Counts],
    process: MemoryTarget,
    mut totals: MemoryTotals,
) -> Vec<MemoryState> {
    let mut parts = StateParts { header, finished: Vec::new(), current: MemoryState::default(), size: 0 };
    parts.current = parts.new_part(0);
    for (index, text) in dictionary.strings.iter().enumerate().skip(from.strings) {
        parts.reserve(text.len() + 6);
        if parts.current.strings.is_empty() {
            parts.current.first_string = id_at(index);
        }
        parts.current.strings.push(text.to_string());
    }
    for (index, frame) in dictionary.frames.iter().enumerate().skip(from.frames) {
        parts.reserve(frame.encoded_len() + 6);
        if parts.current.frames.is_empty() {
            parts.current.first_frame = id_at(index);
        }
        parts.current.frames.push(*frame);
    }
    for (index, (parent, frame)) in dictionary.nodes.iter().enumerate().skip(from.nodes) {
        parts.reserve(10);
        if parts.current.node_parents.is_empty() {
            parts.current.first_node = id_at(index);
        }
        parts.current.node_parents.push(*parent);
        parts.current.node_frames.push(*frame);
    }
    for (kind, changed) in counts {
        for (node, pages) in changed {
            parts.reserve(15);
            let kind = i32::from(*kind);
            if parts.current.counts.last().is_none_or(|last| last.kind != kind) {
                parts.size += 16;
                parts.current.counts.push(MemoryCounts { kind, ..MemoryCounts::default() });
            }
            if let Some(last) = parts.current.counts.last_mut() {
                last.nodes.push(*node);
                last.pages.push(*pages);
            }
        }
    }
    for split in [&mut totals.at_attach, &mut totals.before_now] {
        split.sort_by_key(|share| std::cmp::Reverse(share.pages));
        split.truncate(MAX_MAPPINGS);
    }
    parts.reserve(process.encoded_len() + totals.encoded_len() + 16);
    parts.current.process = Some(process);
    parts.current.totals = Some(totals);
    parts.finished.push(parts.current);
    parts.finished
}

/// Returns the id of the entry at an index.
fn id_at(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1)
}
