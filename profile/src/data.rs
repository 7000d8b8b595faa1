//! The merged memory profile of one process.

use std::sync::Arc;

use chainscope_proto::v1::{MemoryTarget, MemoryTotals};

use crate::{Frame, Kind, samples::Samples};

/// Page size if the agent states none.
const DEFAULT_PAGE_BYTES: u32 = 4096;

/// A node of a call tree. Its stack is `frame` and the stack of its parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallNode {
    pub(crate) parent: u32,
    /// 0 at the root.
    pub(crate) frame: u32,
}

/// A consistent memory profile of one process. A clone is cheap and shares the columns (copy on write): merging the
/// next delta copies only the columns that it changes, and only while a clone still refers to them.
#[derive(Debug, Clone)]
pub struct ProfileData {
    /// Strings by id; entry 0 is the empty string.
    pub(crate) strings: Arc<Vec<Arc<str>>>,
    /// Frames by id; entry 0 is the unused frame of the root.
    pub(crate) frames: Arc<Vec<Frame>>,
    /// Whether all frames are distinct.
    pub(crate) distinct: bool,
    /// Nodes by number; entry 0 is the root. A parent has a smaller number than its children.
    pub(crate) nodes: Arc<Vec<CallNode>>,
    /// Nodes at which stacks with memory end.
    pub(crate) samples: Samples,
    /// Number of pages of each sample, per kind.
    pub(crate) pages: Arc<Vec<[u64; 3]>>,
    /// Label of the observed process.
    pub target: String,
    /// Key of the profile: time of the attach, in nanoseconds since 1970.
    pub profile: u64,
    /// Time of the state, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Page size in bytes.
    pub page_bytes: u32,
    /// The observed process.
    pub process: MemoryTarget,
    /// Totals of the process.
    pub totals: MemoryTotals,
}

impl Default for ProfileData {
    fn default() -> Self {
        Self {
            strings: Arc::new(vec!["".into()]),
            frames: Arc::new(vec![Frame::default()]),
            distinct: true,
            nodes: Arc::new(vec![CallNode::default()]),
            samples: Samples::default(),
            pages: Arc::default(),
            target: String::new(),
            profile: 0,
            time_ns: 0,
            page_bytes: DEFAULT_PAGE_BYTES,
            process: MemoryTarget::default(),
            totals: MemoryTotals::default(),
        }
    }
}

impl ProfileData {
    /// Whether all frames are distinct.
    pub(crate) fn is_distinct(&self) -> bool {
        self.distinct
    }

    /// Number of nodes of the call tree, the root included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Node of each sample, and its pages per kind.
    pub(crate) fn samples(&self) -> impl Iterator<Item = (u32, [u64; 3])> + '_ {
        self.samples.nodes().iter().copied().zip(self.pages.iter().copied())
    }

    /// Number of distinct stacks that hold memory.
    #[must_use]
    pub fn stacks(&self) -> usize {
        self.pages.iter().filter(|pages| **pages != [0; 3]).count()
    }

    /// Kibibytes held by stacks, per kind.
    #[must_use]
    pub fn attributed(&self) -> [u64; 3] {
        Kind::ALL.map(|kind| {
            let pages = self.pages.iter().fold(0u64, |sum, pages| sum.saturating_add(pages[kind.index()]));
            self.kib(pages)
        })
    }

    /// Kibibytes that were resident before the attach and still are, per kind.
    #[must_use]
    pub fn before_attach(&self) -> [u64; 3] {
        Kind::ALL.map(|kind| self.kib(self.totals_of(kind).fold(0, |sum, each| sum.saturating_add(each.before_attach))))
    }

    /// Kibibytes in the kernel's total that are not otherwise accounted for, per kind; negative if more is accounted
    /// for.
    #[must_use]
    pub fn unattributed(&self) -> [i64; 3] {
        let size = i64::from(self.page_bytes / 1024);
        Kind::ALL.map(|kind| {
            let pages = self.totals_of(kind).fold(0i64, |sum, each| sum.saturating_add(each.unattributed));
            pages.saturating_mul(size)
        })
    }

    fn totals_of(&self, kind: Kind) -> impl Iterator<Item = &chainscope_proto::v1::MemoryKindTotals> {
        self.totals.kinds.iter().filter(move |each| Kind::of_wire(each.kind) == Some(kind))
    }

    /// Converts pages to kibibytes.
    #[must_use]
    pub fn kib(&self, pages: u64) -> u64 {
        pages.saturating_mul(u64::from(self.page_bytes / 1024))
    }

    /// Whether the process was running at the time of the state.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.ended_ns == 0
    }
}
