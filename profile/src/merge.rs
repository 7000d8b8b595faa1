//! Merging of states: parts are collected, validated as a whole and then merged, so that a rejected state changes
//! nothing.

use std::{collections::HashMap, sync::Arc};

use crate::{Category, Frame, Kind, MergeError, ProfileData, data::CallNode};
use chainscope_proto::v1::{MemoryState, MemoryTotals};
use prost::Message as _;

/// Maximum size of a profile.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of nodes of the call tree.
    pub nodes: usize,
    /// Maximum number of frames of the dictionary.
    pub frames: usize,
    /// Maximum total length of the dictionary's strings.
    pub string_bytes: usize,
    /// Maximum total size in memory of the parts of one state.
    pub state_bytes: usize,
}

impl Default for Limits {
    /// About twenty times the size of a profile with 100,000 distinct stacks.
    fn default() -> Self {
        Self { nodes: 4 << 20, frames: 1 << 20, string_bytes: 256 << 20, state_bytes: 512 << 20 }
    }
}

/// Bytes in memory of a string beside its text, of a frame, of a node, of a sample and of an entry of any other list: merged,
/// where each takes at least as much as in a part of a state. A count of a part is at most a sample.
const STRING_BYTES: usize = 40;
const FRAME_BYTES: usize = 160;
const NODE_BYTES: usize = 12;
const SAMPLE_BYTES: usize = 28;
const ENTRY_BYTES: usize = 64;

/// Bytes that a part of a state takes in memory, and at most adds to the profile when it is merged. The encoded part may be
/// much smaller.
#[must_use]
pub fn state_bytes(part: &MemoryState) -> usize {
    let nodes = part.node_parents.len().max(part.node_frames.len());
    let counts: usize = part.counts.iter().map(|counts| counts.nodes.len().max(counts.pages.len())).sum();
    let entries = part.counts.len() + part.totals.as_ref().map_or(0, entries_of);
    part.encoded_len()
        + part.strings.len() * STRING_BYTES
        + part.frames.len() * FRAME_BYTES
        + nodes * NODE_BYTES
        + counts * SAMPLE_BYTES
        + entries * ENTRY_BYTES
}

/// Number of entries of the lists of totals.
fn entries_of(totals: &MemoryTotals) -> usize {
    let MemoryTotals { kinds, at_attach, stacks, lost, before_now, .. } = totals;
    kinds.len() + at_attach.len() + stacks.len() + lost.len() + before_now.len()
}

/// Result of merging a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOutcome {
    /// The part was buffered; the state has further parts.
    Incomplete,
    /// The state was merged, or a newer one was merged before: the sequence of the last merged state.
    Merged(u64),
    /// The state was rejected; the agent must send a keyframe.
    KeyframeRequired(MergeError),
}

/// The profile of one process, updated by the states of an agent.
#[derive(Debug, Default)]
pub struct Profile {
    data: ProfileData,
    /// Sequence of the last merged state.
    sequence: u64,
    /// Parts of an incomplete state.
    pending: Vec<MemoryState>,
    pending_bytes: usize,
    /// Total length of the strings received since the last keyframe.
    string_bytes: usize,
    /// Id of each distinct frame.
    frame_ids: HashMap<Frame, usize>,
}

impl Profile {
    /// The merged profile; `None` before the first keyframe.
    #[must_use]
    pub fn data(&self) -> Option<&ProfileData> {
        (self.sequence > 0).then_some(&self.data)
    }

    /// Sequence of the last merged state; 0 for none.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes of memory that the profile and the parts of an incomplete state take, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let ProfileData { strings, frames, nodes, samples, target, process, totals, .. } = &self.data;
        // String 0, frame 0 and node 0 exist in an empty profile, too.
        let columns = (strings.len() - 1) * STRING_BYTES
            + (frames.len() - 1) * FRAME_BYTES
            + (nodes.len() - 1) * NODE_BYTES
            + samples.len() * SAMPLE_BYTES;
        let rest = target.len() + process.encoded_len() + totals.encoded_len() + entries_of(totals) * ENTRY_BYTES;
        self.pending_bytes + self.string_bytes + columns + rest
    }

    /// Drops the parts of an incomplete state. The agent has to send the state from its first part.
    pub fn drop_pending(&mut self) {
        self.pending = Vec::new();
        self.pending_bytes = 0;
    }

    /// Adds one part of a state; merges the state with its last part.
    pub fn merge(&mut self, part: MemoryState, limits: &Limits) -> MergeOutcome {
        match self.collect(part, limits) {
            Ok(false) => MergeOutcome::Incomplete,
            Ok(true) => MergeOutcome::Merged(self.sequence),
            Err(error) => {
                self.drop_pending();
                MergeOutcome::KeyframeRequired(error)
            }
        }
    }

    /// Adds a part. Returns whether it was the last one of its state.
    fn collect(&mut self, part: MemoryState, limits: &Limits) -> Result<bool, MergeError> {
        let MemoryState { sequence, base, more, .. } = part;
        if sequence == 0 {
            return Err(MergeError::NoSequence);
        }
        if base >= sequence {
            return Err(MergeError::BaseAhead { sequence, base });
        }
        if sequence <= self.sequence {
            return Ok(!more);
        }
        if base > self.sequence {
            return Err(MergeError::Gap { base, merged: self.sequence });
        }
        if part.part == 0 {
            // The agent restarted the state: the buffered parts are replaced.
            self.drop_pending();
        }
        let continues = self.pending.last().is_none_or(|last| last.sequence == sequence && last.base == base);
        if usize::try_from(part.part) != Ok(self.pending.len()) || !continues {
            let expected = if continues { self.pending.len() } else { 0 };
            return Err(MergeError::PartMissing { sequence, expected, found: part.part });
        }
        self.pending_bytes = self.pending_bytes.saturating_add(state_bytes(&part));
        if self.pending_bytes > limits.state_bytes {
            return Err(MergeError::LimitExceeded { what: "bytes of a state", max: limits.state_bytes });
        }
        self.pending.push(part);
        if more {
            return Ok(false);
        }
        let parts = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let string_bytes =
            validate(if base == 0 { None } else { Some((&self.data, self.string_bytes)) }, &parts, limits)?;
        self.string_bytes = string_bytes;
        if base == 0 {
            self.data = ProfileData::default();
            self.frame_ids.clear();
        }
        for part in parts {
            let frames = (part.first_frame as usize, part.frames.len());
            apply(&mut self.data, part);
            self.detect_equal_frames(frames);
        }
        self.sequence = sequence;
        Ok(true)
    }

    /// Detects new frames that are equal to other frames, which the agent does not rule out.
    fn detect_equal_frames(&mut self, (first, count): (usize, usize)) {
        for (id, frame) in self.data.frames.iter().enumerate().skip(first).take(count) {
            // A frame that is named later leaves its former name in the map: the frames then count as not distinct.
            if *self.frame_ids.entry(frame.clone()).or_insert(id) != id {
                self.data.distinct = false;
            }
        }
    }
}

/// Validates the parts of a state against the profile that they extend. Returns the new total length of strings.
fn validate(
    before: Option<(&ProfileData, usize)>,
    parts: &[MemoryState],
    limits: &Limits,
) -> Result<usize, MergeError> {
    let (data, mut string_bytes) = match before {
        Some((data, bytes)) => (Some(data), bytes),
        None => (None, 0),
    };
    let count = |of: fn(&ProfileData) -> usize| data.map_or(1, of) as u64;
    let (mut strings, mut frames, mut nodes) =
        (count(|data| data.strings.len()), count(|data| data.frames.len()), count(|data| data.nodes.len()));
    for part in parts {
        if part.page_bytes != 0 && !(part.page_bytes.is_power_of_two() && (1024..=1 << 30).contains(&part.page_bytes)) {
            return Err(MergeError::PageBytes(part.page_bytes));
        }
        strings = next_id("strings", part.first_string, part.strings.len(), strings)?;
        string_bytes = part.strings.iter().fold(string_bytes, |sum, text| sum.saturating_add(text.len()));
        if string_bytes > limits.string_bytes || strings > limits.frames.saturating_mul(2) as u64 {
            return Err(MergeError::LimitExceeded { what: "bytes of strings", max: limits.string_bytes });
        }
        frames = next_id("frames", part.first_frame, part.frames.len(), frames)?;
        if frames > limits.frames as u64 {
            return Err(MergeError::LimitExceeded { what: "frames", max: limits.frames });
        }
        for frame in &part.frames {
            let id = u64::from(frame.executable.max(frame.function));
            if id >= strings {
                return Err(MergeError::Dangling { what: "string", id, count: strings });
            }
        }
        let (left, right) = (part.node_parents.len(), part.node_frames.len());
        if left != right {
            return Err(MergeError::Uneven { what: "nodes", left, right });
        }
        nodes = next_id("nodes", part.first_node, left, nodes)?;
        if nodes > limits.nodes as u64 {
            return Err(MergeError::LimitExceeded { what: "nodes", max: limits.nodes });
        }
        validate_nodes(data, part, frames)?;
        for counts in &part.counts {
            let (left, right) = (counts.nodes.len(), counts.pages.len());
            if left != right {
                return Err(MergeError::Uneven { what: "counts", left, right });
            }
            if let Some(id) = counts.nodes.iter().copied().max().map(u64::from).filter(|id| *id >= nodes) {
                return Err(MergeError::Dangling { what: "node", id, count: nodes });
            }
        }
    }
    Ok(string_bytes)
}

/// The next free id after a column of `length` entries that begins at id `first`.
fn next_id(what: &'static str, first: u32, length: usize, next: u64) -> Result<u64, MergeError> {
    if length == 0 {
        return Ok(next);
    }
    let first = u64::from(first);
    if first == 0 || first > next {
        return Err(MergeError::Hole { what, first, next });
    }
    Ok(next.max(first.saturating_add(length as u64)))
}

/// Validates parents and frames of the nodes of a part; nodes that exist must be unchanged.
fn validate_nodes(data: Option<&ProfileData>, part: &MemoryState, frames: u64) -> Result<(), MergeError> {
    let numbered = (u64::from(part.first_node)..).zip(part.node_parents.iter().zip(&part.node_frames));
    for (node, (&parent, &frame)) in numbered {
        if u64::from(parent) >= node {
            return Err(MergeError::Dangling { what: "node", id: u64::from(parent), count: node });
        }
        if frame == 0 || u64::from(frame) >= frames {
            return Err(MergeError::Dangling { what: "frame", id: u64::from(frame), count: frames });
        }
        let at = usize::try_from(node).unwrap_or(usize::MAX);
        let known = data.and_then(|data| data.nodes.get(at));
        if known.is_some_and(|known| *known != (CallNode { parent, frame })) {
            return Err(MergeError::NodeChanged { node });
        }
    }
    Ok(())
}

/// Applies a validated part.
fn apply(data: &mut ProfileData, part: MemoryState) {
    data.profile = part.profile;
    if !part.strings.is_empty() {
        let texts = part.strings.into_iter().map(|text| Arc::<str>::from(text.as_str()));
        write_at(Arc::make_mut(&mut data.strings), part.first_string, texts);
    }
    if !part.frames.is_empty() {
        let text = |id: u32| data.strings.get(id as usize).cloned().unwrap_or_default();
        let frames = part.frames.iter().map(|frame| Frame {
            offset: frame.offset,
            executable: text(frame.executable),
            function: (frame.function != 0).then(|| text(frame.function)),
            category: Category::of_wire(frame.category),
            inlined: frame.inlined,
            deleted: frame.deleted,
        });
        write_at(Arc::make_mut(&mut data.frames), part.first_frame, frames);
    }
    if !part.node_parents.is_empty() {
        let nodes = part.node_parents.iter().zip(&part.node_frames);
        let nodes = nodes.map(|(&parent, &frame)| CallNode { parent, frame });
        write_at(Arc::make_mut(&mut data.nodes), part.first_node, nodes);
    }
    for counts in &part.counts {
        let Some(kind) = Kind::of_wire(counts.kind) else { continue };
        if counts.nodes.is_empty() {
            continue;
        }
        let pages_of = Arc::make_mut(&mut data.pages);
        for (node, pages) in counts.nodes.iter().zip(&counts.pages) {
            // A node that never held memory needs no sample to hold none.
            let sample = if *pages == 0 { data.samples.get(*node) } else { Some(data.samples.get_or_add(*node)) };
            let Some(sample) = sample else { continue };
            pages_of.resize(data.samples.len(), [0; 3]);
            pages_of[sample][kind.index()] = *pages;
        }
    }
    if !part.more {
        data.target = part.target;
        data.time_ns = part.time_ns;
        data.page_bytes = if part.page_bytes == 0 { ProfileData::default().page_bytes } else { part.page_bytes };
        data.process = part.process.unwrap_or_default();
        data.totals = part.totals.unwrap_or_default();
    }
}

/// Writes entries at contiguous ids: replaces existing entries and appends the others.
fn write_at<T>(column: &mut Vec<T>, first: u32, entries: impl Iterator<Item = T>) {
    for (id, entry) in (first as usize..).zip(entries) {
        match column.get_mut(id) {
            Some(slot) => *slot = entry,
            None => column.push(entry),
        }
    }
}
