//! Loads, attaches and runs the programs of the memory object.

use aya::programs::{Program, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun};
use aya::{Ebpf, EbpfLoader};

use super::MemoryOptions;
use super::abi::NODE_BITS;
use super::{max_pfn, vmemmap};
use crate::error::Error;
use crate::kernel;
use crate::load::{Kernel, retry_eagain};
use crate::pid_namespace::PidNamespace;

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_MEMORY_BPF"));

/// Optional programs, which are attached if the kernel has their tracepoint: owners of migrated and collapsed pages.
const OPTIONAL_PROGRAMS: [(&str, &str); 6] = [
    ("on_pte_migrate", "set_migration_pte"),
    ("on_pte_migrated", "remove_migration_pte"),
    ("on_pmd_migrate", "set_migration_pmd"),
    ("on_pmd_migrated", "remove_migration_pmd"),
    ("on_collapse_start", "mm_collapse_huge_page_isolate"),
    ("on_collapse_end", "mm_collapse_huge_page"),
];

/// Updates the kind of the pages of large folios by `struct page`. Run by test runs only, like the next three.
const INSPECT_FOLIOS: &str = "inspect_folios";
/// Updates the kind of pages that may be of the page cache.
const RESOLVE_KINDS: &str = "resolve_kinds";
/// Removes dead nodes from the table of page owners.
const SWEEP: &str = "sweep";
/// Sets the owner of pages that were allocated before attach.
const ADD_PREEXISTING: &str = "add_preexisting";
/// Pages that one run sweeps: it occupies a CPU for some milliseconds.
const SWEEP_BATCH: u32 = 1 << 19;

/// Required programs and their tracepoints, in the order in which they are attached.
const PROGRAMS: [(&str, &str); 6] = [
    ("on_fork", "sched_process_fork"),
    ("on_exec", "sched_process_exec"),
    ("on_exit", "sched_process_exit"),
    ("on_free", "mm_page_free"),
    ("on_cache_add", "mm_filemap_add_to_page_cache"),
    ("on_alloc", "mm_page_alloc"),
];

/// Tracepoints of the required programs.
pub(crate) fn tracepoints() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().map(|(_, tracepoint)| tracepoint)
}

/// Size of the ring of notices.
pub(super) const NOTICE_RING_BYTES: u32 = 256 << 10;

/// The loaded object, and the sizes of its maps.
pub(super) struct Object {
    pub(super) bpf: Ebpf,
    pub(super) nodes: u32,
    pub(super) cpus: u32,
    /// Greatest pfn of the machine plus 1.
    pub(super) max_pfn: u32,
    /// Loaded programs and their tracepoints.
    pub(super) programs: Vec<(&'static str, &'static str)>,
}

/// Loads the programs; nothing is attached yet.
pub(super) fn load(options: &MemoryOptions) -> Result<Object, Error> {
    let kernel = Kernel::read()?;
    let names = kernel.names();
    if let Some((_, tracepoint)) = PROGRAMS.iter().find(|(_, name)| !kernel::has_tracepoint(&names, name)) {
        return Err(Error::NoTracepoint { release: kernel.release, tracepoint });
    }
    let max_pfn = max_pfn::max_pfn().ok_or_else(|| Error::Load {
        action: "find the greatest page frame number".to_owned(),
        cause: "it is not in /proc/zoneinfo".to_owned(),
    })?;
    let vmemmap_base = vmemmap::find_base(&kernel.btf, max_pfn)?;
    let nodes = options.nodes.clamp(1024, 1 << NODE_BITS);
    let cpus = online_cpus();
    let (pidns_inode, pidns_level) = PidNamespace::of_proc(&options.proc)?.inode_and_level(&kernel.btf)?;

    let mut bpf = EbpfLoader::new()
        .btf(Some(&kernel.btf))
        .override_global("pidns_inode", &pidns_inode, true)
        .override_global("pidns_level", &pidns_level, true)
        .override_global("vmemmap_base", &vmemmap_base, true)
        .override_global("max_nodes", &nodes, true)
        .override_global("max_cpus", &cpus, true)
        .override_global("verify_unwind", &u32::from(options.verify_stacks), true)
        .override_global("follow_children", &u32::from(options.follow_children), true)
        .map_max_entries("page_owners", max_pfn)
        .map_max_entries("nodes", nodes)
        .map_max_entries("edges", nodes)
        .map_max_entries("free_nodes", nodes)
        .map_max_entries("cpu_states", cpus)
        .map_max_entries("counters", cpus)
        .map_max_entries("kind_queues", cpus)
        .map_max_entries("notices", NOTICE_RING_BYTES)
        .load(OBJECT)
        .map_err(|error| Error::from_loader("create the maps of the memory probe".to_owned(), &error, 0))?;
    // Before the maps are taken: programs refer to them by file descriptor when they are loaded.
    let optional = OPTIONAL_PROGRAMS.into_iter().filter(|(_, tracepoint)| kernel::has_tracepoint(&names, tracepoint));
    let programs: Vec<_> = optional.chain(PROGRAMS).collect();
    for name in programs.iter().map(|(name, _)| *name).chain([INSPECT_FOLIOS, RESOLVE_KINDS, SWEEP, ADD_PREEXISTING]) {
        let loaded = program(&mut bpf, name).and_then(|program| retry_eagain(|| program.load()));
        loaded.map_err(|error| Error::from_loader(name.to_owned(), &error, 0))?;
    }
    Ok(Object { bpf, nodes, cpus, max_pfn, programs })
}

/// Inspects the first `count` folios of the batch: parts of them may have been freed without an event.
pub(super) fn inspect_folios(bpf: &mut Ebpf, count: u32) -> Result<(), Error> {
    run(bpf, INSPECT_FOLIOS, [count, 0], "inspect large folios")
}

/// Updates the kind of pages that were allocated like anonymous ones.
pub(super) fn resolve_kinds(bpf: &mut Ebpf) -> Result<(), Error> {
    run(bpf, RESOLVE_KINDS, [0, 0], "resolve the kind of pages")
}

/// Removes the owner of all pages of dead nodes.
pub(super) fn sweep(bpf: &mut Ebpf, max_pfn: u32) -> Result<(), Error> {
    for first in (0..max_pfn).step_by(SWEEP_BATCH as usize) {
        run(bpf, SWEEP, [first, SWEEP_BATCH.min(max_pfn - first)], "sweep pages of removed targets")?;
    }
    Ok(())
}

/// Sets the owner of the first `count` pages of the batch, or removes it again.
pub(super) fn add_preexisting(bpf: &mut Ebpf, count: u32, is_removal: bool) -> Result<(), Error> {
    run(bpf, ADD_PREEXISTING, [count, u32::from(is_removal)], "set the owner of preexisting pages")
}

/// Runs a program once. It is not preempted.
fn run(bpf: &mut Ebpf, name: &str, [first, second]: [u32; 2], action: &str) -> Result<(), Error> {
    let mut options = RawTracePointRunOptions::new();
    options.args = [first.into(), second.into(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let run = program(bpf, name).and_then(|program| program.test_run(options));
    run.map(drop).map_err(|error| Error::from_loader(action.to_owned(), &error, 0))
}

/// Attaches the programs.
pub(super) fn attach(bpf: &mut Ebpf, programs: &[(&'static str, &'static str)]) -> Result<(), Error> {
    for (name, tracepoint) in programs {
        let attached = program(bpf, name).and_then(|program| program.attach(tracepoint));
        attached.map_err(|error| Error::from_loader((*name).to_owned(), &error, 0))?;
    }
    Ok(())
}

fn program<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut RawTracePoint, ProgramError> {
    match bpf.program_mut(name) {
        Some(Program::RawTracePoint(found)) => Ok(found),
        _ => Err(ProgramError::NotLoaded),
    }
}

/// Greatest number of an online CPU plus 1.
fn online_cpus() -> u32 {
    let greatest = aya::util::online_cpus().ok().and_then(|cpus| cpus.into_iter().max());
    greatest.map_or(1, |cpu| cpu + 1)
}

/// Number of runs that the kernel skipped because they would have interrupted a run of the same program.
pub(super) fn missed_runs(bpf: &Ebpf) -> u64 {
    let missed = |program: &Program| -> Option<u64> {
        use std::os::fd::{AsFd, AsRawFd};
        let fd = program.fd().ok()?.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
    };
    bpf.programs().filter_map(|(_, program)| missed(program)).sum()
}
