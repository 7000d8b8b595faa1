//! Resident memory of watched processes by the code that allocated it.
//!
//! [`MemoryProbe`] attributes every page of a watched process, from allocation to free, to the complete user stack of the
//! allocation. It attaches to running processes and needs no frame pointers. The programs aggregate in the kernel:
//!
//! ```text
//!  mm_page_alloc ──▶ unwind the user stack ──▶ call tree: node ──▶ page_owners[pfn] = node, kind;  node.pages += 1
//!  add_to_page_cache ─────────────────────────────────────────▶ page_owners[pfn].kind = cache
//!  mm_page_free (by any process) ─────────────────────────────▶ node of page_owners[pfn].pages -= 1
//!
//!  read(): new nodes of the tree and changed counters, from memory shared with the kernel
//! ```
//!
//! Stacks are unwound by tables that the crate `chainscope-unwind` makes from the files that a process maps (see
//! `src/bpf/memory/unwind.h`), and by frame pointer where a file has none. A table is loaded once for each file; the
//! mappings of a process are read again when it maps code, forks or executes a program.
//!
//! **Minimum kernel.** 5.17, or an older one with `bpf_loop` backported, with BTF, on x86-64. Owners of migrated pages are
//! known from 5.19 on. Tested on 6.18 only.
//!
//! **Capabilities.** `CAP_BPF`, `CAP_PERFMON`; for the files of processes of other users also `CAP_SYS_PTRACE` and
//! `CAP_DAC_READ_SEARCH`. With `CAP_SYS_ADMIN` the memory that was resident before attach is known page by page; without
//! it, as the part of the kernel's count that is not attributed.

mod abi;
mod address_spaces;
mod call_tree;
mod code_files;
mod foreign;
mod mapped_file;
mod max_pfn;
mod mmap_events;
mod modules;
mod notice;
mod pagemap;
mod preexisting;
mod probe;
mod proc_maps;
mod process;
mod programs;
mod reading;
mod targets;
mod vmemmap;

pub use foreign::{Answer, ForeignCall, ForeignCalls, LateAnswer, Started};
pub use mapped_file::open as open_mapped_file;
pub use probe::{MemoryOptions, MemoryProbe};
pub use proc_maps::{CodeMapping, code_of};
pub(crate) use programs::tracepoints;
pub use reading::{
    Count, Frame, Health, Kind, MappingKind, MappingShare, MemoryEvent, Module, ModuleId, Node, NodeId, Reading,
    Resident, Scope, StackEnd, TargetId, TargetReading,
};
