//! A state in messages of at most 1 MiB: strings, then frames, then nodes, then counts, then the totals.

use chainscope_proto::v1::{MemoryCounts, MemoryKind, MemoryState, MemoryTarget, MemoryTotals};
use prost::Message as _;

use super::dictionary::{Dictionary, Mark};

/// Most bytes of what a part holds beside its head and the totals.
const PART_BYTES: usize = 900 << 10;
/// Mappings of the split at attach that are told one by one: the largest.
const MAX_MAPPINGS: usize = 256;

/// What a state is about.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) node: String,
    pub(super) target: String,
    pub(super) profile: u64,
    pub(super) sequence: u64,
    pub(super) base: u64,
    pub(super) time_ns: i64,
}

/// Counts of one kind: node and pages.
pub(super) type Counts = (MemoryKind, Vec<(u32, u64)>);

/// A state that is being put together.
struct Parts {
    head: Head,
    done: Vec<MemoryState>,
    open: MemoryState,
    size: usize,
}

impl Parts {
    /// Makes sure that so many bytes fit.
    fn room(&mut self, bytes: usize) {
        if self.size + bytes > PART_BYTES && self.size > 0 {
            let next = self.empty(self.open.part + 1);
            let mut full = std::mem::replace(&mut self.open, next);
            full.more = true;
            self.done.push(full);
            self.size = 0;
        }
        self.size += bytes;
    }

    fn empty(&self, part: u32) -> MemoryState {
        MemoryState {
            node: self.head.node.clone(),
            target: self.head.target.clone(),
            profile: self.head.profile,
            sequence: self.head.sequence,
            base: self.head.base,
            part,
            time_ns: self.head.time_ns,
            page_bytes: 4096,
            ..MemoryState::default()
        }
    }
}

/// The messages of one state: what the dictionary has behind `from`, and the counts. Never none.
pub(super) fn parts(
    head: Head,
    dictionary: &Dictionary,
    from: Mark,
    counts: &[Counts],
    process: MemoryTarget,
    mut totals: MemoryTotals,
) -> Vec<MemoryState> {
    let mut parts = Parts { head, done: Vec::new(), open: MemoryState::default(), size: 0 };
    parts.open = parts.empty(0);
    for (index, text) in dictionary.strings.iter().enumerate().skip(from.strings) {
        parts.room(text.len() + 6);
        if parts.open.strings.is_empty() {
            parts.open.first_string = number(index);
        }
        parts.open.strings.push(text.to_string());
    }
    for (index, frame) in dictionary.frames.iter().enumerate().skip(from.frames) {
        parts.room(frame.encoded_len() + 6);
        if parts.open.frames.is_empty() {
            parts.open.first_frame = number(index);
        }
        parts.open.frames.push(*frame);
    }
    for (index, (parent, frame)) in dictionary.nodes.iter().enumerate().skip(from.nodes) {
        parts.room(10);
        if parts.open.node_parents.is_empty() {
            parts.open.first_node = number(index);
        }
        parts.open.node_parents.push(*parent);
        parts.open.node_frames.push(*frame);
    }
    for (kind, changed) in counts {
        for (node, pages) in changed {
            parts.room(15);
            let kind = i32::from(*kind);
            if parts.open.counts.last().is_none_or(|open| open.kind != kind) {
                parts.size += 16;
                parts.open.counts.push(MemoryCounts { kind, ..MemoryCounts::default() });
            }
            if let Some(open) = parts.open.counts.last_mut() {
                open.nodes.push(*node);
                open.pages.push(*pages);
            }
        }
    }
    for split in [&mut totals.at_attach, &mut totals.before_now] {
        split.sort_by_key(|share| std::cmp::Reverse(share.pages));
        split.truncate(MAX_MAPPINGS);
    }
    parts.room(process.encoded_len() + totals.encoded_len() + 16);
    parts.open.process = Some(process);
    parts.open.totals = Some(totals);
    parts.done.push(parts.open);
    parts.done
}

/// The id of the entry at an index.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1)
}
