//! Payload and life of the TCP connections of watched processes.
//!
//! [`NetworkProbe`] records what watched processes send and receive on TCP sockets: whole payloads with stream offsets,
//! and the opening and closing of connections, as typed [`Event`]s. A process is watched from the moment it listens on a
//! given port ([`NetworkProbe::watch_port`]) or executes a program of a given name ([`NetworkProbe::watch_program`]), or
//! by its id ([`NetworkProbe::add_process`]).
//!
//! ```text
//!  a watched process          kernel                                            this crate
//!  write(fd, b, n) ──▶ tcp_sendmsg ──▶ sock_send_length ─ copies n bytes ─▶ ring ──▶ poll(): Event::Data
//!  connect, accept ──▶ inet_sock_set_state ─ state by struct sock * ──────▶ ring ──▶ poll(): Event::Opened
//! ```
//!
//! Every piece of payload carries its position in the stream, taken from TCP's own sequence numbers. Loss is therefore
//! always visible: bytes that were transferred without a call that the programs understand, or that did not fit in the
//! ring, appear as a jump of the offset and are counted by reason in [`KernelAccount`].
//!
//! **Minimum kernel.** 5.17, or an older one with `bpf_loop` backported, with BTF, on x86-64. From 6.3 on payloads are
//! captured at the socket ([`CaptureMode::Sock`]), before that at the system calls ([`CaptureMode::Syscall`]). Tested on
//! 6.18 only.
//!
//! **Capabilities.** `CAP_BPF` and `CAP_PERFMON` (or `CAP_SYS_ADMIN`).
//!
//! **Not captured**: Multipath TCP (connections are reported, payload is counted as bypassed), kernel TLS (likewise; the
//! stream is that of the ciphertext), UDP and Unix sockets.

mod abi;
mod account;
mod event;
mod options;
mod probe;
mod programs;
mod record;

pub use account::{Counters, KernelAccount};
pub use event::{Closed, ClosedBy, Data, DataHeader, Direction, Event, MissingReason, Opened, Role, SocketId, Verdict};
pub use options::{CaptureMode, ExecEvents, NetworkOptions};
pub use probe::NetworkProbe;
