//! Aggregator side of a profile. Each protocol rule is asserted when a message is merged.

use std::collections::{BTreeMap, VecDeque};

use chainscope_ebpf::memory::Kind;
use chainscope_proto::v1::{MemoryAck, MemoryState};
use prost::Message as _;

use crate::memory::{ProfileStore, profile};

/// A profile as merged by an aggregator.
#[derive(Debug, Default, Clone)]
pub(super) struct Merged {
    pub(super) sequence: u64,
    strings: Vec<String>,
    frames: Vec<chainscope_proto::v1::MemoryFrame>,
    pub(super) nodes: Vec<(u32, u32)>,
    pages: BTreeMap<(i32, u32), u64>,
    pub(super) last: MemoryState,
    parts: u32,
    pub(super) keyframes: u32,
}

impl Merged {
    /// Merges a message. Returns the acknowledgement after the last part of a state.
    pub(super) fn merge(&mut self, state: &MemoryState) -> Option<MemoryAck> {
        assert!(state.encoded_len() <= 1 << 20, "{} bytes", state.encoded_len());
        assert_eq!(state.part, self.parts, "parts follow one another");
        if state.part == 0 {
            assert!(state.sequence > self.sequence);
            if state.base == 0 {
                *self = Self { keyframes: self.keyframes + 1, ..Self::default() };
            } else {
                assert_eq!(state.base, self.sequence, "a delta of what was acknowledged");
            }
        }
        extend(&mut self.strings, state.first_string, state.strings.iter().cloned());
        extend(&mut self.frames, state.first_frame, state.frames.iter().copied());
        let nodes = state.node_parents.iter().copied().zip(state.node_frames.iter().copied());
        extend(&mut self.nodes, state.first_node, nodes);
        for frame in &state.frames {
            assert!(frame.executable as usize <= self.strings.len() && frame.function as usize <= self.strings.len());
        }
        for (index, (parent, frame)) in self.nodes.iter().enumerate() {
            assert!(*parent as usize <= index && (1..=self.frames.len()).contains(&(*frame as usize)));
        }
        for counts in &state.counts {
            for (node, pages) in counts.nodes.iter().zip(&counts.pages) {
                assert!(*node as usize <= self.nodes.len());
                self.pages.insert((counts.kind, *node), *pages);
            }
        }
        self.parts += 1;
        if state.more {
            return None;
        }
        assert!(state.process.is_some() && state.totals.is_some());
        self.parts = 0;
        self.sequence = state.sequence;
        self.last = state.clone();
        Some(ack(state))
    }

    /// Returns pages by function names, outermost first.
    pub(super) fn by_stack(&self, kind: Kind) -> BTreeMap<Vec<String>, u64> {
        let mut stacks = BTreeMap::new();
        for ((of, node), pages) in &self.pages {
            if *of == i32::from(profile::to_proto(kind)) && *pages > 0 {
                *stacks.entry(self.stack(*node)).or_default() += pages;
            }
        }
        stacks
    }

    fn stack(&self, node: u32) -> Vec<String> {
        let mut stack = VecDeque::new();
        let mut at = node;
        while at != 0 {
            let (parent, frame) = self.nodes[at as usize - 1];
            let frame = self.frames[frame as usize - 1];
            let text = |id: u32| if id == 0 { String::new() } else { self.strings[id as usize - 1].clone() };
            let name = if frame.function == 0 { text(frame.executable) } else { text(frame.function) };
            stack.push_front(name);
            at = parent;
        }
        stack.into()
    }
}

fn extend<T: PartialEq + std::fmt::Debug>(table: &mut Vec<T>, first: u32, new: impl ExactSizeIterator<Item = T>) {
    if new.len() > 0 {
        assert_eq!(first as usize, table.len() + 1, "a hole, or twice");
        table.extend(new);
    }
}

pub(super) fn ack(state: &MemoryState) -> MemoryAck {
    MemoryAck {
        node: state.node.clone(),
        profile: state.profile,
        sequence: state.sequence,
        keyframe_wanted: false,
        refused: String::new(),
    }
}

/// Merges and acknowledges all messages available now.
pub(super) fn drain(store: &ProfileStore, merged: &mut BTreeMap<u64, Merged>) {
    while let Some(state) = store.next() {
        if let Some(ack) = merged.entry(state.profile).or_default().merge(&state) {
            store.acknowledge(&ack);
        }
    }
}

pub(super) fn only(merged: &BTreeMap<u64, Merged>) -> &Merged {
    assert_eq!(merged.len(), 1);
    merged.values().next().unwrap()
}
