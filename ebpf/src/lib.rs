//! BPF programs of Chainscope and their loader, a module per pillar.
//!
//! - [`network`]: payload and life of the TCP connections of watched processes.
//! - [`memory`]: resident memory of watched processes by user stack.
//! - [`trace`]: hits of static tracepoints of ELF files.
//! - [`latency`]: time that functions of ELF files take.
//!
//! Shared by the pillars: the loader, the ring buffer reader, the error type and the check of the host ([`self_check`]).
//!
//! This is the only crate of the workspace with unsafe code.
#![expect(unsafe_code, reason = "system calls and shared memory of the kernel")]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod check;
mod error;
mod kernel;
pub mod latency;
mod load;
pub mod memory;
mod mmap_array;
pub mod network;
mod pid_namespace;
mod reader;
mod ring;
pub mod trace;
mod uprobe;

pub use check::{Finding, self_check};
pub use error::Error;
pub use pid_namespace::PidNamespace;
/// For the benchmark of capture, which reads the ring of another program in the same way.
#[doc(hidden)]
pub use reader::RingReader;
pub use ring::RingWaker;
