//! Counts of the targets, as pillars keep them and as reports and metrics show them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// Counts of one target, or the sum over several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) connections_open: u64,
    pub(crate) bytes_seen: u64,
    /// Bytes seen that the account does not explain.
    pub(crate) bytes_residual: i64,
    pub(crate) bytes_lost: u64,
    pub(crate) records_lost: u64,
    /// Data that its sessions dropped because their memory budget was exhausted, by reason.
    pub(crate) over_memory: BTreeMap<&'static str, u64>,
    /// Time of the newest record, nanoseconds since 1970.
    pub(crate) last_record_ns: i64,
    /// Peer id of the identity in use; empty if there is none.
    pub(crate) peer_id: String,
    /// Why there is no identity; empty if there is one.
    pub(crate) identity_error: String,
    /// Events of tracepoints that were recorded, and that were lost.
    pub(crate) trace_events: u64,
    pub(crate) trace_events_lost: u64,
    /// Locations of tracepoints that a probe is attached to.
    pub(crate) trace_attached: u32,
    /// Why tracepoints are not recorded; empty if they are.
    pub(crate) trace_error: String,
    /// Functions that are timed.
    pub(crate) latency_functions: u32,
    /// Why functions are not timed; empty if they are.
    pub(crate) latency_error: String,
}

impl Tally {
    /// Both tallies added up; of identities the one of `later`, if it has any.
    pub(crate) fn sum(&self, later: &Self) -> Self {
        let has_identity = !later.peer_id.is_empty() || !later.identity_error.is_empty();
        let identity = if has_identity { later } else { self };
        let mut over_memory = self.over_memory.clone();
        for (reason, count) in &later.over_memory {
            *over_memory.entry(reason).or_default() += count;
        }
        Self {
            messages: self.messages + later.messages,
            connections_open: self.connections_open + later.connections_open,
            bytes_seen: self.bytes_seen + later.bytes_seen,
            bytes_residual: self.bytes_residual.saturating_add(later.bytes_residual),
            bytes_lost: self.bytes_lost + later.bytes_lost,
            records_lost: self.records_lost + later.records_lost,
            over_memory,
            last_record_ns: self.last_record_ns.max(later.last_record_ns),
            peer_id: identity.peer_id.clone(),
            identity_error: identity.identity_error.clone(),
            trace_events: self.trace_events + later.trace_events,
            trace_events_lost: self.trace_events_lost + later.trace_events_lost,
            trace_attached: self.trace_attached + later.trace_attached,
            trace_error: if later.trace_error.is_empty() { &self.trace_error } else { &later.trace_error }.clone(),
            latency_functions: self.latency_functions + later.latency_functions,
            latency_error: if later.latency_error.is_empty() { &self.latency_error } else { &later.latency_error }
                .clone(),
        }
    }
}

/// Counts of a pillar by target since the last call.
#[derive(Debug, Default)]
pub(crate) struct TargetTallies {
    /// Live targets by process id.
    pub(crate) live: BTreeMap<u32, LiveTally>,
    /// Targets of pods that ended since the last call, by pod uid.
    pub(crate) ended: Vec<(String, Tally)>,
    /// Targets of pods that the kernel refused since the last call: pod uid and cause.
    pub(crate) refused: Vec<(String, String)>,
}

impl TargetTallies {
    /// Adds what a pillar counts of a live target to what the pillars before it did.
    pub(crate) fn add(&mut self, pid: u32, counts: LiveTally) {
        match self.live.entry(pid) {
            Entry::Vacant(none) => {
                none.insert(counts);
            }
            Entry::Occupied(mut live) => live.get_mut().tally = live.get().tally.sum(&counts.tally),
        }
    }
}

/// The tally of a live target.
#[derive(Debug, Clone)]
pub(crate) struct LiveTally {
    pub(crate) node: Arc<str>,
    /// Uid of its pod, on a cluster.
    pub(crate) pod: Option<String>,
    pub(crate) tally: Tally,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pillars_add_up_in_any_order() {
        let of = |tally: Tally| LiveTally { node: "n".into(), pod: None, tally };
        let network = Tally { messages: 3, peer_id: "id".to_owned(), ..Tally::default() };
        let trace = Tally { trace_events: 5, trace_error: "no such probe".to_owned(), ..Tally::default() };
        let sum = Tally { trace_events: 5, trace_error: trace.trace_error.clone(), ..network.clone() };
        for pillars in [[&network, &trace], [&trace, &network]] {
            let mut tallies = TargetTallies::default();
            for tally in pillars {
                tallies.add(7, of(tally.clone()));
            }
            assert_eq!(tallies.live[&7].tally, sum);
        }
    }
}
