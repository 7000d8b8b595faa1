//! Programs at the same tracepoints that do less: empty ones, and one that counts allocations by frame pointers.

use std::path::Path;

use anyhow::Context as _;
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use chainscope_testing::program;

/// Attaches empty programs to both tracepoints; dropping the object detaches them.
pub(crate) fn attach_empty(object: &[u8]) -> anyhow::Result<Ebpf> {
    attach(object, 0, &[("empty_alloc", "mm_page_alloc"), ("empty_free", "mm_page_free")])
}

/// Attaches the program that counts the allocations of a process by frame pointers.
pub(crate) fn attach_frame_pointers(object: &[u8], pid: u32) -> anyhow::Result<Ebpf> {
    attach(object, pid, &[("frame_pointers", "mm_page_alloc")])
}

fn attach(object: &[u8], pid: u32, programs: &[(&str, &str)]) -> anyhow::Result<Ebpf> {
    let mut bpf = EbpfLoader::new().override_global("watched", &pid, true).load(object)?;
    for (name, tracepoint) in programs {
        let program: &mut RawTracePoint = bpf.program_mut(name).context("a program")?.try_into()?;
        program.load()?;
        program.attach(tracepoint)?;
    }
    Ok(bpf)
}

/// Compiles the programs.
pub(crate) fn compile(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("examples/memory_cost/floor.bpf.c");
    Ok(std::fs::read(program::compile_bpf(&source, &root.join("src/bpf"), directory, "floor.o", &[]))?)
}
