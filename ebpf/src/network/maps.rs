//! Tables shared with the kernel: layouts of `net.h`, and the account of a process.

use super::event::MissingReason;

const REASONS: usize = MissingReason::ALL.len() + 1;

/// `struct listen_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenKey {
    pub(crate) netns: u32,
    pub(crate) port: u16,
    pub(crate) pad: u16,
}

impl ListenKey {
    pub(crate) fn new(netns: Option<u32>, port: u16) -> Self {
        Self { netns: netns.unwrap_or(0), port, pad: 0 }
    }
}

/// `struct program`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramKey {
    name: [u8; 16],
}

impl ProgramKey {
    /// Cut as the kernel cuts the name of a task: 15 bytes, then a 0.
    pub(crate) fn new(name: &str) -> Self {
        let mut key = Self::default();
        for (place, byte) in key.name.iter_mut().take(15).zip(name.bytes()) {
            *place = byte;
        }
        key
    }
}

/// `struct listener`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) pid: u32,
    pub(crate) count: u32,
}

/// `struct flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawFlow {
    seen: u64,
    captured: u64,
    left_alone: u64,
    records: u64,
    dropped_records: u64,
    dropped: [u64; REASONS],
}

/// `struct account`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawAccount {
    flow: [RawFlow; 2],
    tail: u64,
}

/// `struct socket_state`, of which only the process is of interest here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SocketState {
    before: [u64; 8],
    base: [u32; 2],
    pub(crate) pid: u32,
    netns: u32,
    after: [u8; 48],
}

/// `struct orphan`: two notices.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Orphan {
    pub(crate) opened: [u8; super::record::NOTICE],
    pub(crate) last: [u8; super::record::NOTICE],
}

/// `struct globals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Globals {
    pub(crate) last_id: u64,
    pub(crate) orphaned: u64,
    pub(crate) lost: u64,
}

// SAFETY: all of them are repr(C) structs of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for ListenKey {}
// SAFETY: as above.
unsafe impl aya::Pod for ProgramKey {}
// SAFETY: as above.
unsafe impl aya::Pod for Listener {}
// SAFETY: as above.
unsafe impl aya::Pod for RawAccount {}
// SAFETY: as above.
unsafe impl aya::Pod for SocketState {}
// SAFETY: as above.
unsafe impl aya::Pod for Orphan {}
// SAFETY: as above.
unsafe impl aya::Pod for Globals {}

const _: () = assert!(size_of::<SocketState>() == 128);
const _: () = assert!(size_of::<RawAccount>() == 2 * 8 * (5 + REASONS) + 8);

/// What passed on the sockets of one watched process since it became one, in bytes and records.
///
/// `seen = captured + left_alone + sum(dropped)`, exactly, whenever no call is in progress: the CPUs' counters are not
/// read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelAccount {
    /// Payload bytes that passed.
    pub seen: u64,
    /// Bytes that were put in the ring.
    pub captured: u64,
    /// Bytes on sockets that are not of interest.
    pub left_alone: u64,
    /// Bytes lost, by [`MissingReason::name`]; only those that are not 0.
    pub dropped: Vec<(&'static str, u64)>,
    /// Data records put in the ring, with or without bytes.
    pub records: u64,
    /// Data records that did not fit.
    pub dropped_records: u64,
}

impl KernelAccount {
    pub(crate) fn sum(cpus: &[RawAccount]) -> Self {
        let mut total = RawFlow::default();
        for cpu in cpus {
            for flow in &cpu.flow {
                total.seen += flow.seen;
                total.captured += flow.captured;
                total.left_alone += flow.left_alone;
                total.records += flow.records;
                total.dropped_records += flow.dropped_records;
                for (sum, bytes) in total.dropped.iter_mut().zip(flow.dropped) {
                    *sum += bytes;
                }
            }
            total.seen += cpu.tail;
            if let Some(bypassed) = total.dropped.get_mut(1) {
                *bypassed += cpu.tail;
            }
        }
        let reasons = total.dropped.iter().skip(1).zip(MissingReason::ALL);
        Self {
            seen: total.seen,
            captured: total.captured,
            left_alone: total.left_alone,
            dropped: reasons.filter(|(bytes, _)| **bytes != 0).map(|(bytes, reason)| (reason.name(), *bytes)).collect(),
            records: total.records,
            dropped_records: total.dropped_records,
        }
    }

    /// Bytes lost for `reason`.
    #[must_use]
    pub fn dropped_for(&self, reason: MissingReason) -> u64 {
        self.dropped.iter().find(|(name, _)| *name == reason.name()).map_or(0, |(_, bytes)| *bytes)
    }

    /// Bytes lost for any reason.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped.iter().map(|(_, bytes)| bytes).sum()
    }
}
