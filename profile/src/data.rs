//! The merged state of one process.

use std::sync::Arc;

use chainscope_proto::v1::{MemoryTarget, MemoryTotals};

use crate::{Frame, Kind};

/// Bytes of a page where nothing is said.
const PAGE_BYTES: u32 = 4096;

/// The state of one profile, consistent in itself. A clone is cheap and shares the columns: who merges the next delta
/// copies only the columns that it changes, and only while somebody still reads the old ones.
#[derive(Debug, Clone)]
pub struct Data {
    /// By id; entry 0 is the empty string.
    pub(crate) strings: Arc<Vec<Arc<str>>>,
    /// By id; entry 0 is of the root and means nothing.
    pub(crate) frames: Arc<Vec<Frame>>,
    /// No two frames are the same.
    pub(crate) distinct: bool,
    /// By node; entry 0 is the root. A parent's number is less than its child's.
    pub(crate) parents: Arc<Vec<u32>>,
    pub(crate) node_frames: Arc<Vec<u32>>,
    /// Pages of the stacks that end at a node, a column a kind.
    pub(crate) pages: [Arc<Vec<u64>>; 3],
    /// The observed process, for people.
    pub target: String,
    /// Key of the profile: nanoseconds since 1970 of the attach.
    pub profile: u64,
    /// When it was read, nanoseconds since 1970.
    pub time_ns: i64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// The process.
    pub process: MemoryTarget,
    /// Its numbers as a whole.
    pub totals: MemoryTotals,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            strings: Arc::new(vec!["".into()]),
            frames: Arc::new(vec![Frame::default()]),
            distinct: true,
            parents: Arc::new(vec![0]),
            node_frames: Arc::new(vec![0]),
            pages: std::array::from_fn(|_| Arc::new(vec![0])),
            target: String::new(),
            profile: 0,
            time_ns: 0,
            page_bytes: PAGE_BYTES,
            process: MemoryTarget::default(),
            totals: MemoryTotals::default(),
        }
    }
}

impl Data {
    /// Whether no two of its frames are shown by the same name.
    pub(crate) fn is_distinct(&self) -> bool {
        self.distinct
    }

    /// Nodes of its call tree, the root included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.parents.len()
    }

    /// Distinct stacks that hold something.
    #[must_use]
    pub fn stacks(&self) -> usize {
        let [anon, cache, kernel] = &self.pages;
        (anon.iter().zip(cache.iter()).zip(kernel.iter())).filter(|((a, b), c)| **a > 0 || **b > 0 || **c > 0).count()
    }

    /// Kibibytes that are held by stacks, a kind.
    #[must_use]
    pub fn attributed(&self) -> [u64; 3] {
        Kind::ALL.map(|kind| {
            let pages = self.pages[kind.index()].iter().fold(0u64, |sum, pages| sum.saturating_add(*pages));
            self.kib(pages)
        })
    }

    /// Kibibytes that were resident before the attach and still are, a kind.
    #[must_use]
    pub fn before_attach(&self) -> [u64; 3] {
        Kind::ALL.map(|kind| self.kib(self.totals_of(kind).fold(0, |sum, each| sum.saturating_add(each.before_attach))))
    }

    /// Kibibytes that the kernel's own count has and nothing else explains, a kind; negative if there is too much.
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

    /// Pages in kibibytes.
    #[must_use]
    pub fn kib(&self, pages: u64) -> u64 {
        pages.saturating_mul(u64::from(self.page_bytes / 1024))
    }

    /// Whether the process runs, as far as the agent has said.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.ended_ns == 0
    }
}
