//! Byte and record counters of a watched process.

use super::abi::{Account, FlowCounters};
use super::event::MissingReason;

/// Counts of the programs that belong to no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Notices (opened, closed and others) that were lost: both the ring and the overflow map were full.
    pub lost_notices: u64,
    /// Times that a process was not watched for its port or name, since too many were: see
    /// [`NetworkProbe::add_process`](super::NetworkProbe::add_process). [`Event::Exec`](super::Event::Exec) and
    /// [`Event::Listening`](super::Event::Listening) are reported nevertheless.
    pub refused_processes: u64,
}

/// Payload of the sockets of one watched process since it is watched, in bytes and records.
///
/// `seen = captured + left_alone + sum(dropped)` holds exactly while no call is in progress: the counters of the CPUs are
/// not read atomically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelAccount {
    /// Payload bytes that were sent or received.
    pub seen: u64,
    /// Bytes put in the ring.
    pub captured: u64,
    /// Bytes of sockets with [`Verdict::LeaveAlone`](super::Verdict::LeaveAlone), or on ports that are not captured.
    pub left_alone: u64,
    /// Bytes lost, by [`MissingReason::name`]; reasons with 0 bytes are left out.
    pub dropped: Vec<(&'static str, u64)>,
    /// Data records put in the ring, with or without bytes.
    pub records: u64,
    /// Data records that did not fit in the ring.
    pub dropped_records: u64,
}

impl KernelAccount {
    /// Sums up the accounts of the CPUs.
    pub(super) fn sum(cpus: &[Account]) -> Self {
        let mut total = FlowCounters::default();
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
            total.seen += cpu.bypassed_at_close;
            if let Some(bypassed) = total.dropped.get_mut(1) {
                *bypassed += cpu.bypassed_at_close;
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
