//! What the tests of several crates need and the product does not: waiting for conditions, free ports, an agent that
//! tells of memory, a program whose memory is known, the promises of a memory tree.

#![forbid(unsafe_code)]

pub mod memory;
pub mod program;
pub mod tree;
pub mod wait;

/// Has every processor flush the pages that it is about to put on the kernel's lists. Until it does, for want of other work
/// perhaps for minutes, a page that a process has given back stays allocated, though the process is charged no more for it.
///
/// The kernel does so when it is to drop a page of a file from its cache and cannot: here one that this program runs from.
/// Nothing else is disturbed. (Compaction of all memory begins with that, too, but stacks cannot be read while it moves them.)
///
/// # Panics
/// If there is no such file.
pub fn flush_page_lists() {
    let running = std::fs::File::open("/proc/self/exe").expect("this program");
    let page = std::num::NonZeroU64::new(rustix::param::page_size() as u64);
    rustix::fs::fadvise(&running, 0, page, rustix::fs::Advice::DontNeed).expect("a file");
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
