//! Strings, frames and nodes as one profile numbers them for the aggregator.
//!
//! Ids begin at 1 and are given in order, so that what an aggregator does not have yet is always a tail. Nodes of the
//! probe's tree are taken in when pages are counted at them, with their callers; a call with inlined functions becomes a
//! chain of nodes, the function itself first. No two children of a node have the same frame: calls that are shown by the
//! same name are one node.

use std::{collections::HashMap, sync::Arc};

use chainscope_proto::v1::{FunctionCategory, MemoryFrame};

use super::tree::{Named, Tree};
use crate::symbols::Category;

/// Ends of the three tables: what an aggregator has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
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
    /// Node of a parent and a frame.
    children: HashMap<(u32, u32), u32>,
    /// Number in the probe's tree to the innermost node that stands for it.
    node_ids: HashMap<u32, u32>,
    /// For each node the first number that it stands for, or 0.
    numbers: Vec<u32>,
    /// Of nodes that stand for more than one, all.
    shared: HashMap<u32, Vec<u32>>,
}

impl Dictionary {
    pub(super) fn mark(&self) -> Mark {
        Mark { strings: self.strings.len(), frames: self.frames.len(), nodes: self.nodes.len() }
    }

    /// The node of a call, taken in with its callers if it is new. 0, the root, for one that the tree does not have.
    pub(super) fn node(&mut self, tree: &Tree, number: u32) -> u32 {
        // From the call outward to one that is known, then back.
        let mut path = Vec::new();
        let mut at = number;
        let mut parent = loop {
            if at == 0 {
                break 0;
            }
            if let Some(known) = self.node_ids.get(&at) {
                break *known;
            }
            let Some(call) = tree.call(at) else { break 0 };
            path.push(at);
            // Numbers grow from caller to callee: whatever the probe says, this ends.
            if call.parent >= at {
                break 0;
            }
            at = call.parent;
        };
        for number in path.into_iter().rev() {
            let Some(call) = tree.call(number) else { continue };
            for frame in self.frames_of(&call.named) {
                parent = self.child(parent, frame);
            }
            self.node_ids.insert(number, parent);
            self.stand_for(parent, number);
        }
        parent
    }

    /// All numbers that a node stands for, if there are several.
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

    fn stand_for(&mut self, node: u32, number: u32) {
        let Some(first) = (node as usize).checked_sub(1).and_then(|index| self.numbers.get_mut(index)) else { return };
        if *first == 0 {
            *first = number;
        } else {
            self.shared.entry(node).or_insert_with(|| vec![*first]).push(number);
        }
    }

    fn frames_of(&mut self, named: &Named) -> Vec<u32> {
        match named {
            Named::Bare { offset, name } => {
                let executable = self.string(name);
                let category = if name.is_empty() { Category::SystemLib } else { Category::NodeCpp };
                vec![self.frame((*offset, executable, 0, wire(category).into(), false, false))]
            }
            Named::Code { offset, place } => {
                let executable = self.string(&place.executable);
                if place.functions.is_empty() {
                    let category = wire(place.category).into();
                    return vec![self.frame((*offset, executable, 0, category, false, place.is_deleted))];
                }
                let mut frames = Vec::with_capacity(place.functions.len());
                for (depth, function) in place.functions.iter().enumerate() {
                    let name = self.string(&function.name);
                    let category = wire(function.category).into();
                    frames.push(self.frame((*offset, executable, name, category, depth > 0, place.is_deleted)));
                }
                frames
            }
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(known) = self.string_ids.get(text) {
            return *known;
        }
        let text: Arc<str> = text.into();
        self.strings.push(Arc::clone(&text));
        let id = id(self.strings.len());
        self.string_ids.insert(text, id);
        id
    }

    fn frame(&mut self, key: FrameKey) -> u32 {
        if let Some(known) = self.frame_ids.get(&key) {
            return *known;
        }
        let (offset, executable, function, category, inlined, deleted) = key;
        self.frames.push(MemoryFrame { offset, executable, function, category, inlined, deleted });
        let id = id(self.frames.len());
        self.frame_ids.insert(key, id);
        id
    }
}

/// The probe's tree has at most some hundred thousand nodes, each of at most some ten functions.
fn id(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn wire(category: Category) -> FunctionCategory {
    match category {
        Category::NodeRust => FunctionCategory::NodeRust,
        Category::NodeCpp => FunctionCategory::NodeCpp,
        Category::SystemLib => FunctionCategory::SystemLib,
    }
}
