//! An event: one hit of a tracepoint, and the values of its arguments.

use std::sync::Arc;

use bytes::Bytes;

use crate::attachment::Attachment;

/// One hit of a tracepoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Number of the event in its source: from 0, dense, in the order of delivery.
    pub sequence: u64,
    /// When the tracepoint was hit, by the clocks of the kernel.
    pub time: Timestamp,
    /// Process id (thread group) in the initial PID namespace.
    pub pid: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// Processor.
    pub cpu: u32,
    /// Name of the thread (`comm`), at most 15 bytes.
    pub comm: String,
    /// The tracepoint and the location that was hit.
    pub attachment: Arc<Attachment>,
    /// Values of the arguments, as many and in the same order as [`Attachment::arguments`].
    pub arguments: Vec<Value>,
}

/// A point in time by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// `CLOCK_MONOTONIC`, in nanoseconds. Durations are differences of it.
    pub monotonic_ns: u64,
    /// Nanoseconds since 1970, UTC.
    pub wall_ns: i64,
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer, or a pointer that is not followed.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A Boolean.
    Bool(bool),
    /// Text, without its NUL.
    Text {
        /// The bytes, usually UTF-8.
        bytes: Bytes,
        /// Whether it goes on: the configured size was reached, or memory that cannot be read, before its NUL.
        is_truncated: bool,
    },
    /// Bytes of a known number.
    Bytes {
        /// The first bytes, as many as were captured.
        bytes: Bytes,
        /// The number that the program said.
        claimed: u64,
        /// Why `bytes` are fewer than `claimed`; `None` if they are all there.
        incomplete: Option<Incomplete>,
    },
    /// The argument points to memory that could not be read.
    Unreadable {
        /// The address; 0 for a null pointer.
        address: u64,
    },
    /// The probe cannot locate the argument; [`AttachedArgument::raw`](crate::AttachedArgument::raw) says how it is passed.
    Unsupported,
}

/// Why not all bytes of a value were captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// The configured size was reached.
    Limit,
    /// The memory behind them could not be read.
    Unreadable,
    /// There was no room for the others in the ring buffer.
    Dropped,
}

impl Event {
    /// The value of the argument with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.arguments.get(self.attachment.index_of(name)?)
    }
}

impl Value {
    /// Text that is whole.
    #[must_use]
    pub fn text(text: impl Into<Bytes>) -> Self {
        Self::Text { bytes: text.into(), is_truncated: false }
    }

    /// Bytes that are all there.
    #[must_use]
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Bytes { claimed: bytes.len() as u64, bytes, incomplete: None }
    }
}
