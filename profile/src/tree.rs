//! What of a call tree is worth showing.
//!
//! A node's children are the frames behind its path that hold at least the threshold, greatest first; what the others
//! hold is one child `underThreshold`, and what ends at the node, or goes on in a frame that cannot be named, one child
//! `unknown`. So the children of a node add up to the node. If no child is left, both are left out: then all of it is the
//! node's own.
//!
//! The root has two more children, which no threshold hides: what was resident before the attach, and what the kernel's
//! own count has beyond everything else. If the kernel counts less than is attributed, there is nothing to be shown for
//! that in a tree: `/v1/targets` says so.

use std::sync::Arc;

use crate::{
    Frame, Kinds, Stacks,
    walk::{Inwards, Item, Outwards, Walk, Weight},
};

/// Nodes that a tree may have.
const MOST_NODES: usize = 8 << 20;

/// Groups between two looks whether the tree is still wanted.
const LOOK: usize = 1024;

/// Which way a tree is built, and from what on its nodes are shown.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Children of the root are outermost frames (entry points) instead of innermost ones.
    pub reverse: bool,
    /// Kibibytes that a child holds at least.
    pub threshold: u64,
    /// What is counted.
    pub kinds: Kinds,
    /// What a node shows.
    pub measure: Measure,
}

/// What a node shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// What is held now.
    Now,
    /// What is held now beyond the earlier moment; negative where it was more. The threshold looks at how much changed in
    /// all stacks of a node, so that what grew here and shrank there does not hide.
    Growth,
    /// `value` is what is held now, `cache` what was held at the earlier moment.
    Both,
}

/// Why there is no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Nobody waits for it any more.
    #[error("the tree is not wanted any more")]
    Cancelled,
    /// It would be larger than any reader can use.
    #[error("the tree has more than {} nodes: a greater threshold makes it smaller", MOST_NODES)]
    Nodes,
}

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// Everything.
    Root,
    /// A frame; see [`Tree::frame`].
    Frame(u32),
    /// Children below the threshold.
    UnderThreshold,
    /// What ends at the node, or cannot be named.
    Unknown,
    /// Resident before the attach.
    BeforeAttach,
    /// In the kernel's count, and explained by nothing.
    Unattributed,
}

impl Label {
    /// The text that stands for it in the API; none for the root and frames.
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
    /// What it stands for.
    pub label: Label,
    /// Kibibytes; see [`Measure`].
    pub value: i64,
    /// Kibibytes; see [`Measure`].
    pub cache: i64,
    first: u32,
    count: u32,
}

/// A tree, in one piece: however deep it is, nothing recurses when it is walked or dropped.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    frames: Arc<Vec<Frame>>,
}

impl Tree {
    /// Builds the tree. `is_cancelled` is asked now and then.
    ///
    /// # Errors
    /// It would be too large, or is not wanted any more.
    pub fn new(stacks: &Stacks, shape: &Shape, is_cancelled: &dyn Fn() -> bool) -> Result<Self, TooLarge> {
        let weigh = |(now, then): ([i64; 3], [i64; 3])| {
            let ((value, cache), (earlier, earlier_cache)) = (shape.kinds.sum(&now), shape.kinds.sum(&then));
            match shape.measure {
                Measure::Now => Weight { value, cache, keep: value.max(0) },
                Measure::Growth => {
                    let value = value.saturating_sub(earlier);
                    Weight { value, cache: cache.saturating_sub(earlier_cache), keep: value.saturating_abs() }
                }
                Measure::Both => Weight { value, cache: earlier, keep: value.max(earlier) },
            }
        };
        let weigh_node = |node: usize| weigh(stacks.held(node));
        let positive = |entries: [i64; 3]| entries.map(|entry| entry.max(0));
        let (now, then) = stacks.rest();
        let rest = [
            (Label::BeforeAttach, weigh((positive(now.before_attach), positive(then.before_attach)))),
            (Label::Unattributed, weigh((positive(now.unattributed), positive(then.unattributed)))),
        ];
        let build = Build::new(stacks, shape.threshold, is_cancelled);
        let nodes = match shape.reverse {
            false => build.run(&Inwards { stacks, weigh: weigh_node }, rest)?,
            true => {
                let walk = Outwards::new(stacks, build.threshold, weigh_node);
                build.run(&walk, rest)?
            }
        };
        Ok(Self { nodes, frames: Arc::clone(&stacks.frames) })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> u32 {
        0
    }

    /// A node by its number.
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is nothing but the root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// Numbers of a node's children, in the order in which they are shown.
    pub fn children(&self, number: u32) -> std::ops::Range<u32> {
        let node = self.node(number);
        node.first..node.first + node.count
    }

    /// How many frames there are, some of which may be of no node.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The frame of a [`Label::Frame`].
    ///
    /// # Panics
    /// There is no such frame.
    #[must_use]
    pub fn frame(&self, number: u32) -> &Frame {
        &self.frames[number as usize]
    }
}

/// What one frame behind a path holds.
#[derive(Debug, Clone, Copy)]
struct Slot {
    frame: u32,
    weight: Weight,
    /// Places behind it.
    count: usize,
    /// Where the next of them goes; [`DROPPED`] if the slot is not shown.
    place: usize,
}

const DROPPED: usize = usize::MAX;

/// A node whose children are still to be found: behind these items.
struct Task {
    node: u32,
    start: usize,
    end: usize,
}

struct Build<'a> {
    stacks: &'a Stacks,
    threshold: i64,
    is_cancelled: &'a dyn Fn() -> bool,
    nodes: Vec<Node>,
    /// Items of all tasks that wait; a task's are behind those of the tasks that wait longer. They are parts of what the
    /// walk began with, so there are never more.
    items: Vec<Item>,
    /// Items of the children that are being found.
    behind: Vec<Item>,
    /// Numbers of the slots that are shown.
    shown: Vec<u32>,
    /// For each frame, where its slot is, if `seen` says that it is of this group.
    slot_of: Vec<u32>,
    seen: Vec<u32>,
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
            behind: Vec::new(),
            shown: Vec::new(),
            slot_of: vec![0; stacks.frames.len()],
            seen: vec![0; stacks.frames.len()],
            group: 0,
        }
    }

    fn run(mut self, walk: &impl Walk, rest: [(Label, Weight); 2]) -> Result<Vec<Node>, TooLarge> {
        self.items = walk.start();
        let mut total = Weight::default();
        self.items.iter().for_each(|item| total.add(item.weight));
        rest.iter().for_each(|(_, weight)| total.add(*weight));
        self.push(Label::Root, total);
        let mut rest: Vec<(Label, Weight)> = rest.into_iter().filter(|(_, weight)| weight.keep != 0).collect();
        let mut tasks = vec![Task { node: 0, start: 0, end: self.items.len() }];
        let mut slots = Vec::new();
        while let Some(task) = tasks.pop() {
            if self.group as usize % LOOK == LOOK - 1 && (self.is_cancelled)() {
                return Err(TooLarge::Cancelled);
            }
            if self.nodes.len() > MOST_NODES {
                return Err(TooLarge::Nodes);
            }
            self.items.truncate(task.end);
            self.expand(walk, &task, std::mem::take(&mut rest), &mut slots, &mut tasks);
        }
        Ok(self.nodes)
    }

    fn push(&mut self, label: Label, weight: Weight) {
        self.nodes.push(Node { label, value: weight.value, cache: weight.cache, first: 0, count: 0 });
    }

    /// Finds the children of a node.
    fn expand(
        &mut self,
        walk: &impl Walk,
        task: &Task,
        rest: Vec<(Label, Weight)>,
        slots: &mut Vec<Slot>,
        tasks: &mut Vec<Task>,
    ) {
        self.group(walk, task, slots);
        let Self { stacks, threshold, .. } = *self;
        let frame = |slot: &Slot| &stacks.frames[slot.frame as usize];
        let own = self.nodes[task.node as usize];
        let mut unknown = Weight { value: own.value, cache: own.cache, keep: 0 };
        let mut under = Weight::default();
        let mut take = |weight: Weight| {
            unknown.value = unknown.value.saturating_sub(weight.value);
            unknown.cache = unknown.cache.saturating_sub(weight.cache);
        };
        rest.iter().for_each(|(_, weight)| take(*weight));
        let mut shown = std::mem::take(&mut self.shown);
        shown.clear();
        for (number, slot) in slots.iter().enumerate().filter(|(_, slot)| frame(slot).is_resolved()) {
            take(slot.weight);
            if slot.weight.keep >= threshold {
                shown.push(number as u32);
            } else {
                under.add(slot.weight);
            }
        }
        if shown.is_empty() && rest.is_empty() {
            self.shown = shown;
            return;
        }
        shown.sort_unstable_by(|left, right| {
            let (left, right) = (&slots[*left as usize], &slots[*right as usize]);
            right.weight.value.cmp(&left.weight.value).then_with(|| frame(left).cmp(frame(right)))
        });
        let first = self.nodes.len() as u32;
        let mut place = 0;
        for number in &shown {
            let slot = &mut slots[*number as usize];
            slot.place = place;
            place += slot.count;
            let node = self.nodes.len() as u32;
            tasks.push(Task { node, start: task.start + slot.place, end: task.start + place });
            let Slot { frame, weight, .. } = *slot;
            self.push(Label::Frame(frame), weight);
        }
        for (label, weight) in rest {
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
        self.shown = shown;
        self.scatter(walk, task, slots, place);
    }

    /// Adds up what is behind each next frame.
    fn group(&mut self, walk: &impl Walk, task: &Task, slots: &mut Vec<Slot>) {
        slots.clear();
        self.group += 1;
        let Self { items, slot_of, seen, group, .. } = self;
        walk.each(&items[task.start..task.end], |frame, item| {
            let at = frame as usize;
            if seen[at] != *group {
                seen[at] = *group;
                slot_of[at] = slots.len() as u32;
                slots.push(Slot { frame, weight: Weight::default(), count: 0, place: DROPPED });
            }
            let slot = &mut slots[slot_of[at] as usize];
            slot.weight.add(item.weight);
            slot.count += 1;
        });
    }

    /// Puts the places behind each shown frame together, where the task's own items were.
    fn scatter(&mut self, walk: &impl Walk, task: &Task, slots: &mut [Slot], count: usize) {
        let Self { items, behind, slot_of, .. } = self;
        behind.clear();
        behind.resize(count, Item { node: 0, weight: Weight::default() });
        walk.each(&items[task.start..task.end], |frame, item| {
            let slot = &mut slots[slot_of[frame as usize] as usize];
            if slot.place != DROPPED {
                behind[slot.place] = item;
                slot.place += 1;
            }
        });
        items.truncate(task.start);
        items.extend_from_slice(behind);
    }
}
