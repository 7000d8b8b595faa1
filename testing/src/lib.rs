//! Test support shared by several crates: waiting for conditions, free ports, a simulated agent's memory states, a
//! workload program with known memory use, the invariants of a memory tree, log lines, traced system calls, nodes with
//! tracepoints, control groups, PostgreSQL, and the regression gate of benchmarks.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod fakenode;
pub mod logs;
pub mod memory;
pub mod postgres;
pub mod program;
pub mod ratios;
pub mod syscalls;
pub mod tree;
pub mod usage;
pub mod wait;

/// Makes every CPU drain its per-CPU LRU batches. Until then, which may take minutes on an idle system, a page freed by
/// a process stays allocated although it is no longer charged to the process.
///
/// The kernel drains the batches when `POSIX_FADV_DONTNEED` cannot drop a page from the cache: of the running executable, the
/// pages of code that is executed now stay mapped. (Those that are not in use may be reclaimed at any time, so that one of them
/// does not do. Compaction of all memory drains the batches too, but stacks cannot be read while it migrates their pages.)
///
/// # Panics
/// If `/proc/self/exe` cannot be opened.
pub fn flush_page_lists() {
    let running = std::fs::File::open("/proc/self/exe").expect("this program");
    rustix::fs::fadvise(&running, 0, None, rustix::fs::Advice::DontNeed).expect("a file");
}

/// Returns an unused TCP port below the ephemeral port range, so that no client socket takes it before its use.
///
/// # Panics
/// Never.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(61);
    loop {
        let step = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let port = u16::try_from(20_000 + first.wrapping_add(step) % 12_000).expect("less than 32,000");
        if std::net::TcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
}
