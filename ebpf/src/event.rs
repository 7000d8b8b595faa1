//! What a probe tells: sockets that open and close, and the bytes that pass on them.

use std::net::SocketAddr;

/// A connection of a watched process; unique while the probe lives, never reused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// As the watched process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Written by the watched process.
    Sent,
    /// Read by the watched process.
    Received,
}

/// Which side of the connection the watched process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It connected.
    Initiator,
    /// It accepted.
    Responder,
}

/// What is to become of a socket's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Go on capturing; the kernel stops asking.
    Keep,
    /// Capture no more; bytes are counted as [`left_alone`](crate::KernelAccount::left_alone).
    LeaveAlone,
}

/// Who ended a connection first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClosedBy {
    /// The watched process closed or shut down its sending side.
    Local,
    /// The peer's FIN came first.
    Remote,
    /// The peer reset it.
    Reset,
    /// Anything else: a timeout, or the transition was not seen.
    Unknown,
}

/// Why bytes that passed are not in the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissingReason {
    /// The stream moved on without a call that was seen: splice from the socket, zero-copy receive, io_uring or
    /// sendfile in [`CaptureMode::Syscall`](crate::CaptureMode::Syscall). Shows as a jump of the offset, never as an event.
    Bypassed,
    /// sendfile, splice: the system call has no buffer of the process.
    NoUserBuffer,
    /// io_uring.
    IoUring,
    /// A system call of a 32-bit program.
    Compat,
    /// The memory could not be read without a page fault.
    Unreadable,
    /// The ring was full. Shows as a jump of the offset, never as an event.
    RingFull,
    /// It is not certain which message of a `sendmmsg` or `recvmmsg` it was.
    Ambiguous,
    /// Several threads used one direction of the socket at once: the position is not certain.
    Concurrent,
    /// Received with `MSG_TRUNC`: TCP throws such bytes away unread.
    Discarded,
    /// The kernel's table of sockets was full. Never an event.
    NoRoom,
}

impl MissingReason {
    /// All reasons, in the order of the kernel's counters.
    pub const ALL: [Self; 10] = [
        Self::Bypassed,
        Self::NoUserBuffer,
        Self::IoUring,
        Self::Compat,
        Self::Unreadable,
        Self::RingFull,
        Self::Ambiguous,
        Self::Concurrent,
        Self::Discarded,
        Self::NoRoom,
    ];

    /// A stable name for counters and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypassed => "bypassed",
            Self::NoUserBuffer => "no_user_buffer",
            Self::IoUring => "io_uring",
            Self::Compat => "compat",
            Self::Unreadable => "unreadable",
            Self::RingFull => "ring_full",
            Self::Ambiguous => "ambiguous",
            Self::Concurrent => "concurrent",
            Self::Discarded => "discarded",
            Self::NoRoom => "no_room",
        }
    }

    /// The number in `enum reason` of `net.h`.
    pub(crate) fn from_kernel(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// One thing that happened, in the order in which it happened on its socket. Times are `CLOCK_MONOTONIC` nanoseconds,
/// process ids those of the initial PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A watched process listens, or a process that listens at a watched port has become a watched one.
    Listening {
        /// The process.
        pid: u32,
        /// Inode of its network namespace.
        netns: u32,
        /// The port.
        port: u16,
        /// When.
        time_ns: u64,
    },
    /// A process has executed a program; which ones are told is [`NetworkOptions::exec_events`](crate::NetworkOptions::exec_events).
    Exec {
        /// The process.
        pid: u32,
        /// When.
        time_ns: u64,
    },
    /// A connection stands, or was found standing at its first read or write.
    Opened(Opened),
    /// The inode of a socket that had none when it was opened (not yet accepted).
    Inode {
        /// The connection.
        socket: SocketId,
        /// Inode, as in `/proc/<pid>/fd`.
        inode: u64,
    },
    /// Payload, or the fact that it is missing.
    Data(Data<'a>),
    /// A connection is gone from the kernel.
    Closed(Closed),
}

/// See [`Event::Opened`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The connection.
    pub socket: SocketId,
    /// The watched process.
    pub pid: u32,
    /// Inode of the network namespace.
    pub netns: u32,
    /// Inode of the socket; 0 if it has none yet, then [`Event::Inode`] follows.
    pub inode: u64,
    /// Local address, as the socket's family says: IPv4 on an IPv6 socket is an IPv4-mapped IPv6 address.
    pub local: SocketAddr,
    /// The peer's address, likewise.
    pub remote: SocketAddr,
    /// Which side the watched process is; `None` if that cannot be told.
    pub role: Option<Role>,
    /// Stream offset of the first sent byte that is captured; 0: nothing was missed.
    pub sent_offset: u64,
    /// Stream offset of the first received byte that is captured; 0: nothing was missed.
    pub received_offset: u64,
    /// When.
    pub time_ns: u64,
}

/// See [`Event::Data`]. A hole, whatever its cause, shows as an `offset` beyond the end of the data before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The connection.
    pub socket: SocketId,
    /// Which way.
    pub direction: Direction,
    /// Stream offset of the first byte that this covers; offset 0 is the first payload byte of the connection.
    pub offset: u64,
    /// The bytes; empty if they are missing.
    pub bytes: &'a [u8],
    /// How many bytes of the stream this is about: `bytes.len()`, or more if `bytes` is empty.
    pub covers: u64,
    /// Why `bytes` is empty.
    pub missing: Option<MissingReason>,
    /// Whether this is the first piece of a read or write call (of a message, for `sendmmsg` and `recvmmsg`).
    pub call_start: bool,
    /// Whether it was a socket call (`sendto`, `recvmsg`, ...) rather than `read`, `write` and their like.
    pub socket_call: bool,
    /// When.
    pub time_ns: u64,
}

/// See [`Event::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The connection.
    pub socket: SocketId,
    /// Who ended it.
    pub by: ClosedBy,
    /// How many payload bytes the process wrote to the connection in all.
    pub sent_offset: u64,
    /// How many payload bytes the process read from the connection in all.
    pub received_offset: u64,
    /// When.
    pub time_ns: u64,
}
