//! Latency of functions: the time from an entry to an exit, as histograms that the kernel fills.
//!
//! ```text
//!  attach(file, spans) ─▶ uprobes at entries and exits
//!  entry ─▶ start time, by call ─▶ exit: duration ─▶ table of the span (mapped) ─▶ read(): SpanCounts
//! ```
//!
//! An exit is matched with its entry by its call, so that recursion is right: by a number that the kernel keeps for the call
//! ([`Pairing::Session`]), or by the address of its stack frame, which is the same at entry and exit and which no other call in
//! progress has. A span from one function to another one is matched by its thread.
//!
//! **How an exit is probed** decides whether the program survives it:
//!
//! - [`Exit::Return`] lets the kernel replace the return address on the stack. An exception that propagates through such a call
//!   ends the program, because the unwinder does not find the caller (`std::terminate`, SIGABRT; a panic in Rust). Go's garbage
//!   collector and stack growth, and coroutines that move to another thread, break on it as well. A thread has at most 64 such
//!   calls in progress; deeper ones start and do not end.
//! - [`Exit::Instruction`] and [`Exit::TailCall`] probe the instructions that leave the function. That changes nothing that the program can see, and
//!   costs the execution of one instruction out of line for each call.
//!
//! **Loss** is counted ([`SpanCounts`]): spans that never ended (exceptions, `longjmp`, threads that end) are
//! `started − ended − no_room`, but for those in progress.
//!
//! **Minimum kernel.** 5.17 with BTF, on x86-64. From 6.10 on all locations of a file are attached at once, before that one after
//! the other ([`Pairing::PerfEvents`]), which takes the kernel some 30 ms each to detach. From 6.13 on sessions. Tested on 6.18
//! only.
//!
//! **Capabilities.** `CAP_BPF` and `CAP_PERFMON` (or `CAP_SYS_ADMIN`).

mod abi;
mod counts;
mod probe;
mod programs;
mod span;

pub use counts::SpanCounts;
pub use probe::{Attached, AttachmentId, LatencyProbe, SpanId};
pub use programs::{LatencyOptions, MAX_SPANS, Pairing};
pub use span::{Exit, Scope, Span};
