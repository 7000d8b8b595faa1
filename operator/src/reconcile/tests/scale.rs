//! A thousand nodes with ten pods each on three hundred hosts, in one namespace.

use serde_json::json;

use super::*;

const NODES: usize = 1000;
const PODS: usize = 10;
const HOSTS: usize = 300;

fn host(node: usize, pod: usize) -> String {
    format!("host-{}", (node * PODS + pod) % HOSTS)
}

fn big() -> TestCluster {
    let mut cluster = TestCluster::new();
    for node_at in 0..NODES {
        let class = format!("class-{node_at}");
        let labels = json!({ "podSelector": { "matchLabels": { "appType": "octez-node", "node_class": class } } });
        cluster.reconciler.apply_node(node(&format!("n{node_at}"), 0, labels));
        for at in 0..PODS {
            let labels = [("appType", "octez-node"), ("node_class", &*class)];
            let input = pod(&format!("u{node_at}-{at}"), Some(&host(node_at, at)), &labels);
            cluster.reconciler.apply_pod(&key(&format!("p{node_at}-{at}")), input);
        }
    }
    cluster
}

fn all_report(cluster: &mut TestCluster, messages: u64) {
    let mut by_host: BTreeMap<String, Vec<PodReport>> = BTreeMap::new();
    for node in 0..NODES {
        for at in 0..PODS {
            let report = PodReport { messages, ..recording(&format!("u{node}-{at}"), &format!("tezos/n{node}")) };
            by_host.entry(host(node, at)).or_default().push(report);
        }
    }
    for (host, pods) in by_host {
        let reported = AgentReport { connected: true, last_report_ns: cluster.now, status: host_status(pods) };
        cluster.reports.hosts.insert(host, Arc::new(reported));
    }
    cluster.reconciler.set_reports(&cluster.reports);
}

/// Asserts the amount of work, not times, so that it is independent of the machine's load.
#[test]
fn the_cost_of_a_change_is_proportional_to_the_affected_objects() {
    let mut cluster = big();
    cluster.step();
    assert_eq!(cluster.desired.hosts.len(), HOSTS);
    assert_eq!(cluster.desired.hosts.values().map(|pods| pods.len()).sum::<usize>(), NODES * PODS);
    assert_eq!(cluster.writes, NODES);
    cluster.now += 2 * SECOND;
    all_report(&mut cluster, 1);
    cluster.step();
    // One write per node, independent of the number of reporting agents.
    assert_eq!(cluster.writes, 2 * NODES);
    assert!((0..NODES).all(|at| cluster.ready(&format!("tezos/n{at}")).0 == "True"));
    assert_eq!(cluster.reconciler.counts().ready, NODES);

    // Counters alone are written once a minute.
    cluster.writes = 0;
    for second in 0..30 {
        cluster.now += SECOND;
        all_report(&mut cluster, 10 + second);
        cluster.step();
    }
    assert_eq!(cluster.writes, 0);

    // A moved pod affects its node and its two hosts only.
    let before = Arc::clone(&cluster.desired);
    let labels = [("appType", "octez-node"), ("node_class", "class-7")];
    cluster.reconciler.apply_pod(&key("p7-0"), pod("u7-0", Some("host-1"), &labels));
    cluster.step();
    assert_eq!(cluster.writes, 1);
    let changed: Vec<_> = before
        .hosts
        .iter()
        .filter(|(host, pods)| !cluster.desired.hosts.get(*host).is_some_and(|now| Arc::ptr_eq(now, pods)))
        .map(|(host, _)| host.as_str())
        .collect();
    assert_eq!(changed, ["host-1", "host-70"]);
    let others = before.catalog.iter().filter(|(name, entry)| !Arc::ptr_eq(entry, &cluster.desired.catalog[*name]));
    assert_eq!(others.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tezos/n7"]);
}

/// Prints durations: `cargo test -p chainscope-operator scale -- --ignored --nocapture`.
#[test]
#[ignore = "prints durations"]
fn durations() {
    let time = |what: &str, work: &mut dyn FnMut()| {
        let began = std::time::Instant::now();
        work();
        println!("{what}: {:?}", began.elapsed());
    };
    let mut cluster = TestCluster::new();
    time("apply all nodes and pods", &mut || cluster = big());
    time("first reconciliation", &mut || {
        cluster.step();
    });
    cluster.now += 2 * SECOND;
    time("apply reports of 300 hosts", &mut || all_report(&mut cluster, 1));
    time("reconciliation of the reports", &mut || {
        cluster.step();
    });
    let labels = [("appType", "octez-node"), ("node_class", "class-7")];
    time("move one pod", &mut || {
        cluster.reconciler.apply_pod(&key("p7-0"), pod("u7-0", Some("host-1"), &labels));
        cluster.step();
    });
    let selector = json!({ "podSelector": { "matchLabels": { "node_class": "class-8" } } });
    time("change one selector", &mut || {
        cluster.reconciler.apply_node(NodeInput { generation: 2, ..node("n7", 0, selector.clone()) });
        cluster.step();
    });
    time("start a leadership term", &mut || {
        cluster.reconciler.begin(cluster.now);
        cluster.step();
    });
}
