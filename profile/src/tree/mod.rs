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

mod build;
mod walk;

use std::sync::Arc;

use crate::{Frame, Kinds, Stacks};
use build::Build;
use walk::{InnermostFirst, Item, OutermostFirst, Weight};

/// Maximum number of nodes of a tree.
const MAX_NODES: usize = 8 << 20;

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
        let weigh = |now: [i64; 3], then: [i64; 3]| {
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
        let positive = |entries: [i64; 3]| entries.map(|entry| entry.max(0));
        let (now, then) = stacks.non_stack();
        let non_stack = [
            (Label::BeforeAttach, weigh(positive(now.before_attach), positive(then.before_attach))),
            (Label::Unattributed, weigh(positive(now.unattributed), positive(then.unattributed))),
        ];
        let build = Build::new(stacks, options.threshold, is_cancelled);
        let samples = stacks.samples().map(|(node, now, then)| Item { node, weight: weigh(now, then) });
        let nodes = match options.reverse {
            false => {
                let mut items: Vec<Item> = samples.collect();
                items.retain(|item| !item.weight.is_zero());
                build.run(&InnermostFirst { nodes: &stacks.nodes }, items, non_stack)?
            }
            true => {
                let walk = OutermostFirst::new(&stacks.nodes, samples, build.threshold);
                build.run(&walk, vec![walk.root()], non_stack)?
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
