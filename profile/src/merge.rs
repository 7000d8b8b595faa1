//! Taking states: parts are collected, checked as a whole, and only then merged, so that what is refused changes nothing.

use std::{collections::HashMap, sync::Arc};

use chainscope_proto::v1::MemoryState;
use prost::Message as _;

use crate::{Category, Data, Fault, Frame, Kind};

/// How large a profile may be.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Nodes of the call tree.
    pub nodes: usize,
    /// Frames of the dictionary.
    pub frames: usize,
    /// Bytes of all its strings.
    pub string_bytes: usize,
    /// Bytes of the parts of one state.
    pub state_bytes: usize,
}

impl Default for Limits {
    /// Some twenty times what a node with 100,000 distinct stacks has.
    fn default() -> Self {
        Self { nodes: 4 << 20, frames: 1 << 20, string_bytes: 256 << 20, state_bytes: 512 << 20 }
    }
}

/// What became of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// More parts of the state are to come.
    Part,
    /// The state was merged, or something newer was before: the last merged state.
    Merged(u64),
    /// Nothing was taken; a keyframe puts it right.
    KeyframeWanted(Fault),
}

/// One profile as it is kept up to date.
#[derive(Debug, Default)]
pub struct Profile {
    data: Data,
    /// The last state that was merged.
    sequence: u64,
    /// Parts of the state that is coming in.
    pending: Vec<MemoryState>,
    pending_bytes: usize,
    /// Bytes of all strings that were ever taken since the last keyframe.
    string_bytes: usize,
    /// Ids of frames by what they are, to find out whether two are the same.
    known: HashMap<Frame, usize>,
}

impl Profile {
    /// The state as it is, if a keyframe has come.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        (self.sequence > 0).then_some(&self.data)
    }

    /// The last state that was merged; 0: none.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes one part of a state.
    pub fn take(&mut self, part: MemoryState, limits: &Limits) -> Taken {
        match self.collect(part, limits) {
            Ok(false) => Taken::Part,
            Ok(true) => Taken::Merged(self.sequence),
            Err(fault) => {
                self.pending.clear();
                self.pending_bytes = 0;
                Taken::KeyframeWanted(fault)
            }
        }
    }

    /// Whether the part was the last one of its state.
    fn collect(&mut self, part: MemoryState, limits: &Limits) -> Result<bool, Fault> {
        let MemoryState { sequence, base, more, .. } = part;
        if sequence == 0 {
            return Err(Fault::NoSequence);
        }
        if base >= sequence {
            return Err(Fault::BaseAhead { sequence, base });
        }
        if sequence <= self.sequence {
            return Ok(!more);
        }
        if base > self.sequence {
            return Err(Fault::Gap { base, merged: self.sequence });
        }
        if part.part == 0 {
            // The agent began anew: what came before is replaced.
            self.pending.clear();
            self.pending_bytes = 0;
        }
        let goes_on = self.pending.last().is_none_or(|last| last.sequence == sequence && last.base == base);
        if usize::try_from(part.part) != Ok(self.pending.len()) || !goes_on {
            let expected = if goes_on { self.pending.len() } else { 0 };
            return Err(Fault::PartMissing { sequence, expected, found: part.part });
        }
        self.pending_bytes = self.pending_bytes.saturating_add(part.encoded_len());
        if self.pending_bytes > limits.state_bytes {
            return Err(Fault::TooMuch { what: "bytes of a state", most: limits.state_bytes });
        }
        self.pending.push(part);
        if more {
            return Ok(false);
        }
        let parts = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let string_bytes = check(if base == 0 { None } else { Some((&self.data, self.string_bytes)) }, &parts, limits)?;
        if base == 0 {
            self.data = Data::default();
        }
        self.string_bytes = string_bytes;
        if base == 0 {
            self.known.clear();
        }
        for part in parts {
            let frames = (part.first_frame as usize, part.frames.len());
            merge(&mut self.data, part);
            self.look(frames);
        }
        self.sequence = sequence;
        Ok(true)
    }
}

impl Profile {
    /// Looks whether new frames are the same as others: the agent may not know.
    fn look(&mut self, (first, count): (usize, usize)) {
        for (id, frame) in self.data.frames.iter().enumerate().skip(first).take(count) {
            // A frame that was named later leaves its old name behind: then the names are no longer known to be distinct.
            if *self.known.entry(frame.clone()).or_insert(id) != id {
                self.data.distinct = false;
            }
        }
    }
}

/// Looks whether all parts of a state can be merged to what is there; gives the bytes of all strings then.
fn check(before: Option<(&Data, usize)>, parts: &[MemoryState], limits: &Limits) -> Result<usize, Fault> {
    let (data, mut string_bytes) = match before {
        Some((data, bytes)) => (Some(data), bytes),
        None => (None, 0),
    };
    let count = |of: fn(&Data) -> usize| data.map_or(1, of) as u64;
    let (mut strings, mut frames, mut nodes) =
        (count(|data| data.strings.len()), count(|data| data.frames.len()), count(|data| data.parents.len()));
    // Of nodes that these parts bring; those that are there already have to be what they were.
    for part in parts {
        if part.page_bytes != 0 && !(part.page_bytes.is_power_of_two() && (1024..=1 << 30).contains(&part.page_bytes)) {
            return Err(Fault::PageBytes(part.page_bytes));
        }
        strings = next("strings", part.first_string, part.strings.len(), strings)?;
        string_bytes = part.strings.iter().fold(string_bytes, |sum, text| sum.saturating_add(text.len()));
        if string_bytes > limits.string_bytes || strings > limits.frames.saturating_mul(2) as u64 {
            return Err(Fault::TooMuch { what: "bytes of strings", most: limits.string_bytes });
        }
        frames = next("frames", part.first_frame, part.frames.len(), frames)?;
        if frames > limits.frames as u64 {
            return Err(Fault::TooMuch { what: "frames", most: limits.frames });
        }
        for frame in &part.frames {
            let id = u64::from(frame.executable.max(frame.function));
            if id >= strings {
                return Err(Fault::Dangling { what: "string", id, count: strings });
            }
        }
        let (left, right) = (part.node_parents.len(), part.node_frames.len());
        if left != right {
            return Err(Fault::Uneven { what: "nodes", left, right });
        }
        nodes = next("nodes", part.first_node, left, nodes)?;
        if nodes > limits.nodes as u64 {
            return Err(Fault::TooMuch { what: "nodes", most: limits.nodes });
        }
        check_nodes(data, part, frames)?;
        for counts in &part.counts {
            let (left, right) = (counts.nodes.len(), counts.pages.len());
            if left != right {
                return Err(Fault::Uneven { what: "counts", left, right });
            }
            if let Some(id) = counts.nodes.iter().copied().max().map(u64::from).filter(|id| *id >= nodes) {
                return Err(Fault::Dangling { what: "node", id, count: nodes });
            }
        }
    }
    Ok(string_bytes)
}

/// The next free id after a column that begins at `first`.
fn next(what: &'static str, first: u32, length: usize, next: u64) -> Result<u64, Fault> {
    if length == 0 {
        return Ok(next);
    }
    let first = u64::from(first);
    if first == 0 || first > next {
        return Err(Fault::Hole { what, first, next });
    }
    Ok(next.max(first.saturating_add(length as u64)))
}

fn check_nodes(data: Option<&Data>, part: &MemoryState, frames: u64) -> Result<(), Fault> {
    let numbered = (u64::from(part.first_node)..).zip(part.node_parents.iter().zip(&part.node_frames));
    for (node, (&parent, &frame)) in numbered {
        if u64::from(parent) >= node {
            return Err(Fault::Dangling { what: "node", id: u64::from(parent), count: node });
        }
        if frame == 0 || u64::from(frame) >= frames {
            return Err(Fault::Dangling { what: "frame", id: u64::from(frame), count: frames });
        }
        let at = usize::try_from(node).unwrap_or(usize::MAX);
        let known = data.and_then(|data| Some((*data.parents.get(at)?, *data.node_frames.get(at)?)));
        if known.is_some_and(|known| known != (parent, frame)) {
            return Err(Fault::NodeChanged { node });
        }
    }
    Ok(())
}

/// Merges a part that was checked.
fn merge(data: &mut Data, part: MemoryState) {
    data.profile = part.profile;
    if !part.strings.is_empty() {
        let texts = part.strings.into_iter().map(|text| Arc::<str>::from(text.as_str()));
        place(Arc::make_mut(&mut data.strings), part.first_string, texts);
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
        place(Arc::make_mut(&mut data.frames), part.first_frame, frames);
    }
    if !part.node_parents.is_empty() {
        place(Arc::make_mut(&mut data.parents), part.first_node, part.node_parents.into_iter());
        place(Arc::make_mut(&mut data.node_frames), part.first_node, part.node_frames.into_iter());
    }
    for kind in Kind::ALL {
        let changes = || part.counts.iter().filter(|counts| Kind::of_wire(counts.kind) == Some(kind));
        let column = &mut data.pages[kind.index()];
        if column.len() < data.parents.len() || changes().any(|counts| !counts.nodes.is_empty()) {
            let column = Arc::make_mut(column);
            column.resize(data.parents.len(), 0);
            for (node, pages) in changes().flat_map(|counts| counts.nodes.iter().zip(&counts.pages)) {
                if let Some(place) = column.get_mut(*node as usize) {
                    *place = *pages;
                }
            }
        }
    }
    if !part.more {
        data.target = part.target;
        data.time_ns = part.time_ns;
        data.page_bytes = if part.page_bytes == 0 { Data::default().page_bytes } else { part.page_bytes };
        data.process = part.process.unwrap_or_default();
        data.totals = part.totals.unwrap_or_default();
    }
}

/// Puts entries at their ids: over what is there, or behind it.
fn place<T>(column: &mut Vec<T>, first: u32, entries: impl Iterator<Item = T>) {
    for (id, entry) in (first as usize..).zip(entries) {
        match column.get_mut(id) {
            Some(place) => *place = entry,
            None => column.push(entry),
        }
    }
}
