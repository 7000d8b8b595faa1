//! Events of the tracepoint probe.

/// Identifies a location. Unique for the lifetime of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocationId(pub(super) u32);

/// A hit of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The location.
    pub location: LocationId,
    /// When it was hit: `CLOCK_MONOTONIC` nanoseconds.
    pub time_ns: u64,
    /// Process id (thread group) in the PID namespace of [`TraceOptions::proc`](super::TraceOptions::proc); 0: it has none there.
    pub pid: u32,
    /// Thread id in the same namespace.
    pub tid: u32,
    /// Processor.
    pub cpu: u32,
    /// Name of the thread (`comm`).
    pub comm: Vec<u8>,
    /// The arguments of the location in order.
    pub arguments: Vec<ArgumentValue>,
}

impl Event {
    /// Memory that the event takes, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let data = |argument: &ArgumentValue| argument.data.as_ref().map_or(0, |data| data.bytes.len());
        let held = self.comm.len() + self.arguments.iter().map(data).sum::<usize>();
        (size_of::<Self>() + self.arguments.len() * size_of::<ArgumentValue>() + held) as u64
    }
}

/// An argument of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentValue {
    /// The value itself.
    pub value: Value,
    /// What it points to; `None` if the location does not fetch it.
    pub data: Option<Data>,
}

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value, extended to 64 bits as its sign says. The bits of a floating-point number.
    Known(u64),
    /// The operand is not supported.
    Unsupported,
    /// The memory that holds the value, at this address, could not be read.
    Unreadable(u64),
}

/// What an argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The bytes that were read; of a string without its NUL.
    pub bytes: Vec<u8>,
    /// Why they end there.
    pub end: End,
}

/// Why data end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They are whole.
    Whole,
    /// Memory that cannot be read follows.
    Unreadable,
    /// A limit was reached: [`TraceOptions::max_string`](super::TraceOptions::max_string),
    /// [`TraceOptions::max_payload`](super::TraceOptions::max_payload), or 64 KiB of strings and short bytes in one event.
    Limit,
    /// The ring was full.
    RingFull,
    /// The pointer or the length is not known, or the length is negative.
    Unknown,
}
