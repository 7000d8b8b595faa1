//! Options of the network probe.

use std::fmt;
use std::path::PathBuf;

/// Where payload is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// At the socket, where the kernel reports a transfer (`sock:sock_send_length`, `sock:sock_recv_length`). No cost for
    /// system calls that do not use sockets.
    ///
    /// Minimum kernel: 6.3.
    Sock,
    /// At the return of system calls (`raw_syscalls:sys_exit`). Bytes that io_uring, sendfile and splice transfer appear as
    /// jumps of the offset.
    ///
    /// Minimum kernel: 5.17, or an older one with `bpf_loop` backported.
    Syscall,
}

impl fmt::Display for CaptureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sock => "sock",
            Self::Syscall => "syscall",
        })
    }
}

/// Which executions of programs are reported as [`Event::Exec`](super::Event::Exec).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecEvents {
    /// None.
    #[default]
    None,
    /// Those that make a process a watched one ([`NetworkProbe::watch_program`](super::NetworkProbe::watch_program)), and
    /// those of watched processes.
    Watched,
    /// Every execution on the host.
    All,
}

/// Options of [`NetworkProbe::load`](super::NetworkProbe::load).
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// Capture mode; `None`: [`CaptureMode::Sock`] if the kernel supports it.
    pub mode: Option<CaptureMode>,
    /// Size of the ring in bytes: a power of two, at least a page. Payload that arrives while it is full is lost and
    /// counted.
    pub ring_bytes: u32,
    /// Backlog of the ring in bytes at which the kernel wakes the reader. A smaller value slows down watched processes and
    /// loses more.
    pub wake_bytes: u32,
    /// Which executions are reported. With [`ExecEvents::None`],
    /// [`NetworkProbe::watch_program`](super::NetworkProbe::watch_program) has no effect.
    pub exec_events: ExecEvents,
    /// The proc file system whose process ids are used. Processes that it does not show are ignored.
    pub proc: PathBuf,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            mode: None,
            ring_bytes: 32 << 20,
            wake_bytes: 2 << 20,
            exec_events: ExecEvents::None,
            proc: "/proc".into(),
        }
    }
}
