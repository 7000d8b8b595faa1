//! An agent's status, before anybody relies on it: about its own pods only, of bounded size, harmless to print.

use std::collections::BTreeMap;

use chainscope_proto::v1::{HostStatus, ObservedPod, PodReport};

use crate::desired::HostPods;

/// Characters of a reason at most; it ends up in conditions and Events.
const REASON: usize = 512;
/// Characters of a peer id at most; 30 in base58check.
const PEER_ID: usize = 64;

/// Takes from `status` what concerns `pods`, the pods of the agent's host. Returns how many reports were left out: of
/// pods that are not the host's or belong to another node, and second ones of the same pod.
pub(crate) fn checked(status: HostStatus, pods: Option<&HostPods>) -> (HostStatus, u64) {
    let given = status.pods.len();
    let mut taken: BTreeMap<String, PodReport> = BTreeMap::new();
    for report in status.pods {
        let Some(pod) = pods.and_then(|pods| pods.get(&report.uid)) else { continue };
        if report.node == pod.node && !taken.contains_key(&report.uid) {
            taken.insert(report.uid.clone(), bounded(report, pod));
        }
    }
    let ignored = given - taken.len();
    let error = text(&status.error, REASON);
    let pods = taken.into_values().collect();
    (HostStatus { pods, error, ..status }, ignored as u64)
}

fn bounded(report: PodReport, pod: &ObservedPod) -> PodReport {
    PodReport {
        // What it applied cannot be newer than what there is.
        node_generation: report.node_generation.clamp(0, pod.node_generation.max(0)),
        peer_id: text(&report.peer_id, PEER_ID),
        identity_error: text(&report.identity_error, REASON),
        last_error: text(&report.last_error, REASON),
        ..report
    }
}

/// The beginning of a text, without what a terminal would obey.
fn text(text: &str, characters: usize) -> String {
    let shown: String = text.chars().take(characters).collect();
    let harmless = chainscope_hygiene::Escaped(&shown).to_string();
    harmless.chars().take(characters).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{HostPods, HostStatus, ObservedPod, PodReport, REASON, checked};

    fn pods() -> HostPods {
        let pod = |uid: &str, node: &str| {
            let pod =
                ObservedPod { uid: uid.to_owned(), node: node.to_owned(), node_generation: 3, ..Default::default() };
            (uid.to_owned(), Arc::new(pod))
        };
        [pod("u1", "ns/a"), pod("u2", "ns/b")].into()
    }

    fn report(uid: &str, node: &str) -> PodReport {
        PodReport { uid: uid.to_owned(), node: node.to_owned(), messages: 7, ..Default::default() }
    }

    #[test]
    fn only_reports_about_the_hosts_own_pods_are_taken() {
        let reports = vec![
            report("u1", "ns/a"),
            report("u2", "ns/a"),
            report("u9", "ns/a"),
            report("u1", "ns/a"),
            report("", ""),
        ];
        let status = HostStatus { generation: 4, pods: reports, ..Default::default() };
        let (taken, ignored) = checked(status.clone(), Some(&pods()));
        assert_eq!(taken.pods, vec![report("u1", "ns/a")]);
        assert_eq!((taken.generation, ignored), (4, 4));
        let (taken, ignored) = checked(status, None);
        assert_eq!((taken.pods.len(), ignored), (0, 5));
    }

    #[test]
    fn texts_are_short_and_harmless_and_generations_not_of_the_future() {
        let long = PodReport {
            last_error: "\u{1b}".repeat(100_000),
            identity_error: "é".repeat(100_000),
            peer_id: "a\nb".to_owned(),
            node_generation: 9,
            ..report("u1", "ns/a")
        };
        let status = HostStatus { pods: vec![long], error: "x".repeat(100_000), ..Default::default() };
        let (taken, _) = checked(status, Some(&pods()));
        let pod = &taken.pods[0];
        assert_eq!(pod.last_error.chars().count(), REASON);
        assert!(!pod.last_error.contains('\u{1b}'));
        assert_eq!(pod.identity_error.chars().count(), REASON);
        assert_eq!(pod.peer_id, "a\\u{a}b");
        assert_eq!(pod.node_generation, 3);
        assert_eq!(taken.error.len(), REASON);
    }
}
