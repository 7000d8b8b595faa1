//! Keys and values of the maps of the network programs, as declared in `network.h`.

use std::net::{IpAddr, SocketAddr};

use super::event::MissingReason;

/// `REASONS`: number of reasons, and the unused 0.
const REASONS: usize = MissingReason::ALL.len() + 1;

/// `struct port_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortKey {
    netns: u32,
    port: u16,
    pad: u16,
}

/// `struct listen_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenKey {
    netns: u32,
    port: u16,
    pad: u16,
    address: [u8; 16],
}

impl ListenKey {
    /// The key of a listening socket.
    pub(crate) fn new(netns: u32, local: SocketAddr) -> Self {
        let address = match local.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { netns, port: local.port(), pad: 0, address: address.octets() }
    }
}

impl PortKey {
    /// The key of a port in a network namespace, or in any.
    pub(crate) fn new(netns: Option<u32>, port: u16) -> Self {
        Self { netns: netns.unwrap_or(0), port, pad: 0 }
    }
}

/// `struct program_name`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramName {
    name: [u8; 16],
}

impl ProgramName {
    /// Truncates like `task_struct.comm`: 15 bytes, then a 0.
    pub(crate) fn new(name: &str) -> Self {
        let mut key = Self::default();
        for (slot, byte) in key.name.iter_mut().take(15).zip(name.bytes()) {
            *slot = byte;
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

/// `struct flow_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowCounters {
    pub(super) seen: u64,
    pub(super) captured: u64,
    pub(super) left_alone: u64,
    pub(super) records: u64,
    pub(super) dropped_records: u64,
    pub(super) dropped: [u64; REASONS],
}

/// `struct account`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(super) flow: [FlowCounters; 2],
    pub(super) bypassed_at_close: u64,
}

/// `struct overflow_notice`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OverflowNotice {
    pub(crate) opened: [u8; super::record::NOTICE],
    pub(crate) last: [u8; super::record::NOTICE],
}

/// `struct globals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Globals {
    pub(crate) last_id: u64,
    pub(crate) overflowed: u64,
    pub(crate) lost_notices: u64,
    pub(crate) refused_processes: u64,
}

/// `CGROUP_SLOTS`.
pub(crate) const CGROUP_SLOTS: u32 = 1024;

// SAFETY: all of them are repr(C) structs of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for PortKey {}
// SAFETY: as above.
unsafe impl aya::Pod for ListenKey {}
// SAFETY: as above.
unsafe impl aya::Pod for ProgramName {}
// SAFETY: as above.
unsafe impl aya::Pod for Listener {}
// SAFETY: as above.
unsafe impl aya::Pod for Account {}
// SAFETY: as above.
unsafe impl aya::Pod for OverflowNotice {}
// SAFETY: as above.
unsafe impl aya::Pod for Globals {}

const _: () = assert!(size_of::<Account>() == 2 * 8 * (5 + REASONS) + 8);
