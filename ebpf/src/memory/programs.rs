//! Loading and attaching of the object's programs.

use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun};
use aya::{Btf, Ebpf, EbpfLoader};

use super::MemoryOptions;
use super::kernel::NODE_BITS;
use super::{machine, page_base};
use crate::check;
use crate::error::Error;
use crate::load::in_spite_of_signals;

/// The object that build.rs compiled, aligned as the ELF reader wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_MEMORY_BPF"));

/// Programs that are attached where the kernel has their tracepoint: pages that it moves.
const MOVES: [(&str, &str); 6] = [
    ("on_leave", "set_migration_pte"),
    ("on_arrive", "remove_migration_pte"),
    ("on_leave_huge", "set_migration_pmd"),
    ("on_arrive_huge", "remove_migration_pmd"),
    ("on_isolate", "mm_collapse_huge_page_isolate"),
    ("on_collapse", "mm_collapse_huge_page"),
];

/// Looks at pages when asked to; attached to nothing.
const INSPECT: &str = "inspect";
/// Takes pages off dead nodes when asked to; attached to nothing.
const SWEEP: &str = "sweep";
/// Enters pages that were there before when asked to; attached to nothing.
const ADOPT: &str = "adopt";
/// Page frames that are swept in one run, during which nothing else runs on that processor: some milliseconds.
const SWEPT: u32 = 1 << 19;

/// Programs of the object and their tracepoints, in the order in which they are attached.
const PROGRAMS: [(&str, &str); 6] = [
    ("on_fork", "sched_process_fork"),
    ("on_exec", "sched_process_exec"),
    ("on_exit", "sched_process_exit"),
    ("on_free", "mm_page_free"),
    ("on_cache_add", "mm_filemap_add_to_page_cache"),
    ("on_alloc", "mm_page_alloc"),
];

/// Tracepoints that the probe cannot do without.
pub(crate) fn tracepoints() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().map(|(_, tracepoint)| tracepoint)
}

/// Size of the ring of notices, as in `memory.h`.
pub(super) const RING_BYTES: u32 = 256 << 10;

/// The loaded object, and the sizes that its tables were given.
pub(super) struct Object {
    pub(super) bpf: Ebpf,
    pub(super) nodes: u32,
    pub(super) cpus: u32,
    pub(super) frames: u32,
    /// Programs that are loaded, and their tracepoints.
    pub(super) programs: Vec<(&'static str, &'static str)>,
}

/// Loads the programs; nothing is attached yet.
pub(super) fn load(options: &MemoryOptions) -> Result<Object, Error> {
    let release = check::kernel_release();
    let raw = std::fs::read(check::BTF_PATH)
        .map_err(|error| Error::NoBtf { path: check::BTF_PATH, cause: error.to_string() })?;
    let names = check::names_of(&raw);
    check::require_helpers(&release, &names)?;
    if let Some((_, tracepoint)) = PROGRAMS.iter().find(|(_, name)| !check::has_tracepoint(&names, name)) {
        return Err(Error::NoTracepoint { release, tracepoint });
    }
    let btf = Btf::from_sys_fs().map_err(|error| Error::NoBtf { path: check::BTF_PATH, cause: error.to_string() })?;
    let frames = machine::frames().ok_or_else(|| Error::Load {
        action: "find out how many page frames there are".to_owned(),
        cause: "/proc/zoneinfo does not tell".to_owned(),
    })?;
    let base = page_base::find(&btf, frames)?;
    let nodes = options.nodes.clamp(1024, 1 << NODE_BITS);
    let cpus = online_cpus();

    let mut bpf = EbpfLoader::new()
        .btf(Some(&btf))
        .override_global("page_base", &base, true)
        .override_global("max_nodes", &nodes, true)
        .override_global("max_cpus", &cpus, true)
        .override_global("check", &u32::from(options.check), true)
        .override_global("follow_children", &u32::from(options.follow_children), true)
        .map_max_entries("owners", frames)
        .map_max_entries("nodes", nodes)
        .map_max_entries("edges", nodes)
        .map_max_entries("free_nodes", nodes)
        .map_max_entries("cpus", cpus)
        .map_max_entries("accounts", cpus)
        .map_max_entries("queues", cpus)
        .map_max_entries("notices", RING_BYTES)
        .load(OBJECT)
        .map_err(|error| Error::from_loader("create the tables of the memory probe".to_owned(), &error, 0))?;
    // Before the tables are taken: programs refer to them by descriptor when they are loaded.
    let moves = MOVES.into_iter().filter(|(_, tracepoint)| check::has_tracepoint(&names, tracepoint));
    let programs: Vec<_> = moves.chain(PROGRAMS).collect();
    for name in programs.iter().map(|(name, _)| *name).chain([INSPECT, SWEEP, ADOPT]) {
        let loaded = program(&mut bpf, name).and_then(|program| in_spite_of_signals(|| program.load()));
        loaded.map_err(|error| Error::from_loader(name.to_owned(), &error, 0))?;
    }
    Ok(Object { bpf, nodes, cpus, frames, programs })
}

/// Lets the kernel look at pages of which events do not tell enough.
pub(super) fn inspect(bpf: &mut Ebpf) -> Result<(), Error> {
    let run = program(bpf, INSPECT).and_then(|program| program.test_run(RawTracePointRunOptions::new()));
    run.map(drop).map_err(|error| Error::from_loader("look at pages".to_owned(), &error, 0))
}

/// Takes the pages of dead nodes off them, among `frames` page frames.
pub(super) fn sweep(bpf: &mut Ebpf, frames: u32) -> Result<(), Error> {
    for first in (0..frames).step_by(SWEPT as usize) {
        let mut options = RawTracePointRunOptions::new();
        options.args = [u64::from(first), u64::from(SWEPT.min(frames - first)), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let run = program(bpf, SWEEP).and_then(|program| program.test_run(options));
        run.map_err(|error| Error::from_loader("take pages off what is forgotten".to_owned(), &error, 0))?;
    }
    Ok(())
}

/// Enters the first `count` of the adopted pages in the table of owners, or takes them off again.
pub(super) fn adopt(bpf: &mut Ebpf, count: u32, is_undone: bool) -> Result<(), Error> {
    let mut options = RawTracePointRunOptions::new();
    options.args = [u64::from(count), u64::from(is_undone), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let run = program(bpf, ADOPT).and_then(|program| program.test_run(options));
    run.map(drop).map_err(|error| Error::from_loader("enter pages that were there before".to_owned(), &error, 0))
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

/// One more than the greatest number of a processor that runs.
fn online_cpus() -> u32 {
    let greatest = aya::util::online_cpus().ok().and_then(|cpus| cpus.into_iter().max());
    greatest.map_or(1, |cpu| cpu + 1)
}

/// A table of the object.
pub(super) fn take<T: TryFrom<Map, Error = MapError>>(bpf: &mut Ebpf, name: &str) -> Result<T, Error> {
    let fail = |cause: String| Error::Load { action: format!("use the table {name}"), cause };
    let map = bpf.take_map(name).ok_or_else(|| fail("it is not in the object".to_owned()))?;
    T::try_from(map).map_err(|error| fail(error.to_string()))
}

/// Events for which the kernel did not run a program because it was interrupting itself.
pub(super) fn missed_runs(bpf: &Ebpf) -> u64 {
    let missed = |program: &Program| -> Option<u64> {
        use std::os::fd::{AsFd, AsRawFd};
        let fd = program.fd().ok()?.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
    };
    bpf.programs().filter_map(|(_, program)| missed(program)).sum()
}
