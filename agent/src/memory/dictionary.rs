//! Per-profile dictionary: ids of strings, frames and nodes sent to the aggregator.
//!
//! Ids start at 1 and are assigned in order, so the entries that an aggregator lacks are always a tail of each table. A
//! node of the probe's call tree is added together with its callers when pages are counted at it. A call with inlined
//! functions becomes a chain of nodes, outermost function first. The children of a node have distinct frames: calls that
//! resolve to the same frame share a node.

use std::{collections::HashMap, sync::Arc};

use chainscope_proto::v1::{FunctionCategory, MemoryFrame};

use super::tree::{ResolvedFrame, Tree};
use crate::symbols::Category;

/// Lengths of the three tables at a point in time: the entries that an aggregator has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TableLengths {
    pub(super) strings: usize,
    pub(super) frames: usize,
    pub(super) nodes: usize,
}

/// The key of a frame: offset, executable, function, category, inlined, deleted.
type FrameKey = (u64, u32, u32, i32, bool, bool);

#[derive(Debug, Default)]
pub(super) struct Dictionary {
    pub(super) strings: Vec<Arc<str>>,
    string_ids: HashMap<Arc<str>, u32>,
    pub(super) frames: Vec<MemoryFrame>,
    frame_ids: HashMap<FrameKey, u32>,
    /// Parent and frame of each node.
    pub(super) nodes: Vec<(u32, u32)>,
    /// Node id by parent and frame.
    children: HashMap<(u32, u32), u32>,
    /// Call number in the probe's tree to the innermost node of that call.
    node_ids: HashMap<u32, u32>,
    /// First call number of each node, or 0.
    numbers: Vec<u32>,
    /// All call numbers of nodes that have more than one.
    shared: HashMap<u32, Vec<u32>>,
}

impl Dictionary {
    pub(super) fn lengths(&self) -> TableLengths {
        TableLengths { strings: self.strings.len(), frames: self.frames.len(), nodes: self.nodes.len() }
    }

    /// Returns the node of a call, adding it and its callers if missing; 0, the root, for a call that is not in the
    /// tree.
    pub(super) fn node(&mut self, tree: &Tree, number: u32) -> u32 {
        // Walk outward to the nearest known caller, then add the path back inward.
        let mut path = Vec::new();
        let mut current = number;
        let mut parent = loop {
            if current == 0 {
                break 0;
            }
            if let Some(id) = self.node_ids.get(&current) {
                break *id;
            }
            let Some(call) = tree.call(current) else { break 0 };
            path.push(current);
            // A caller has a smaller number than its callee; the check bounds the loop on malformed input.
            if call.parent >= current {
                break 0;
            }
            current = call.parent;
        };
        for number in path.into_iter().rev() {
            let Some(call) = tree.call(number) else { continue };
            for frame in self.frames_of(&call.frame) {
                parent = self.child(parent, frame);
            }
            self.node_ids.insert(number, parent);
            self.map_number(parent, number);
        }
        parent
    }

    /// Returns all call numbers of a node that has more than one.
    pub(super) fn shared(&self, node: u32) -> Option<&[u32]> {
        self.shared.get(&node).map(Vec::as_slice)
    }

    fn child(&mut self, parent: u32, frame: u32) -> u32 {
        *self.children.entry((parent, frame)).or_insert_with(|| {
            self.nodes.push((parent, frame));
            self.numbers.push(0);
            id(self.nodes.len())
        })
    }

    fn map_number(&mut self, node: u32, number: u32) {
        let Some(first) = (node as usize).checked_sub(1).and_then(|index| self.numbers.get_mut(index)) else { return };
        if *first == 0 {
            *first = number;
        } else {
            self.shared.entry(node).or_insert_with(|| vec![*first]).push(number);
        }
    }

    fn frames_of(&mut self, frame: &ResolvedFrame) -> Vec<u32> {
        match frame {
            ResolvedFrame::Unmapped { offset, name } => {
                let executable = self.string(name);
                let category = if name.is_empty() { Category::SystemLib } else { Category::NodeCpp };
                vec![self.frame((*offset, executable, 0, to_proto(category).into(), false, false))]
            }
            ResolvedFrame::Code { offset, location } => {
                let executable = self.string(&location.executable);
                if location.functions.is_empty() {
                    let category = to_proto(location.category).into();
                    return vec![self.frame((*offset, executable, 0, category, false, location.is_deleted))];
                }
                let mut frames = Vec::with_capacity(location.functions.len());
                for (depth, function) in location.functions.iter().enumerate() {
                    let name = self.string(&function.name);
                    let category = to_proto(function.category).into();
                    frames.push(self.frame((*offset, executable, name, category, depth > 0, location.is_deleted)));
                }
                frames
            }
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.string_ids.get(text) {
            return *id;
        }
        let text: Arc<str> = text.into();
        self.strings.push(Arc::clone(&text));
        let id = id(self.strings.len());
        self.string_ids.insert(text, id);
        id
    }

    fn frame(&mut self, key: FrameKey) -> u32 {
        if let Some(id) = self.frame_ids.get(&key) {
            return *id;
        }
        let (offset, executable, function, category, inlined, deleted) = key;
        self.frames.push(MemoryFrame { offset, executable, function, category, inlined, deleted });
        let id = id(self.frames.len());
        self.frame_ids.insert(key, id);
        id
    }
}

/// The probe's tree is limited to some hundred thousand nodes with about ten functions each, so ids fit.
fn id(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn to_proto(category: Category) -> FunctionCategory {
    match category {
        Category::NodeRust => FunctionCategory::NodeRust,
        Category::NodeCpp => FunctionCategory::NodeCpp,
        Category::SystemLib => FunctionCategory::SystemLib,
    }
}
