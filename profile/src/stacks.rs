//! One call tree of any number of processes, now and at an earlier moment, in kibibytes.

use std::{collections::HashMap, sync::Arc};

use crate::{Data, Frame, Kind};

/// What no stack holds, in kibibytes, an entry a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rest {
    /// Resident before the attach, and still.
    pub before_attach: [i64; 3],
    /// In the kernel's own count, and explained by nothing.
    pub unattributed: [i64; 3],
}

/// What the stacks of a call tree hold at one moment: a column a kind, by the node at which they end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    columns: [Arc<Vec<u64>>; 3],
    /// Kibibytes of one of them.
    unit: i64,
    pub(crate) rest: Rest,
}

impl Held {
    /// Kibibytes of the stacks that end at a node, a kind.
    pub(crate) fn at(&self, node: usize) -> [i64; 3] {
        let kib = |column: &Arc<Vec<u64>>| {
            let count = column.get(node).map_or(0, |count| i64::try_from(*count).unwrap_or(i64::MAX));
            count.saturating_mul(self.unit)
        };
        let [anon, cache, kernel] = &self.columns;
        [kib(anon), kib(cache), kib(kernel)]
    }

    /// Whether any stack that ends at a node holds something.
    fn is_at(&self, node: usize) -> bool {
        self.columns.iter().any(|column| column.get(node).is_some_and(|count| *count != 0))
    }
}

/// A call tree with what its stacks hold.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    /// Distinct frames; some may be of no node.
    pub(crate) frames: Arc<Vec<Frame>>,
    /// Entry 0 is the root; a parent's number is less than its child's.
    pub(crate) parents: Arc<Vec<u32>>,
    /// The frame of each node; of the root it means nothing.
    pub(crate) node_frames: Arc<Vec<u32>>,
    pub(crate) now: Held,
    /// The earlier moment, if one is compared with.
    pub(crate) then: Option<Held>,
    /// Bytes of a page, for those who want to say so.
    pub(crate) page_bytes: u32,
}

impl Stacks {
    /// The sum of some processes.
    #[must_use]
    pub fn now(now: &[Arc<Data>]) -> Self {
        match now {
            // That no two children of a node have the same frame is what the agent promises.
            [data] if data.is_distinct() => Self::shared(data),
            _ => Self::added(now, None),
        }
    }

    /// Some processes, and what is to be compared with them.
    #[must_use]
    pub fn compared(now: &[Arc<Data>], then: &[Arc<Data>]) -> Self {
        Self::added(now, Some(then))
    }

    /// One process as it is: nothing is copied.
    fn shared(data: &Data) -> Self {
        let mut held =
            Held { columns: data.pages.clone(), unit: i64::from(data.page_bytes / 1024), rest: Rest::default() };
        held.rest.add(data);
        Self {
            frames: Arc::clone(&data.frames),
            parents: Arc::clone(&data.parents),
            node_frames: Arc::clone(&data.node_frames),
            now: held,
            then: None,
            page_bytes: data.page_bytes,
        }
    }

    fn added(now: &[Arc<Data>], then: Option<&[Arc<Data>]>) -> Self {
        let both = || now.iter().chain(then.iter().copied().flatten());
        let mut build = Build::new(both().map(|data| data.nodes()).max().unwrap_or(1));
        let mut add = |all: &[Arc<Data>]| {
            let mut held = Sums::default();
            all.iter().for_each(|data| build.add(data, &mut held));
            held
        };
        let (now_held, then_held) = (add(now), then.map(add));
        let nodes = build.parents.len();
        Self {
            frames: Arc::new(build.frames),
            parents: Arc::new(build.parents),
            node_frames: Arc::new(build.node_frames),
            now: now_held.held(nodes),
            then: then_held.map(|held| held.held(nodes)),
            page_bytes: now.first().map_or(4096, |data| data.page_bytes),
        }
    }

    /// What no stack holds, now and at the earlier moment.
    #[must_use]
    pub fn rest(&self) -> (Rest, Rest) {
        (self.now.rest, self.then.as_ref().map(|then| then.rest).unwrap_or_default())
    }

    /// What the stacks that end at a node hold, now and at the earlier moment.
    pub(crate) fn held(&self, node: usize) -> ([i64; 3], [i64; 3]) {
        (self.now.at(node), self.then.as_ref().map_or([0; 3], |then| then.at(node)))
    }

    /// Whether stacks that end at a node hold anything, now or at the earlier moment. Of most nodes none does, and then
    /// there is nothing to be weighed.
    pub(crate) fn is_held(&self, node: usize) -> bool {
        self.now.is_at(node) || self.then.as_ref().is_some_and(|then| then.is_at(node))
    }

    /// Frames of the stack that ends at a node, innermost first.
    pub(crate) fn stack(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node as usize;
        std::iter::from_fn(move || {
            if at == 0 {
                return None;
            }
            let frame = *self.node_frames.get(at)?;
            at = *self.parents.get(at)? as usize;
            Some(frame)
        })
    }
}

impl Rest {
    fn add(&mut self, data: &Data) {
        let (before, unattributed) = (data.before_attach(), data.unattributed());
        for kind in Kind::ALL.map(Kind::index) {
            let before = i64::try_from(before[kind]).unwrap_or(i64::MAX);
            self.before_attach[kind] = self.before_attach[kind].saturating_add(before);
            self.unattributed[kind] = self.unattributed[kind].saturating_add(unattributed[kind]);
        }
    }
}

/// What several processes hold together, in kibibytes.
#[derive(Default)]
struct Sums {
    columns: [Vec<u64>; 3],
    rest: Rest,
}

impl Sums {
    fn held(self, nodes: usize) -> Held {
        let columns = self.columns.map(|mut column| {
            column.resize(nodes, 0);
            Arc::new(column)
        });
        Held { columns, unit: 1, rest: self.rest }
    }
}

/// Several call trees become one.
struct Build {
    frames: Vec<Frame>,
    parents: Vec<u32>,
    node_frames: Vec<u32>,
    /// Distinct frames by what they are.
    known: HashMap<Frame, u32>,
    /// Nodes by parent and frame.
    places: HashMap<u64, u32, Quick>,
}

impl Build {
    fn new(nodes: usize) -> Self {
        let column = || {
            let mut column = Vec::with_capacity(nodes);
            column.push(0);
            column
        };
        Self {
            frames: Vec::new(),
            parents: column(),
            node_frames: column(),
            known: HashMap::new(),
            places: HashMap::with_capacity_and_hasher(nodes, Quick),
        }
    }

    fn add(&mut self, data: &Data, sums: &mut Sums) {
        let frames: Vec<u32> = data.frames.iter().map(|frame| self.frame(frame)).collect();
        let mut nodes = vec![0u32; data.nodes()];
        for at in 1..data.nodes() {
            let parent = nodes[data.parents[at] as usize];
            let frame = frames.get(data.node_frames[at] as usize).copied().unwrap_or_default();
            nodes[at] = self.place(parent, frame);
        }
        for (column, pages) in sums.columns.iter_mut().zip(&data.pages) {
            column.resize(self.parents.len(), 0);
            for (pages, node) in pages.iter().zip(&nodes).filter(|(pages, _)| **pages > 0) {
                let sum = &mut column[*node as usize];
                *sum = sum.saturating_add(data.kib(*pages));
            }
        }
        sums.rest.add(data);
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(id) = self.known.get(frame) {
            return *id;
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.known.insert(frame.clone(), id);
        id
    }

    fn place(&mut self, parent: u32, frame: u32) -> u32 {
        let next = self.parents.len() as u32;
        let node = *self.places.entry(u64::from(parent) << 32 | u64::from(frame)).or_insert(next);
        if node == next {
            self.parents.push(parent);
            self.node_frames.push(frame);
        }
        node
    }
}

/// Hashes pairs of small numbers that nobody can choose: the numbers are our own.
#[derive(Debug, Clone, Copy, Default)]
struct Quick;

impl std::hash::BuildHasher for Quick {
    type Hasher = QuickHasher;

    fn build_hasher(&self) -> QuickHasher {
        QuickHasher(0)
    }
}

struct QuickHasher(u64);

impl std::hash::Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
