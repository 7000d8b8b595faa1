//! What the tests of several crates need and the product does not: waiting for conditions, free ports, an agent that
//! tells of memory, a program whose memory is known, the promises of a memory tree.

#![forbid(unsafe_code)]

pub mod memory;
pub mod program;
pub mod tree;
pub mod wait;

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
