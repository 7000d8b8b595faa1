//! Detection of dropped records of a node.

use std::collections::BTreeMap;

/// Minimum interval between two Events about dropped records of a node. A full spool drops records for as long as the
/// aggregator is unavailable; the rate limit of the node's Events is shared with its other Events.
const EVENT_INTERVAL_NS: i64 = 600_000_000_000;

/// Dropped records of one pod, as its agent reported them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodDrops {
    /// Host of the pod.
    pub(super) host: Box<str>,
    /// Records dropped since the start of the agent.
    pub(super) records: u64,
}

/// Dropped records of one node.
#[derive(Debug, Default)]
pub(super) struct DropTracker {
    /// The last report of each pod, by UID. The first one of a pod is the baseline: after a change of leader it has drops of
    /// which the previous leader created an Event.
    reported: BTreeMap<Box<str>, PodDrops>,
    /// Records dropped since the last Event, by host.
    unreported: BTreeMap<Box<str>, u64>,
    event_ns: Option<i64>,
}

impl DropTracker {
    /// Adds the increase since the last reports; `exists` tells the node's pods, by UID. Returns the note of an Event if one is due.
    pub(super) fn update(
        &mut self,
        now: BTreeMap<Box<str>, PodDrops>,
        exists: impl Fn(&str) -> bool,
        now_ns: i64,
    ) -> Option<String> {
        for (host, records) in increases(&self.reported, &now) {
            let unreported = self.unreported.entry(host).or_default();
            *unreported = unreported.saturating_add(records);
        }
        // An agent that does not report for a while continues from what it reported before.
        self.reported.retain(|uid, _| exists(uid));
        self.reported.extend(now);
        let is_due = self.event_ns.is_none_or(|event| now_ns.saturating_sub(event) >= EVENT_INTERVAL_NS);
        if self.unreported.is_empty() || !is_due {
            return None;
        }
        self.event_ns = Some(now_ns);
        let unreported = std::mem::take(&mut self.unreported);
        let hosts: Vec<_> = unreported.iter().map(|(host, records)| format!("{records} on host {host}")).collect();
        Some(format!("records were dropped: {}; /v2/stats of the node lists the reasons", hosts.join(", ")))
    }
}

/// Increase of the dropped records by host. Summed by host because the spool's drops of a node are reported with the
/// node's first pod on the host, and with another pod after that one is deleted.
fn increases(
    before: &BTreeMap<Box<str>, PodDrops>,
    now: &BTreeMap<Box<str>, PodDrops>,
) -> impl Iterator<Item = (Box<str>, u64)> {
    let mut sums: BTreeMap<&str, i128> = BTreeMap::new();
    for (_, pod) in now.iter().filter(|(uid, _)| before.contains_key(*uid)) {
        *sums.entry(&pod.host).or_default() += i128::from(pod.records);
    }
    for pod in before.values() {
        *sums.entry(&pod.host).or_default() -= i128::from(pod.records);
    }
    let increased = sums.into_iter().filter_map(|(host, records)| Some((host.into(), u64::try_from(records).ok()?)));
    increased.filter(|(_, records)| *records > 0).collect::<Vec<_>>().into_iter()
}
