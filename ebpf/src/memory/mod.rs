//! Which code holds the resident memory of running processes.
//!
//! [`MemoryProbe`] follows every page that a watched process gets, from allocation to free, under the complete user stack
//! that asked for it; it attaches to running processes and needs no frame pointers. All of it is added up in the kernel:
//!
//! ```text
//!  mm_page_alloc ──▶ unwind the user stack ──▶ call tree: node ──▶ owners[page frame] = node, kind;  node.pages += 1
//!  add_to_page_cache ─────────────────────────────────────────▶ owners[page frame].kind = cache
//!  mm_page_free (by anybody) ─────────────────────────────────▶ node of owners[page frame].pages -= 1
//!
//!  read(): the tree's new nodes and changed counters, from memory shared with the kernel
//! ```
//!
//! Stacks are unwound by tables that the crate `chainscope-unwind` makes of the files that the process maps
//! (`src/bpf/walk.h` tells how), and by frame pointer where a file has none. They are loaded once for a file, and again
//! when a process maps something new, forks or executes.
//!
//! **Kernels.** 5.17 or later, or one with `bpf_loop` backported, with BTF, on x86-64; run on 6.18 only. **Rights.**
//! `CAP_BPF`, `CAP_PERFMON`; to read the files of processes of others also `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`. With
//! `CAP_SYS_ADMIN` what was resident before is known page by page; without, as what the kernel counts and nobody allocated.

mod before;
mod kernel;
mod layouts;
mod machine;
mod maps;
mod mmaps;
mod modules;
mod notices;
mod open;
mod page_base;
mod probe;
mod process;
mod programs;
mod reading;
mod shared;
mod stock;
mod tree;

pub use probe::{MemoryOptions, MemoryProbe};
pub(crate) use programs::tracepoints;
pub use reading::{
    Count, Frame, Health, Kind, MappingKind, MappingShare, MemoryEvent, Module, ModuleId, Node, NodeId, Reading,
    Resident, Scope, StackEnd, TargetId, TargetReading,
};
