//! Whether records of a node are being dropped.

use std::collections::{BTreeMap, BTreeSet};

use crate::crd::PodStatus;

/// Least time between two Events about it. A full spool drops for as long as the aggregator is away, and what else there
/// is to say of the node needs its share of the Events.
const BETWEEN_NS: i64 = 600_000_000_000;

/// What was dropped of one node.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Records since the last Event, by host.
    untold: BTreeMap<String, i64>,
    told_ns: Option<i64>,
}

impl Losses {
    /// Takes the pods as they were and as they are now. Gives the note of an Event, if one is due.
    pub(super) fn note(&mut self, before: &[PodStatus], now: &[PodStatus], now_ns: i64) -> Option<String> {
        for (host, records) in grown(before, now) {
            let untold = self.untold.entry(host.to_owned()).or_default();
            *untold = untold.saturating_add(records);
        }
        let is_due = self.told_ns.is_none_or(|told| now_ns.saturating_sub(told) >= BETWEEN_NS);
        if self.untold.is_empty() || !is_due {
            return None;
        }
        self.told_ns = Some(now_ns);
        let told = std::mem::take(&mut self.untold);
        let hosts: Vec<_> = told.iter().map(|(host, records)| format!("{records} on host {host}")).collect();
        Some(format!("records were dropped: {}; /v2/stats of the node says why", hosts.join(", ")))
    }
}

/// By how much the counts grew, by host: what an agent's spool dropped of a node is in the report of the node's first pod
/// there, and of another one once that is gone.
fn grown<'a>(before: &'a [PodStatus], now: &'a [PodStatus]) -> impl Iterator<Item = (&'a str, i64)> {
    let known: BTreeSet<&str> = before.iter().map(|pod| &*pod.uid).collect();
    let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in now.iter().filter(|pod| known.contains(&*pod.uid)) {
        let sum = sums.entry(&pod.host).or_default();
        *sum = sum.saturating_add(pod.records_lost);
    }
    for pod in before {
        let sum = sums.entry(&pod.host).or_default();
        *sum = sum.saturating_sub(pod.records_lost);
    }
    sums.into_iter().filter(|(_, records)| *records > 0)
}
