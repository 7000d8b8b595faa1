//! Validation of agent statuses: restricts them to the pods of the agent's host, limits their size and escapes text.

use std::collections::BTreeMap;

use chainscope_proto::v1::{HostStatus, ObservedPod, PodReport};

use crate::desired::HostPods;

/// Maximum length of an error text in characters; it appears in conditions and Events.
const MAX_ERROR_CHARS: usize = 512;
/// Maximum length of a peer id in characters; a base58check peer id has 30.
const MAX_PEER_ID_CHARS: usize = 64;

/// Filters `status` by `pods`, the pods of the agent's host. Returns the number of ignored reports: on pods of other
/// hosts or nodes, and duplicates.
pub(crate) fn validate(status: HostStatus, pods: Option<&HostPods>) -> (HostStatus, u64) {
    let given = status.pods.len();
    let mut taken: BTreeMap<(String, String), PodReport> = BTreeMap::new();
    for report in status.pods {
        let Some(pod) = pods.and_then(|pods| pods.get(&report.uid)) else { continue };
        let key = (report.uid.clone(), report.node.clone());
        if let Some(generation) = generation_of(pod, &report.node)
            && !taken.contains_key(&key)
        {
            taken.insert(key, bounded(report, generation));
        }
    }
    let ignored = given - taken.len();
    let error = escape(&status.error, MAX_ERROR_CHARS);
    let pods = taken.into_values().collect();
    (HostStatus { pods, error, ..status }, ignored as u64)
}

/// The generation of a resource that the pod is observed for: its `TezosNode`, or its `NodeTrace`.
fn generation_of(pod: &ObservedPod, node: &str) -> Option<i64> {
    let trace = pod.trace.as_ref().filter(|trace| trace.node == node).map(|trace| trace.node_generation);
    (pod.node == node).then_some(pod.node_generation).or(trace)
}

fn bounded(report: PodReport, generation: i64) -> PodReport {
    PodReport {
        // The applied generation cannot be newer than the configured one.
        node_generation: report.node_generation.clamp(0, generation.max(0)),
        peer_id: escape(&report.peer_id, MAX_PEER_ID_CHARS),
        identity_error: escape(&report.identity_error, MAX_ERROR_CHARS),
        last_error: escape(&report.last_error, MAX_ERROR_CHARS),
        trace_error: escape(&report.trace_error, MAX_ERROR_CHARS),
        latency_error: escape(&report.latency_error, MAX_ERROR_CHARS),
        ..report
    }
}

/// Escapes control characters and truncates to `max_chars` characters.
fn escape(text: &str, max_chars: usize) -> String {
    let shown: String = text.chars().take(max_chars).collect();
    let escaped = chainscope_hygiene::Escaped(&shown).to_string();
    escaped.chars().take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chainscope_proto::v1::TraceOptions;

    use super::{HostPods, HostStatus, MAX_ERROR_CHARS, ObservedPod, PodReport, validate};

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
    fn reports_on_pods_of_other_hosts_are_ignored() {
        let reports = vec![
            report("u1", "ns/a"),
            report("u2", "ns/a"),
            report("u9", "ns/a"),
            report("u1", "ns/a"),
            report("", ""),
        ];
        let status = HostStatus { generation: 4, pods: reports, ..Default::default() };
        let (taken, ignored) = validate(status.clone(), Some(&pods()));
        assert_eq!(taken.pods, vec![report("u1", "ns/a")]);
        assert_eq!((taken.generation, ignored), (4, 4));
        let (taken, ignored) = validate(status, None);
        assert_eq!((taken.pods.len(), ignored), (0, 5));
    }

    #[test]
    fn a_pod_of_two_nodes_has_a_report_for_each() {
        let trace = TraceOptions { node: "ns/trace:t".to_owned(), node_generation: 5, ..Default::default() };
        let mut pods = pods();
        let pod = ObservedPod { trace: Some(trace), ..(*pods["u1"]).clone() };
        pods.insert("u1".to_owned(), Arc::new(pod));
        let of = |node: &str| PodReport { node_generation: 9, ..report("u1", node) };
        let reports = vec![of("ns/trace:t"), of("ns/a"), of("ns/trace:t"), of("ns/trace:other")];
        let status = HostStatus { pods: reports, ..Default::default() };
        let (taken, ignored) = validate(status, Some(&pods));
        let taken: Vec<_> = taken.pods.iter().map(|pod| (&*pod.node, pod.node_generation)).collect();
        assert_eq!((taken, ignored), (vec![("ns/a", 3), ("ns/trace:t", 5)], 2));
    }

    #[test]
    fn texts_are_limited_and_escaped_and_generations_clamped() {
        let long = PodReport {
            last_error: "\u{1b}".repeat(100_000),
            identity_error: "é".repeat(100_000),
            peer_id: "a\nb".to_owned(),
            trace_error: format!("\u{202e}{}", "y".repeat(100_000)),
            node_generation: 9,
            ..report("u1", "ns/a")
        };
        let status = HostStatus { pods: vec![long], error: "x".repeat(100_000), ..Default::default() };
        let (taken, _) = validate(status, Some(&pods()));
        let pod = &taken.pods[0];
        assert_eq!(pod.last_error.chars().count(), MAX_ERROR_CHARS);
        assert!(!pod.last_error.contains('\u{1b}'));
        assert_eq!(pod.identity_error.chars().count(), MAX_ERROR_CHARS);
        assert_eq!(pod.peer_id, "a\\u{a}b");
        assert!(pod.trace_error.starts_with("\\u{202e}yy"), "{}", pod.trace_error);
        assert_eq!(pod.trace_error.chars().count(), MAX_ERROR_CHARS);
        assert_eq!(pod.node_generation, 3);
        assert_eq!(taken.error.len(), MAX_ERROR_CHARS);
    }
}
