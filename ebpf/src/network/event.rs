//! Events of the network probe: sockets that open and close, and the payload that passes on them.

use std::net::SocketAddr;

/// Identifies a connection of a watched process. Unique for the lifetime of the probe, never reused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Direction of payload, as seen by the watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Written by the watched process.
    Sent,
    /// Read by the watched process.
    Received,
}

/// Side of the connection that the watched process is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The process connected.
    Initiator,
    /// The process accepted.
    Responder,
}

/// Whether the payload of a socket is captured further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Continue to capture; the kernel stops checking for a verdict.
    Keep,
    /// Stop capturing; further bytes are counted as [`left_alone`](super::KernelAccount::left_alone).
    LeaveAlone,
}

/// Side that ended a connection first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClosedBy {
    /// The watched process closed the socket or shut down its sending side.
    Local,
    /// The FIN of the peer arrived first.
    Remote,
    /// The peer reset the connection.
    Reset,
    /// Anything else: a timeout, or the state transition was not observed.
    Unknown,
}

/// Why payload that passed is not in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissingReason {
    /// The stream advanced without an observed call: splice from the socket, zero-copy receive, io_uring or sendfile in
    /// [`CaptureMode::Syscall`](super::CaptureMode::Syscall). Visible as a jump of the offset, never as an event.
    Bypassed,
    /// sendfile, splice: the system call has no buffer of the process.
    NoUserBuffer,
    /// io_uring.
    IoUring,
    /// A system call of a 32-bit program.
    Compat,
    /// The user memory could not be read without a page fault.
    Unreadable,
    /// The ring was full. Visible as a jump of the offset, never as an event.
    RingFull,
    /// The message of a `sendmmsg` or `recvmmsg` that the bytes belong to is not certain.
    Ambiguous,
    /// Several threads used one direction of the socket at the same time: the position is not certain.
    Concurrent,
    /// Received with `MSG_TRUNC`: TCP discards such bytes without copying them.
    Discarded,
    /// The map of sockets was full. Never an event.
    SocketTableFull,
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
        Self::SocketTableFull,
    ];

    /// Stable name for counters and metrics.
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
            Self::SocketTableFull => "socket_table_full",
        }
    }

    /// The reason with this number in `enum reason` of `net.h`.
    pub(crate) fn from_kernel(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// An event of the probe. Events of one socket are delivered in the order in which they happened. Times are
/// `CLOCK_MONOTONIC` nanoseconds, process ids those of [`NetworkOptions::proc`](super::NetworkOptions::proc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A watched process listens, or a process that listens on a watched port has become a watched one.
    Listening {
        /// Process id.
        pid: u32,
        /// Inode of the network namespace.
        netns: u32,
        /// Local address.
        local: SocketAddr,
        /// Time of the event.
        time_ns: u64,
    },
    /// A process executed a program; [`NetworkOptions::exec_events`](super::NetworkOptions::exec_events) selects which
    /// executions are reported.
    Exec {
        /// Process id.
        pid: u32,
        /// Time of the event.
        time_ns: u64,
    },
    /// A connection is established, or an established one was found at its first read or write.
    Opened(Opened),
    /// The inode of a socket that had none when it was opened (not yet accepted).
    Inode {
        /// The connection.
        socket: SocketId,
        /// Inode, as in `/proc/<pid>/fd`.
        inode: u64,
    },
    /// Payload, or a notice that it is missing.
    Data(Data<'a>),
    /// The kernel destroyed the socket of a connection.
    Closed(Closed),
}

/// Payload of [`Event::Opened`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The connection.
    pub socket: SocketId,
    /// Process id of the watched process.
    pub pid: u32,
    /// Inode of the network namespace.
    pub netns: u32,
    /// Inode of the socket; 0 if it has none yet, then [`Event::Inode`] follows.
    pub inode: u64,
    /// Local address in the family of the socket: IPv4 on an IPv6 socket is an IPv4-mapped IPv6 address.
    pub local: SocketAddr,
    /// Address of the peer, in the same family.
    pub remote: SocketAddr,
    /// Side of the watched process; `None` if unknown.
    pub role: Option<Role>,
    /// Stream offset of the first sent byte that is captured; 0: the stream is captured from its beginning.
    pub sent_offset: u64,
    /// Stream offset of the first received byte that is captured; 0: the stream is captured from its beginning.
    pub received_offset: u64,
    /// Time of the event.
    pub time_ns: u64,
}

/// Payload of [`Event::Data`]: a piece of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// Position and origin of the bytes.
    pub header: DataHeader,
    /// The bytes; empty if they are missing.
    pub bytes: &'a [u8],
}

/// Position and origin of a piece of payload, without its bytes: every stage that stores or passes on payload keeps
/// this header beside the bytes.
///
/// A gap, whatever its cause, appears as an `offset` beyond the end of the previous piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The connection.
    pub socket: SocketId,
    /// Direction of the payload.
    pub direction: Direction,
    /// Stream offset of the first byte that the piece covers; offset 0 is the first payload byte of the connection.
    pub offset: u64,
    /// Number of stream bytes that the piece covers: the number of bytes captured, or more if they are missing.
    pub covers: u64,
    /// Why the bytes are missing; `None` if they are there.
    pub missing: Option<MissingReason>,
    /// Whether the piece is the first of a read or write call (of a message, for `sendmmsg` and `recvmmsg`).
    pub call_start: bool,
    /// Whether the call was a socket call (`sendto`, `recvmsg`, ...) and not `read`, `write` or a variant of them.
    pub socket_call: bool,
    /// Time of the event.
    pub time_ns: u64,
}

/// Payload of [`Event::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The connection.
    pub socket: SocketId,
    /// Side that ended the connection.
    pub by: ClosedBy,
    /// Total number of payload bytes that the process wrote to the connection.
    pub sent_offset: u64,
    /// Total number of payload bytes that the process read from the connection.
    pub received_offset: u64,
    /// Time of the event.
    pub time_ns: u64,
}
