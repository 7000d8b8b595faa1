//! What the tests of several crates need and the product does not: waiting for conditions, free ports, an agent that
//! tells of memory, a program whose memory is known, the promises of a memory tree.

#![forbid(unsafe_code)]

pub mod memory;
pub mod program;
pub mod tree;
pub mod wait;

/// Has every processor flush the pages that it is about to put on the kernel's lists. Until it does, for want of other work
/// perhaps for minutes, a page that a process has given back stays allocated, though the process is charged no more for it.
/// Compaction of all memory begins with that; needs root.
///
/// # Panics
/// If the kernel cannot compact.
pub fn flush_page_lists() {
    std::fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
}

/// A TCP port that nobody listens on now, below those that the system gives to clients: none of them can take it
/// before it is used.
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
