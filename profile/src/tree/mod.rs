//! The displayed part of a call tree: nodes above a threshold.
//!
//! The children of a node are the frames that follow its path and hold at least the threshold, in descending order. The
//! memory of the other frames is one child `underThreshold`; the memory of stacks that end at the node or continue in
//! an unresolved frame is one child `unknown`. The children of a node therefore add up to the node. Without a child
//! above the threshold both are omitted: all memory is then the node's own.
//!
//! The root has two further children regardless of the threshold: memory that was resident before the attach, and
//! memory in the kernel's total that is not otherwise accounted for. A kernel total below the attributed memory has no
//! representation in a tree; `/v1/targets` shows it.

use std::sync::Arc;

use crate::{
    Frame, Kinds, Stacks,
    walk::{InnermostFirst, Item, OutermostFirst, Walk, Weight},
};

/// Maximum number of nodes of a tree.
const MAX_NODES: usize = 8 << 20;

/// Number of expanded nodes between two checks for cancellation.
const CANCELLATION_INTERVAL: usize = 1024;

/// Direction, threshold and measure of a tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeOptions {
    /// Whether the root's children are the outermost frames (entry points) instead of the innermost ones.
    pub reverse: bool,
    /// Minimum size of a child, in kibibytes.
    pub threshold: u64,
    /// Kinds of memory that are counted.
    pub kinds: Kinds,
    /// Meaning of the nodes' values.
    pub measure: Measure,
}

/// Meaning of a node's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// `value` is the current memory, `cache` the page cache within it.
    Now,
    /// `value` is the growth since the earlier time, which may be negative; `cache` is that of the page cache. The
    /// threshold applies to the sum of the absolute changes of all stacks of a node, so that opposite changes do not
    /// hide each other.
    Growth,
    /// `value` is the current memory, `cache` the memory at the earlier time.
    Both,
}

/// Why a tree was not built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The caller cancelled.
    #[error("the request for the tree was cancelled")]
    Cancelled,
    /// The tree has more than the maximum number of nodes.
    #[error("the tree has more than {} nodes: a greater threshold makes it smaller", MAX_NODES)]
    Nodes,
}

/// Meaning of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// All memory.
    Root,
    /// A frame; see [`Tree::frame`].
    Frame(u32),
    /// Children below the threshold.
    UnderThreshold,
    /// Stacks that end at the parent or continue in an unresolved frame.
    Unknown,
    /// Resident before the attach.
    BeforeAttach,
    /// In the kernel's total, but not otherwise accounted for.
    Unattributed,
}

impl Label {
    /// Name of a pseudo node in the API; `None` for the root and frames.
    #[must_use]
    pub fn pseudo(self) -> Option<&'static str> {
        match self {
            Self::Root | Self::Frame(_) => None,
            Self::UnderThreshold => Some("underThreshold"),
            Self::Unknown => Some("unknown"),
            Self::BeforeAttach => Some("[resident before attach]"),
            Self::Unattributed => Some("[unattributed]"),
        }
    }
}

/// A node of a tree.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// Meaning of the node.
    pub label: Label,
    /// Kibibytes; see [`Measure`].
    pub value: i64,
    /// Kibibytes; see [`Measure`].
    pub cache: i64,
    /// Number of the first child.
    first: u32,
    /// Number of children.
    count: u32,
}

/// A tree as a flat list of nodes, so that neither traversal nor drop recurses.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    frames: Arc<Vec<Frame>>,
}

impl Tree {
    /// Builds a tree. `is_cancelled` is polled.
    ///
    /// # Errors
    /// If the tree is too large, or was cancelled.
    pub fn new(stacks: &Stacks, options: &TreeOptions, is_cancelled: &dyn Fn() -> bool) -> Result<Self, TreeError> {
        let weigh = |(now, then): ([i64; 3], [i64; 3])| {
            let ((value, cache), (earlier, earlier_cache)) = (options.kinds.sum(&now), options.kinds.sum(&then));
            match options.measure {
                Measure::Now => Weight { value, cache, magnitude: value.max(0) },
                Measure::Growth => {
                    let value = value.saturating_sub(earlier);
                    Weight { value, cache: cache.saturating_sub(earlier_cache), magnitude: value.saturating_abs() }
                }
                Measure::Both => Weight { value, cache: earlier, magnitude: value.max(earlier) },
            }
        };
        // Most nodes are the end of no stack.
        let weigh_node =
            |node: usize| if stacks.has_memory(node) { weigh(stacks.memory_of(node)) } else { Weight::default() };
        let positive = |entries: [i64; 3]| entries.map(|entry| entry.max(0));
        let (now, then) = stacks.non_stack();
        let non_stack = [
            (Label::BeforeAttach, weigh((positive(now.before_attach), positive(then.before_attach)))),
            (Label::Unattributed, weigh((positive(now.unattributed), positive(then.unattributed)))),
        ];
        let build = Build::new(stacks, options.threshold, is_cancelled);
        let nodes = match options.reverse {
            false => build.run(&InnermostFirst { stacks, weigh: weigh_node }, non_stack)?,
            true => {
                let walk = OutermostFirst::new(stacks, build.threshold, weigh_node);
                build.run(&walk, non_stack)?
            }
        };
        Ok(Self { nodes, frames: Arc::clone(&stacks.frames) })
    }

    /// Number of the root.
    #[must_use]
    pub fn root(&self) -> u32 {
        0
    }

    /// A node by its number.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the root is the only node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// Numbers of a node's children, in display order.
    pub fn children(&self, number: u32) -> std::ops::Range<u32> {
        let node = self.node(number);
        node.first..node.first + node.count
    }

    /// Number of frames, including frames without a node.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The frame of a [`Label::Frame`].
    ///
    /// # Panics
    /// If there is no such frame.
    #[must_use]
    pub fn frame(&self, number: u32) -> &Frame {
        &self.frames[number as usize]
    }
}

/// One frame that follows a path, with the memory of its stacks.
#[derive(Debug, Clone, Copy)]
struct Slot {
    frame: u32,
    weight: Weight,
    /// Number of items after the frame.
    count: usize,
    /// Index in [`Build::next_items`] for the next of them; [`NOT_SHOWN`] if the frame has no node.
    index: usize,
}

const NOT_SHOWN: usize = usize::MAX;

/// The frames that follow one path; reused for all nodes.
#[derive(Default)]
struct Group {
    slots: Vec<Slot>,
    /// Numbers of the slots that get a node, in display order.
    shown: Vec<u32>,
}

/// A node whose children are not built yet: they follow these items.
struct Task {
    node: u32,
    start: usize,
    end: usize,
}

/// A tree under construction.
struct Build<'a> {
    stacks: &'a Stacks,
    threshold: i64,
    is_cancelled: &'a dyn Fn() -> bool,
    nodes: Vec<Node>,
    /// Items of all pending tasks, as a stack: the items of a task come after those of the tasks before it. They never
    /// exceed the items that the traversal began with.
    items: Vec<Item>,
    /// Items after the frames of the current group.
    next_items: Vec<Item>,
    /// For each frame the last group that it was in, and its slot there.
    last_slot: Vec<(u32, u32)>,
    /// Number of the current group.
    group: u32,
}

impl<'a> Build<'a> {
    fn new(stacks: &'a Stacks, threshold: u64, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            stacks,
            threshold: i64::try_from(threshold).unwrap_or(i64::MAX),
            is_cancelled,
            nodes: Vec::new(),
            items: Vec::new(),
            next_items: Vec::new(),
            last_slot: vec![(0, 0); stacks.frames.len()],
            group: 0,
        }
    }

    /// Builds the nodes, depth first. `non_stack` are further children of the root.
    fn run(mut self, walk: &impl Walk, non_stack: [(Label, Weight); 2]) -> Result<Vec<Node>, TreeError> {
        self.items = walk.start();
        let mut total = Weight::default();
        self.items.iter().for_each(|item| total.add(item.weight));
        non_stack.iter().for_each(|(_, weight)| total.add(*weight));
        self.push(Label::Root, total);
        let mut extra: Vec<(Label, Weight)> =
            non_stack.into_iter().filter(|(_, weight)| weight.magnitude != 0).collect();
        let mut tasks = vec![Task { node: 0, start: 0, end: self.items.len() }];
        let mut group = Group::default();
        while let Some(task) = tasks.pop() {
            if self.group as usize % CANCELLATION_INTERVAL == CANCELLATION_INTERVAL - 1 && (self.is_cancelled)() {
                return Err(TreeError::Cancelled);
            }
            if self.nodes.len() > MAX_NODES {
                return Err(TreeError::Nodes);
            }
            self.items.truncate(task.end);
            self.expand(walk, &task, std::mem::take(&mut extra), &mut group, &mut tasks);
        }
        Ok(self.nodes)
    }

    fn push(&mut self, label: Label, weight: Weight) {
        self.nodes.push(Node { label, value: weight.value, cache: weight.cache, first: 0, count: 0 });
    }

    /// Builds the children of a node: the frames above the threshold, `extra`, and the two pseudo nodes.
    fn expand(
        &mut self,
        walk: &impl Walk,
        task: &Task,
        extra: Vec<(Label, Weight)>,
        group: &mut Group,
        tasks: &mut Vec<Task>,
    ) {
        self.sum_by_frame(walk, task, &mut group.slots);
        let Group { slots, shown } = group;
        shown.clear();
        let Self { stacks, threshold, .. } = *self;
        let frame = |slot: &Slot| &stacks.frames[slot.frame as usize];
        let own = self.nodes[task.node as usize];
        let mut unknown = Weight { value: own.value, cache: own.cache, magnitude: 0 };
        let mut under = Weight::default();
        let mut subtract = |weight: Weight| {
            unknown.value = unknown.value.saturating_sub(weight.value);
            unknown.cache = unknown.cache.saturating_sub(weight.cache);
        };
        extra.iter().for_each(|(_, weight)| subtract(*weight));
        for (number, slot) in slots.iter().enumerate().filter(|(_, slot)| frame(slot).is_resolved()) {
            subtract(slot.weight);
            if slot.weight.magnitude >= threshold {
                shown.push(number as u32);
            } else {
                under.add(slot.weight);
            }
        }
        if shown.is_empty() && extra.is_empty() {
            return;
        }
        shown.sort_unstable_by(|left, right| {
            let (left, right) = (&slots[*left as usize], &slots[*right as usize]);
            right.weight.value.cmp(&left.weight.value).then_with(|| frame(left).cmp(frame(right)))
        });
        let first = self.nodes.len() as u32;
        let mut items = 0;
        for number in shown.iter() {
            let slot = &mut slots[*number as usize];
            slot.index = items;
            items += slot.count;
            let node = self.nodes.len() as u32;
            tasks.push(Task { node, start: task.start + slot.index, end: task.start + items });
            let Slot { frame, weight, .. } = *slot;
            self.push(Label::Frame(frame), weight);
        }
        for (label, weight) in extra {
            self.push(label, weight);
        }
        for (label, weight) in [(Label::UnderThreshold, under), (Label::Unknown, unknown)] {
            if weight.value != 0 || weight.cache != 0 {
                self.push(label, weight);
            }
        }
        let count = self.nodes.len() as u32 - first;
        let node = &mut self.nodes[task.node as usize];
        (node.first, node.count) = (first, count);
        self.replace_items(walk, task, slots, items);
    }

    /// Sums the items of a task by the frames that follow them.
    fn sum_by_frame(&mut self, walk: &impl Walk, task: &Task, slots: &mut Vec<Slot>) {
        slots.clear();
        self.group += 1;
        let Self { items, last_slot, group, .. } = self;
        walk.for_each_next(&items[task.start..task.end], |frame, item| {
            let last = &mut last_slot[frame as usize];
            if last.0 != *group {
                *last = (*group, slots.len() as u32);
                slots.push(Slot { frame, weight: Weight::default(), count: 0, index: NOT_SHOWN });
            }
            let slot = &mut slots[last.1 as usize];
            slot.weight.add(item.weight);
            slot.count += 1;
        });
    }

    /// Replaces the items of a task by the items after its shown frames, grouped by frame.
    fn replace_items(&mut self, walk: &impl Walk, task: &Task, slots: &mut [Slot], count: usize) {
        let Self { items, next_items, last_slot, .. } = self;
        next_items.clear();
        next_items.resize(count, Item { node: 0, weight: Weight::default() });
        walk.for_each_next(&items[task.start..task.end], |frame, item| {
            let slot = &mut slots[last_slot[frame as usize].1 as usize];
            if slot.index != NOT_SHOWN {
                next_items[slot.index] = item;
                slot.index += 1;
            }
        });
        items.truncate(task.start);
        items.extend_from_slice(next_items);
    }
}
