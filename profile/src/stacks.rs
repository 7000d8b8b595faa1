//! One call tree of any number of processes, at one or two times, in kibibytes.

use std::{collections::HashMap, sync::Arc};

use crate::{Frame, Kind, ProfileData, data::CallNode, samples::Samples};

/// Memory that is not attributed to stacks, in kibibytes per kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NonStackMemory {
    /// Resident since before the attach.
    pub before_attach: [i64; 3],
    /// In the kernel's total, but not otherwise accounted for.
    pub unattributed: [i64; 3],
}

/// Memory of the stacks of a call tree at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct StackMemory {
    /// Memory of each sample, per kind. Samples that were added later are missing.
    counts: Arc<Vec<[u64; 3]>>,
    /// Unit of the counts, in kibibytes.
    unit: i64,
    non_stack: NonStackMemory,
}

impl StackMemory {
    /// Kibibytes of a sample, per kind.
    fn of(&self, sample: usize) -> [i64; 3] {
        let counts = self.counts.get(sample).copied().unwrap_or_default();
        counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(self.unit))
    }
}

/// A call tree with the memory of its stacks.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    /// Distinct frames, including frames without a node.
    pub(crate) frames: Arc<Vec<Frame>>,
    /// Nodes by number; entry 0 is the root. A parent has a smaller number than its children.
    pub(crate) nodes: Arc<Vec<CallNode>>,
    samples: Samples,
    now: StackMemory,
    /// Memory at the earlier time of a comparison.
    then: Option<StackMemory>,
    /// Page size in bytes.
    pub(crate) page_bytes: u32,
}

impl Stacks {
    /// The sum of several processes.
    #[must_use]
    pub fn now(now: &[Arc<ProfileData>]) -> Self {
        match now {
            // The agent guarantees that the children of a node have different frame ids.
            [data] if data.is_distinct() => Self::shared(data),
            _ => Self::sum(now, None),
        }
    }

    /// The sum of several processes, compared with the sum at an earlier time.
    #[must_use]
    pub fn compared(now: &[Arc<ProfileData>], then: &[Arc<ProfileData>]) -> Self {
        Self::sum(now, Some(then))
    }

    /// One process; shares its columns.
    fn shared(data: &ProfileData) -> Self {
        let mut memory = StackMemory {
            counts: Arc::clone(&data.pages),
            unit: i64::from(data.page_bytes / 1024),
            non_stack: NonStackMemory::default(),
        };
        memory.non_stack.add(data);
        Self {
            frames: Arc::clone(&data.frames),
            nodes: Arc::clone(&data.nodes),
            samples: data.samples.clone(),
            now: memory,
            then: None,
            page_bytes: data.page_bytes,
        }
    }

    /// Merges the call trees of several processes.
    fn sum(now: &[Arc<ProfileData>], then: Option<&[Arc<ProfileData>]>) -> Self {
        let both = || now.iter().chain(then.iter().copied().flatten());
        let mut build = Build::new(both().map(|data| data.nodes()).max().unwrap_or(1));
        let mut add = |all: &[Arc<ProfileData>]| {
            let mut sums = Sums::default();
            all.iter().for_each(|data| build.add(data, &mut sums));
            sums
        };
        let (now_sums, then_sums) = (add(now), then.map(add));
        Self {
            frames: Arc::new(build.frames),
            nodes: Arc::new(build.nodes),
            samples: build.samples,
            now: now_sums.into_memory(),
            then: then_sums.map(Sums::into_memory),
            page_bytes: now.first().map_or(4096, |data| data.page_bytes),
        }
    }

    /// Memory that is not attributed to stacks, now and at the earlier time.
    #[must_use]
    pub fn non_stack(&self) -> (NonStackMemory, NonStackMemory) {
        (self.now.non_stack, self.then.as_ref().map(|then| then.non_stack).unwrap_or_default())
    }

    /// Nodes at which stacks with memory end, with the kibibytes of those stacks, per kind, now and at the earlier time.
    pub(crate) fn samples(&self) -> impl Iterator<Item = (u32, [i64; 3], [i64; 3])> + '_ {
        let then = |sample| self.then.as_ref().map_or([0; 3], |then| then.of(sample));
        self.samples.nodes().iter().enumerate().map(move |(sample, node)| (*node, self.now.of(sample), then(sample)))
    }

    /// Frames of the stack that ends at a node, innermost first.
    pub(crate) fn stack(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node as usize;
        std::iter::from_fn(move || {
            if at == 0 {
                return None;
            }
            let CallNode { parent, frame } = *self.nodes.get(at)?;
            at = parent as usize;
            Some(frame)
        })
    }
}

impl NonStackMemory {
    fn add(&mut self, data: &ProfileData) {
        let (before, unattributed) = (data.before_attach(), data.unattributed());
        for kind in Kind::ALL.map(Kind::index) {
            let before = i64::try_from(before[kind]).unwrap_or(i64::MAX);
            self.before_attach[kind] = self.before_attach[kind].saturating_add(before);
            self.unattributed[kind] = self.unattributed[kind].saturating_add(unattributed[kind]);
        }
    }
}

/// Memory of several processes, in kibibytes.
#[derive(Default)]
struct Sums {
    /// Of each sample, per kind.
    counts: Vec<[u64; 3]>,
    non_stack: NonStackMemory,
}

impl Sums {
    fn into_memory(self) -> StackMemory {
        StackMemory { counts: Arc::new(self.counts), unit: 1, non_stack: self.non_stack }
    }
}

/// A call tree merged from several.
struct Build {
    frames: Vec<Frame>,
    nodes: Vec<CallNode>,
    samples: Samples,
    /// Id of each distinct frame.
    frame_ids: HashMap<Frame, u32>,
    /// Number of each node by parent and frame.
    node_ids: HashMap<u64, u32, FastHash>,
}

impl Build {
    fn new(nodes: usize) -> Self {
        let node_ids = HashMap::with_capacity_and_hasher(nodes, FastHash);
        let mut nodes = Vec::with_capacity(nodes);
        nodes.push(CallNode::default());
        Self { frames: Vec::new(), nodes, samples: Samples::default(), frame_ids: HashMap::new(), node_ids }
    }

    fn add(&mut self, data: &ProfileData, sums: &mut Sums) {
        let frames: Vec<u32> = data.frames.iter().map(|frame| self.frame(frame)).collect();
        let mut nodes = vec![0u32; data.nodes()];
        for (at, node) in data.nodes.iter().enumerate().skip(1) {
            let frame = frames.get(node.frame as usize).copied().unwrap_or_default();
            nodes[at] = self.node(nodes[node.parent as usize], frame);
        }
        for (node, pages) in data.samples().filter(|(_, pages)| *pages != [0; 3]) {
            let sample = self.samples.get_or_add(nodes[node as usize]);
            if sums.counts.len() <= sample {
                sums.counts.resize(sample + 1, [0; 3]);
            }
            for (sum, pages) in sums.counts[sample].iter_mut().zip(pages) {
                *sum = sum.saturating_add(data.kib(pages));
            }
        }
        sums.non_stack.add(data);
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(id) = self.frame_ids.get(frame) {
            return *id;
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame.clone(), id);
        id
    }

    fn node(&mut self, parent: u32, frame: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.node_ids.entry(u64::from(parent) << 32 | u64::from(frame)).or_insert(next);
        if node == next {
            self.nodes.push(CallNode { parent, frame });
        }
        node
    }
}

/// Hash of node keys. The keys are numbers assigned here, so that no resistance against chosen keys is needed.
#[derive(Debug, Clone, Copy, Default)]
struct FastHash;

impl std::hash::BuildHasher for FastHash {
    type Hasher = FastHasher;

    fn build_hasher(&self) -> FastHasher {
        FastHasher(0)
    }
}

struct FastHasher(u64);

impl std::hash::Hasher for FastHasher {
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
