//! The two traversals of a call tree: from the innermost frame outwards, and from the outermost frame inwards.

use crate::data::CallNode;

/// Memory of a set of stacks, in kibibytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// Displayed value.
    pub(super) value: i64,
    /// Page cache within `value`; with [`Measure::Both`](crate::Measure::Both) the earlier value.
    pub(super) cache: i64,
    /// Value that is compared with the threshold; never negative.
    pub(super) magnitude: i64,
}

impl Weight {
    pub(super) fn add(&mut self, other: Self) {
        self.value = self.value.saturating_add(other.value);
        self.cache = self.cache.saturating_add(other.cache);
        self.magnitude = self.magnitude.saturating_add(other.magnitude);
    }

    pub(super) fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// A position in the call tree that was reached by a path, and the memory of the stacks through both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) node: u32,
    pub(super) weight: Weight,
}

/// A traversal of a call tree.
pub(super) trait Walk {
    /// Calls `next` with each frame that follows one of these positions, and the position after it.
    fn for_each_next(&self, items: &[Item], next: impl FnMut(u32, Item));

    /// The frame that follows a position and the position after it, if that has all memory of the position.
    fn only_next(&self, item: &Item) -> Option<(u32, Item)>;
}

/// Traversal from the innermost frame outwards: an item is positioned before the frame of its node.
pub(super) struct InnermostFirst<'a> {
    pub(super) nodes: &'a [CallNode],
}

impl Walk for InnermostFirst<'_> {
    fn for_each_next(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items.iter().filter(|item| item.node != 0) {
            let CallNode { parent, frame } = self.nodes[item.node as usize];
            next(frame, Item { node: parent, weight: item.weight });
        }
    }

    fn only_next(&self, item: &Item) -> Option<(u32, Item)> {
        let CallNode { parent, frame } = self.nodes[item.node as usize];
        (item.node != 0).then_some((frame, Item { node: parent, weight: item.weight }))
    }
}

/// Traversal from the outermost frame inwards: an item is positioned at its node.
pub(super) struct OutermostFirst {
    /// Memory of all stacks.
    total: Weight,
    /// Index of each node's children that can be displayed: `children[first[node]..first[node + 1]]`.
    first: Vec<u32>,
    children: Vec<Child>,
}

/// A node with the memory of its subtree. The children of a node are contiguous, for locality in trees of a million
/// nodes.
#[derive(Debug, Clone, Copy, Default)]
struct Child {
    weight: Weight,
    node: u32,
    frame: u32,
}

impl OutermostFirst {
    /// Of a call tree and the memory of the stacks that end at its nodes. Subtrees below `threshold` are not traversed: the
    /// children of a node have different frames, so that none of their sums can reach it.
    pub(super) fn new(call_tree: &[CallNode], samples: impl Iterator<Item = Item>, threshold: i64) -> Self {
        let nodes = call_tree.len();
        let mut weights = vec![Weight::default(); nodes];
        let mut is_open = vec![false; nodes];
        samples.for_each(|sample| weights[sample.node as usize] = sample.weight);
        // Children come before their parents, so that the weight of a node is complete when it is added to its parent.
        for at in (1..nodes).rev() {
            let weight = weights[at];
            is_open[at] = weight.magnitude >= threshold;
            if !weight.is_zero() {
                weights[call_tree[at].parent as usize].add(weight);
            }
        }
        is_open[0] = true;
        let is_child = |at: &usize| is_open[call_tree[*at].parent as usize] && !weights[*at].is_zero();
        let displayed: Vec<u32> = (1..nodes).filter(is_child).map(|at| at as u32).collect();
        let mut first = vec![0u32; nodes + 1];
        for at in &displayed {
            first[call_tree[*at as usize].parent as usize + 1] += 1;
        }
        let mut sum = 0;
        for index in &mut first {
            sum += *index;
            *index = sum;
        }
        let mut children = vec![Child::default(); displayed.len()];
        let mut next_child = first.clone();
        for node in displayed {
            let (CallNode { parent, frame }, weight) = (call_tree[node as usize], weights[node as usize]);
            let index = &mut next_child[parent as usize];
            children[*index as usize] = Child { weight, node, frame };
            *index += 1;
        }
        Self { total: weights[0], first, children }
    }

    /// The position of all stacks.
    pub(super) fn root(&self) -> Item {
        Item { node: 0, weight: self.total }
    }
}

impl Walk for OutermostFirst {
    fn for_each_next(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items {
            let at = item.node as usize;
            for child in &self.children[self.first[at] as usize..self.first[at + 1] as usize] {
                next(child.frame, Item { node: child.node, weight: child.weight });
            }
        }
    }

    fn only_next(&self, item: &Item) -> Option<(u32, Item)> {
        let at = item.node as usize;
        match self.children[self.first[at] as usize..self.first[at + 1] as usize] {
            [Child { weight, node, frame }] if weight == item.weight => Some((frame, Item { node, weight })),
            _ => None,
        }
    }
}
