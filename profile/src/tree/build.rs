//! Building the nodes of a tree, depth first.

use super::{
    Label, MAX_NODES, Node, TreeError,
    walk::{Item, Walk, Weight},
};
use crate::{Frame, Stacks};

/// Number of expanded nodes between two checks for cancellation.
const CANCELLATION_INTERVAL: usize = 1024;

/// One frame that follows a path, with the memory of its stacks.
#[derive(Debug, Clone, Copy)]
struct Slot {
    frame: u32,
    weight: Weight,
    /// Number of items after the frame.
    count: usize,
    /// Index in [`Build::items`] for the next of them; [`NOT_SHOWN`] if the frame has no node.
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
pub(super) struct Build<'a> {
    stacks: &'a Stacks,
    pub(super) threshold: i64,
    is_cancelled: &'a dyn Fn() -> bool,
    nodes: Vec<Node>,
    /// Items of all pending tasks, as a stack: the items of a task come after those of the tasks before it. They never
    /// exceed the items that the traversal began with.
    items: Vec<Item>,
    /// Items after the frames of the current group, each with the number of its frame's slot.
    next_items: Vec<(u32, Item)>,
    /// Whether each frame is resolved.
    is_resolved: Vec<bool>,
    /// For each frame the last group that it was in, and its slot there.
    last_slot: Vec<(u32, u32)>,
    /// Number of the current group.
    group: u32,
}

impl<'a> Build<'a> {
    pub(super) fn new(stacks: &'a Stacks, threshold: u64, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            stacks,
            threshold: i64::try_from(threshold).unwrap_or(i64::MAX),
            is_cancelled,
            nodes: Vec::new(),
            items: Vec::new(),
            next_items: Vec::new(),
            is_resolved: stacks.frames.iter().map(Frame::is_resolved).collect(),
            last_slot: vec![(0, 0); stacks.frames.len()],
            group: 0,
        }
    }

    /// Builds the nodes, depth first, from the items before any frame. `non_stack` are further children of the root.
    pub(super) fn run(
        mut self,
        walk: &impl Walk,
        items: Vec<Item>,
        non_stack: [(Label, Weight); 2],
    ) -> Result<Vec<Node>, TreeError> {
        self.items = items;
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
            let task = if task.node != 0 && task.end - task.start == 1 { self.expand_chain(walk, task) } else { task };
            self.expand(walk, &task, std::mem::take(&mut extra), &mut group, &mut tasks);
        }
        Ok(self.nodes)
    }

    fn push(&mut self, label: Label, weight: Weight) {
        self.nodes.push(Node { label, value: weight.value, cache: weight.cache, first: 0, count: 0 });
    }

    /// Builds the nodes below a node with one item, as far as each has one child with all of the memory: neither groups nor
    /// the threshold matter there. Returns the task of the last of them.
    fn expand_chain(&mut self, walk: &impl Walk, task: Task) -> Task {
        let Task { mut node, start, end } = task;
        let mut item = self.items[start];
        while self.nodes.len() <= MAX_NODES
            && let Some((frame, next)) = walk.only_next(&item)
            && self.is_resolved[frame as usize]
        {
            let child = self.nodes.len() as u32;
            let parent = &mut self.nodes[node as usize];
            (parent.first, parent.count) = (child, 1);
            self.push(Label::Frame(frame), next.weight);
            (node, item) = (child, next);
        }
        self.items[start] = item;
        Task { node, start, end }
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
        for (number, slot) in slots.iter().enumerate() {
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
        self.replace_items(task, slots, items);
    }

    /// Follows the items of a task by one frame, and sums them by resolved frame.
    fn sum_by_frame(&mut self, walk: &impl Walk, task: &Task, slots: &mut Vec<Slot>) {
        slots.clear();
        self.group += 1;
        let Self { items, next_items, is_resolved, last_slot, group, .. } = self;
        next_items.clear();
        walk.for_each_next(&items[task.start..task.end], |frame, item| {
            if !is_resolved[frame as usize] {
                return;
            }
            let last = &mut last_slot[frame as usize];
            if last.0 != *group {
                *last = (*group, slots.len() as u32);
                slots.push(Slot { frame, weight: Weight::default(), count: 0, index: NOT_SHOWN });
            }
            let slot = &mut slots[last.1 as usize];
            slot.weight.add(item.weight);
            slot.count += 1;
            next_items.push((last.1, item));
        });
    }

    /// Replaces the items of a task by the items after its shown frames, grouped by frame.
    fn replace_items(&mut self, task: &Task, slots: &mut [Slot], count: usize) {
        let Self { items, next_items, .. } = self;
        items.truncate(task.start);
        items.resize(task.start + count, Item { node: 0, weight: Weight::default() });
        let items = &mut items[task.start..];
        for (slot, item) in next_items {
            let slot = &mut slots[*slot as usize];
            if slot.index != NOT_SHOWN {
                items[slot.index] = *item;
                slot.index += 1;
            }
        }
    }
}
