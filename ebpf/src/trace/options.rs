//! Options of the tracepoint probe.

use std::path::PathBuf;
use std::time::Duration;

use crate::uprobe::AttachMode;

/// Greatest [`TraceOptions::max_string`].
pub const MAX_STRING: u32 = 16 << 10;
/// Greatest [`TraceOptions::max_payload`].
pub const MAX_PAYLOAD: u64 = 1 << 30;

/// Options of [`TraceProbe::load`](super::TraceProbe::load).
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Size of the ring in bytes: a power of two times the page size. The kernel allocates all of it.
    pub ring_bytes: u32,
    /// Backlog of the ring at which the reader is woken before its interval ends.
    pub wake_bytes: u32,
    /// Maximum length of a string, without its NUL; at most [`MAX_STRING`]. Longer ones are cut and marked.
    pub max_string: u32,
    /// Maximum length of a payload ([`Fetch::Payload`](super::Fetch::Payload)); at most [`MAX_PAYLOAD`]. Longer ones are cut
    /// and marked.
    pub max_payload: u64,
    /// Longest time for which events wait for an earlier one that is still being captured.
    pub max_hold: Duration,
    /// Most bytes of events that wait for an earlier one. Beyond them the oldest are delivered, and the earlier one is late.
    pub max_hold_bytes: u64,
    /// How memory is read; `None`: the best that the kernel has.
    pub reads: Option<Reads>,
    /// How locations are attached; `None`: the best that the kernel has.
    pub attach_mode: Option<AttachMode>,
    /// The proc file system whose process ids events have. [`TraceProbe::attach`](super::TraceProbe::attach) takes those of the
    /// namespace that this process is in.
    pub proc: PathBuf,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 32 << 20,
            wake_bytes: 1 << 20,
            max_string: 4096,
            max_payload: 4 << 20,
            max_hold: Duration::from_millis(500),
            max_hold_bytes: 64 << 20,
            reads: None,
            attach_mode: None,
            proc: "/proc".into(),
        }
    }
}

/// How the programs read memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// With page faults. Linux 6.0.
    Sleepable,
    /// Without: pages that are not in memory are unreadable.
    Atomic,
}
