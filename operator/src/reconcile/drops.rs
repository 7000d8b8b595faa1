//! Detection of dropped records of a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::crd::PodStatus;

/// Minimum interval between two Events about dropped records of a node. A full spool drops records for as long as the
/// aggregator is unavailable; the rate limit of the node's Events is shared with its other Events.
const EVENT_INTERVAL_NS: i64 = 600_000_000_000;

/// Dropped records of one node.
#[derive(Debug, Default)]
pub(super) struct DropTracker {
    /// Records dropped since the last Event, by host.
    unreported: BTreeMap<String, i64>,
    reported_ns: Option<i64>,
}

impl DropTracker {
    /// Adds the difference between two states of the pods. Returns the note of an Event if one is due.
    pub(super) fn update(&mut self, before: &[PodStatus], now: &[PodStatus], now_ns: i64) -> Option<String> {
        for (host, records) in increases(before, now) {
            let unreported = self.unreported.entry(host.to_owned()).or_default();
            *unreported = unreported.saturating_add(records);
        }
        let is_due = self.reported_ns.is_none_or(|reported| now_ns.saturating_sub(reported) >= EVENT_INTERVAL_NS);
        if self.unreported.is_empty() || !is_due {
            return None;
        }
        self.reported_ns = Some(now_ns);
        let unreported = std::mem::take(&mut self.unreported);
        let hosts: Vec<_> = unreported.iter().map(|(host, records)| format!("{records} on host {host}")).collect();
        Some(format!("records were dropped: {}; /v2/stats of the node lists the reasons", hosts.join(", ")))
    }
}

/// Increase of the dropped records by host. Summed by host because the spool's drops of a node are reported with the
/// node's first pod on the host, and with another pod after that one is deleted.
fn increases<'a>(before: &'a [PodStatus], now: &'a [PodStatus]) -> impl Iterator<Item = (&'a str, i64)> {
    let known: BTreeSet<&str> = before.iter().map(|pod| &*pod.uid).collect();
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in now.iter().filter(|pod| known.contains(&*pod.uid)) {
        let sum = sums.entry(&pod.node_name).or_default();
        *sum = sum.saturating_add(pod.records_lost);
    }
    for pod in before {
        let sum = sums.entry(&pod.node_name).or_default();
        *sum = sum.saturating_sub(pod.records_lost);
    }
    sums.into_iter().filter(|(_, records)| *records > 0)
}
