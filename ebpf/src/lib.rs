//! BPF programs of Chainscope and their loader.
//!
//! [`NetworkProbe`] records what watched processes send and receive on TCP sockets: whole payloads with stream offsets,
//! and the openings and endings of connections, as typed [`Event`]s. Processes are watched from the moment they listen
//! at a given port ([`NetworkProbe::watch_port`]) or execute a program of a given name
//! ([`NetworkProbe::watch_program`]), or by id ([`NetworkProbe::add_process`]).
//!
//! ```text
//!  a watched process          kernel                                            this crate
//!  write(fd, b, n) ──▶ tcp_sendmsg ──▶ sock_send_length ─ copies n bytes ─▶ ring ──▶ poll(): Event::Data
//!  connect, accept ──▶ inet_sock_set_state ─ state by struct sock * ──────▶ ring ──▶ poll(): Event::Opened
//! ```
//!
//! A position in the stream (TCP's own sequence numbers) comes with every piece. So nothing can be missing without being
//! seen: bytes that went by without a call that we understand, or did not fit in the ring, are a jump of the offset, and
//! are counted by reason in [`KernelAccount`].
//!
//! **Kernels.** 5.17 or later, or one with `bpf_loop` backported, with BTF, on x86-64; from 6.3 on payloads are taken at the socket
//! ([`CaptureMode::Sock`]), before that at the system calls ([`CaptureMode::Syscall`]). Run on 6.18 only.
//!
//! **Rights.** `CAP_BPF` and `CAP_PERFMON` (or `CAP_SYS_ADMIN`).
//!
//! **Not followed**: Multipath TCP (connections are announced, payload is counted as bypassed), kernel TLS (likewise;
//! the stream is that of the ciphertext), UDP and Unix sockets.
//!
//! [`memory`] tells which code holds a process's resident memory.
//!
//! This is the only crate of the workspace with unsafe code.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod check;
mod error;
mod event;
mod load;
mod maps;
pub mod memory;
mod probe;
mod record;
mod ring;

pub use check::{Finding, self_check};
pub use error::Error;
pub use event::{Closed, ClosedBy, Data, Direction, Event, MissingReason, Opened, Role, SocketId, Verdict};
pub use maps::KernelAccount;
pub use probe::{CaptureMode, ExecEvents, NetworkOptions, NetworkProbe};
