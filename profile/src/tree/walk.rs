//! The two traversals of a call tree: from the innermost frame outwards, and from the outermost frame inwards.

use crate::{Stacks, data::CallNode};

/// Memory of a set of stacks, in kibibytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Displayed value.
    pub(crate) value: i64,
    /// Page cache within `value`; with [`Measure::Both`](crate::Measure::Both) the earlier value.
    pub(crate) cache: i64,
    /// Value that is compared with the threshold; never negative.
    pub(crate) magnitude: i64,
}

impl Weight {
    pub(crate) fn add(&mut self, other: Self) {
        self.value = self.value.saturating_add(other.value);
        self.cache = self.cache.saturating_add(other.cache);
        self.magnitude = self.magnitude.saturating_add(other.magnitude);
    }

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// A position in the call tree that was reached by a path, and the memory of the stacks through both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) node: u32,
    pub(crate) weight: Weight,
}

/// A traversal of a call tree.
pub(crate) trait Walk {
    /// The initial positions.
    fn start(&self) -> Vec<Item>;

    /// Calls `next` with each frame that follows one of these positions, and the position after it.
    fn for_each_next(&self, items: &[Item], next: impl FnMut(u32, Item));
}

/// Traversal from the innermost frame outwards: an item is positioned before the frame of its node.
pub(crate) struct InnermostFirst<'a, W> {
    pub(crate) stacks: &'a Stacks,
    /// Memory of the stacks that end at a node.
    pub(crate) weigh: W,
}

impl<W: Fn(usize) -> Weight> Walk for InnermostFirst<'_, W> {
    fn start(&self) -> Vec<Item> {
        let items = (0..self.stacks.nodes.len()).map(|node| Item { node: node as u32, weight: (self.weigh)(node) });
        items.filter(|item| !item.weight.is_zero()).collect()
    }

    fn for_each_next(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items.iter().filter(|item| item.node != 0) {
            let CallNode { parent, frame } = self.stacks.nodes[item.node as usize];
            next(frame, Item { node: parent, weight: item.weight });
        }
    }
}

/// Traversal from the outermost frame inwards: an item is positioned at its node.
pub(crate) struct OutermostFirst {
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
    /// Subtrees below `threshold` are not traversed: the children of a node have different frames, so that none of
    /// their sums can reach it.
    pub(crate) fn new(stacks: &Stacks, threshold: i64, weigh: impl Fn(usize) -> Weight) -> Self {
        let nodes = stacks.nodes.len();
        let mut weights = vec![Weight::default(); nodes];
        // Children come before their parents, so that the weight of a node is complete when it is added to its parent.
        for at in (1..nodes).rev() {
            weights[at].add(weigh(at));
            let weight = weights[at];
            if !weight.is_zero() {
                weights[stacks.nodes[at].parent as usize].add(weight);
            }
        }
        weights[0].add(weigh(0));
        let is_open: Vec<bool> = weights.iter().map(|weight| weight.magnitude >= threshold).collect();
        let is_child = |at: usize| {
            let parent = stacks.nodes[at].parent as usize;
            (parent == 0 || is_open[parent]) && !weights[at].is_zero()
        };
        let mut first = vec![0u32; nodes + 1];
        for at in (1..nodes).filter(|at| is_child(*at)) {
            first[stacks.nodes[at].parent as usize + 1] += 1;
        }
        let mut sum = 0;
        for index in &mut first {
            sum += *index;
            *index = sum;
        }
        let mut children = vec![Child::default(); sum as usize];
        let mut next_child = first.clone();
        for at in (1..nodes).filter(|at| is_child(*at)) {
            let index = &mut next_child[stacks.nodes[at].parent as usize];
            children[*index as usize] = Child { weight: weights[at], node: at as u32, frame: stacks.nodes[at].frame };
            *index += 1;
        }
        Self { total: weights[0], first, children }
    }
}

impl Walk for OutermostFirst {
    fn start(&self) -> Vec<Item> {
        vec![Item { node: 0, weight: self.total }]
    }

    fn for_each_next(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items {
            let at = item.node as usize;
            for child in &self.children[self.first[at] as usize..self.first[at + 1] as usize] {
                next(child.frame, Item { node: child.node, weight: child.weight });
            }
        }
    }
}
