//! Keys and values of the maps of the memory programs, as declared in `src/bpf/memory`.

/// Capacity of the array of address spaces: `MAX_ADDRESS_SPACES`.
pub(crate) const MAX_ADDRESS_SPACES: u32 = 16384;
/// Maximum number of tables of mappings, and of unwind tables.
pub(crate) const MAX_TABLES: u32 = 8192;
/// `NODE_BITS` of `page_owner.h`: bits of the node id in an owner.
pub(crate) const NODE_BITS: u32 = 24;
/// `EXACT`: the address of an instruction, not a return address.
pub(crate) const EXACT: u64 = 1 << 63;
/// `UNUSED_NODE`: the id was allocated but is not used.
pub(crate) const UNUSED_NODE: u64 = u64::MAX;
/// Smaller addresses of a node are values of `enum stack_end`.
pub(crate) const MIN_ADDRESS: u64 = 4096;

/// `BPF_F_MMAPABLE | BPF_F_INNER_MAP`
pub(crate) const INNER_FLAGS: u32 = 1 << 10 | 1 << 12;

/// `struct target`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) mm: u32,
    pub(crate) flags: u32,
}

/// In [`Target::flags`]: runs in the address space of its parent, between vfork and exec.
pub(crate) const SHARES_MM: u32 = 1;

/// `MAX_PID`: process ids are below it.
pub(crate) const MAX_PID: u32 = 1 << 22;

/// `struct address_space`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressSpace {
    pub(crate) mm: u32,
    pub(crate) mappings: u32,
    pub(crate) generation: u32,
    pub(crate) root: u32,
    pub(crate) stacks: [u64; 8],
    pub(crate) unmapped: u32,
    pub(crate) in_use: u32,
    pub(crate) nodes: u32,
    pub(crate) overflow: u32,
}

/// `TREE_FULL` of `enum stack_end`: the address of overflow nodes.
pub(crate) const TREE_FULL: u64 = 6;

/// In [`AddressSpace::unmapped`]: the reported address is in no mapping.
pub(crate) const UNMAPPED_CONFIRMED: u32 = 2;

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

/// `struct counters`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: u64,
    pub(crate) frames: u64,
    pub(crate) unwound_frames: u64,
    pub(crate) rule_misses: u64,
    pub(crate) edge_misses: u64,
    pub(crate) slow_reads: u64,
    pub(crate) beyond_owner_table: u64,
    pub(crate) missed_frees: u64,
    pub(crate) tree_full: u64,
    pub(crate) moved_pages: u64,
    pub(crate) verified_stacks: u64,
    pub(crate) mismatched_stacks: u64,
    pub(crate) folio_table_full: u64,
    pub(crate) share_full: u64,
    pub(crate) pad: [u64; 2],
}

/// `struct preexisting_page`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreexistingPage {
    pub(crate) pfn: u32,
    pub(crate) node: u32,
}

/// Pages of a batch: `PREEXISTING_BATCH`.
pub(crate) const PREEXISTING_BATCH: u32 = 8192;
/// Large folios of a batch: `FOLIO_BATCH`.
pub(crate) const FOLIO_BATCH: u32 = 64;
/// `ORDER_SHIFT` of `page_owner.h`: position of the order above the node id.
pub(crate) const ORDER_SHIFT: u32 = NODE_BITS;

/// `struct globals`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Globals {
    pub(crate) last_node: u32,
    pub(crate) last_mm: u32,
    pub(crate) last_target: u32,
    pub(crate) lost_notices: u32,
    pub(crate) lost_targets: u32,
    pub(crate) active_collapses: u32,
    pub(crate) edge_generation: u32,
    pub(crate) node_share: u32,
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
unsafe impl aya::Pod for AddressSpace {}
// SAFETY: as above.
unsafe impl aya::Pod for RawNode {}
// SAFETY: as above.
unsafe impl aya::Pod for Edge {}
// SAFETY: as above.
unsafe impl aya::Pod for Counters {}
// SAFETY: as above.
unsafe impl aya::Pod for PreexistingPage {}
// SAFETY: as above.
unsafe impl aya::Pod for Globals {}
// SAFETY: as above.
unsafe impl aya::Pod for RawMapping {}

const _: () = assert!(size_of::<AddressSpace>() == 96);
const _: () = assert!(size_of::<RawNode>() == 40);
const _: () = assert!(size_of::<Counters>() == 128);
const _: () = assert!(size_of::<Globals>() == 32);
const _: () = assert!(size_of::<RawMapping>() == 32);
const _: () = assert!(size_of::<RulePair>() == 2 * size_of::<chainscope_unwind::Row>());
