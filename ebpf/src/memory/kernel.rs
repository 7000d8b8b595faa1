//! Tables shared with the kernel: layouts of `memory.h` and `rules.h`.

/// Address spaces that can be known at once: `LAYOUTS`.
pub(crate) const LAYOUTS: u32 = 16384;
/// Tables of mappings, and tables of rules, that can be there at once.
pub(crate) const TABLES: u32 = 8192;
/// `owners.h`: bits of a node's number in an owner's entry.
pub(crate) const NODE_BITS: u32 = 24;
/// `EXACT`
pub(crate) const EXACT: u64 = 1 << 63;
/// `NO_NODE`
pub(crate) const NO_NODE: u64 = u64::MAX;
/// Addresses below are ends of stacks.
pub(crate) const LEAST_ADDRESS: u64 = 4096;

/// `BPF_F_MMAPABLE | BPF_F_INNER_MAP`
pub(crate) const INNER_FLAGS: u32 = 1 << 10 | 1 << 12;

/// `struct target`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) image: u32,
    pub(crate) flags: u32,
}

/// In [`Target::flags`]
pub(crate) const BORROWED: u32 = 1;

/// `struct layout`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) image: u32,
    pub(crate) mappings: u32,
    pub(crate) epoch: u32,
    pub(crate) root: u32,
    pub(crate) stacks: [u64; 8],
    pub(crate) unmapped: u32,
    pub(crate) in_use: u32,
}

/// In [`Layout::unmapped`]: there is no such mapping.
pub(crate) const UNMAPPED_KNOWN: u32 = 2;

/// `struct node`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawNode {
    pub(crate) pc: u64,
    pub(crate) parent: u32,
    pub(crate) dead: u32,
    pub(crate) pages: [i64; 3],
}

/// `struct edge`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edge {
    pub(crate) pc: u64,
    pub(crate) parent: u32,
    pub(crate) pad: u32,
}

/// `struct account`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) allocations: u64,
    pub(crate) frames: u64,
    pub(crate) fresh_frames: u64,
    pub(crate) rule_misses: u64,
    pub(crate) edge_misses: u64,
    pub(crate) slow_reads: u64,
    pub(crate) beyond_table: u64,
    pub(crate) stale: u64,
    pub(crate) no_node: u64,
    pub(crate) moved: u64,
    pub(crate) checked: u64,
    pub(crate) mismatches: u64,
    pub(crate) no_folio: u64,
    pub(crate) pad: [u64; 3],
}

/// `struct adopted`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Adopted {
    pub(crate) frame: u32,
    pub(crate) node: u32,
}

/// How many of them there is room for: `ADOPTED`.
pub(crate) const ADOPTED: u32 = 8192;
/// `owners.h`: where the order is beside a node's number.
pub(crate) const ORDER_SHIFT: u32 = NODE_BITS;

/// `struct numbers`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) last_node: u32,
    pub(crate) last_image: u32,
    pub(crate) last_target: u32,
    pub(crate) lost_notices: u32,
    pub(crate) lost_targets: u32,
    pub(crate) collapsing: u32,
    pub(crate) freed: u32,
    pub(crate) pad: u32,
}

/// `struct mapping`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bias: u64,
    pub(crate) table: u32,
    pub(crate) rows: u32,
}

/// `struct rule_pair`: two rows as words.
pub(crate) type RulePair = [u32; 6];

// SAFETY: all of them are repr(C) structs of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for Target {}
// SAFETY: as above.
unsafe impl aya::Pod for Layout {}
// SAFETY: as above.
unsafe impl aya::Pod for RawNode {}
// SAFETY: as above.
unsafe impl aya::Pod for Edge {}
// SAFETY: as above.
unsafe impl aya::Pod for Account {}
// SAFETY: as above.
unsafe impl aya::Pod for Adopted {}
// SAFETY: as above.
unsafe impl aya::Pod for Numbers {}
// SAFETY: as above.
unsafe impl aya::Pod for RawMapping {}

const _: () = assert!(size_of::<Layout>() == 88);
const _: () = assert!(size_of::<RawNode>() == 40);
const _: () = assert!(size_of::<Account>() == 128);
const _: () = assert!(size_of::<Numbers>() == 32);
const _: () = assert!(size_of::<RawMapping>() == 32);
const _: () = assert!(size_of::<RulePair>() == 2 * size_of::<chainscope_unwind::Row>());
