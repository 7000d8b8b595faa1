//! The two ways through a call tree: from the innermost frame outwards, or from the outermost inwards.

use crate::Stacks;

/// What is added up on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// What is shown.
    pub(crate) value: i64,
    /// The part of it that is page cache; in a comparison by both, the earlier value.
    pub(crate) cache: i64,
    /// What the threshold looks at; never negative.
    pub(crate) keep: i64,
}

impl Weight {
    pub(crate) fn add(&mut self, other: Self) {
        self.value = self.value.saturating_add(other.value);
        self.cache = self.cache.saturating_add(other.cache);
        self.keep = self.keep.saturating_add(other.keep);
    }

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// A place in the call tree, reached by a path, and what was held by the stacks that lead through both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) node: u32,
    pub(crate) weight: Weight,
}

/// A way through a call tree.
pub(crate) trait Walk {
    /// Where it begins.
    fn start(&self) -> Vec<Item>;

    /// The next frame behind each of these places, and the place behind it.
    fn each(&self, items: &[Item], next: impl FnMut(u32, Item));
}

/// Innermost frame first: an item stands before its node.
pub(crate) struct Inwards<'a, W> {
    pub(crate) stacks: &'a Stacks,
    /// What the stacks that end at a node weigh.
    pub(crate) weigh: W,
}

impl<W: Fn(usize) -> Weight> Walk for Inwards<'_, W> {
    fn start(&self) -> Vec<Item> {
        let held = (0..self.stacks.parents.len()).filter(|node| self.stacks.is_held(*node));
        let items = held.map(|node| Item { node: node as u32, weight: (self.weigh)(node) });
        items.filter(|item| !item.weight.is_zero()).collect()
    }

    fn each(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items.iter().filter(|item| item.node != 0) {
            let at = item.node as usize;
            next(self.stacks.node_frames[at], Item { node: self.stacks.parents[at], weight: item.weight });
        }
    }
}

/// Outermost frame first: an item stands on its node.
pub(crate) struct Outwards {
    total: Weight,
    /// Children of each node that can be shown at all: `children[first[node]..first[node + 1]]`.
    first: Vec<u32>,
    children: Vec<Child>,
}

/// A node with all that is below it. Children of a node lie side by side: that is what makes trees of a million nodes quick.
#[derive(Debug, Clone, Copy, Default)]
struct Child {
    weight: Weight,
    node: u32,
    frame: u32,
}

impl Outwards {
    /// Nodes below `threshold` are not gone into: as no two children of a node have the same frame, no sum of theirs is
    /// shown.
    pub(crate) fn new(stacks: &Stacks, threshold: i64, weigh: impl Fn(usize) -> Weight) -> Self {
        let nodes = stacks.parents.len();
        let mut weights = vec![Weight::default(); nodes];
        // Children before their parents: what arrives at a node is complete.
        for at in (1..nodes).rev() {
            if stacks.is_held(at) {
                weights[at].add(weigh(at));
            }
            let weight = weights[at];
            if !weight.is_zero() {
                weights[stacks.parents[at] as usize].add(weight);
            }
        }
        weights[0].add(weigh(0));
        let opens: Vec<bool> = weights.iter().map(|weight| weight.keep >= threshold).collect();
        let is_child = |at: usize| {
            let parent = stacks.parents[at] as usize;
            (parent == 0 || opens[parent]) && !weights[at].is_zero()
        };
        let mut first = vec![0u32; nodes + 1];
        for at in (1..nodes).filter(|at| is_child(*at)) {
            first[stacks.parents[at] as usize + 1] += 1;
        }
        let mut sum = 0;
        for place in &mut first {
            sum += *place;
            *place = sum;
        }
        let mut children = vec![Child::default(); sum as usize];
        let mut place = first.clone();
        for at in (1..nodes).filter(|at| is_child(*at)) {
            let place = &mut place[stacks.parents[at] as usize];
            children[*place as usize] = Child { weight: weights[at], node: at as u32, frame: stacks.node_frames[at] };
            *place += 1;
        }
        Self { total: weights[0], first, children }
    }
}

impl Walk for Outwards {
    fn start(&self) -> Vec<Item> {
        vec![Item { node: 0, weight: self.total }]
    }

    fn each(&self, items: &[Item], mut next: impl FnMut(u32, Item)) {
        for item in items {
            let at = item.node as usize;
            for child in &self.children[self.first[at] as usize..self.first[at + 1] as usize] {
                next(child.frame, Item { node: child.node, weight: child.weight });
            }
        }
    }
}
