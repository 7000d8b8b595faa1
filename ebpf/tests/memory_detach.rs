//! Detached probes leak no descriptors, maps or memory. The test has a binary of its own because it counts resources of
//! the whole process.

mod memory_common;

use chainscope_ebpf::memory::{MemoryOptions, MemoryProbe};

use memory_common::{Snapshot, TestProcess, rollup};

/// Numbers of descriptors and BPF mappings of this process, which keep BPF programs, maps and links alive.
fn held_resources() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("readable procfs").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable procfs");
    (descriptors, maps.lines().filter(|line| line.contains("bpf-map") || line.contains("[perf_event]")).count())
}

/// Anonymous pages of this process without those that its allocator keeps: fragments of its arenas come and go by some 200 pages.
#[expect(unsafe_code, reason = "malloc_trim")]
fn own_memory() -> u64 {
    // SAFETY: no memory that is in use is changed.
    unsafe { libc::malloc_trim(0) };
    rollup(std::process::id(), "Anonymous")
}

#[test]
#[expect(unsafe_code, reason = "mallopt")]
fn repeated_attach_and_detach_leak_nothing() {
    // By default glibc raises its mmap threshold with the sizes it sees, and keeps large buffers from then on.
    // SAFETY: no other thread allocates yet.
    assert_eq!(unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) }, 1);
    let mut workload = TestProcess::memory_workload();
    let mut cycle = || {
        let mut probe = MemoryProbe::load(&MemoryOptions { nodes: 4096, ..MemoryOptions::default() }).expect("root");
        for _ in 0..10 {
            let target = probe.watch(workload.pid()).expect("the process is running");
            workload.call("one 0 50");
            assert!(Snapshot::take(&mut probe).anon(target) >= 50);
            workload.call("unmap 0");
            probe.unwatch(target);
        }
    };
    cycle();
    let before = held_resources();
    (0..3).for_each(|_| cycle());
    let memory = own_memory();
    (0..8).for_each(|_| cycle());
    assert_eq!(held_resources(), before);
    assert!(own_memory() < memory + 80, "a page or more for each of 80: {} pages, {memory} before", own_memory());
    workload.finish();
}
