//! A thousand nodes with ten pods each on three hundred hosts, all in one namespace.

use serde_json::json;

use super::*;

const NODES: usize = 1000;
const PODS: usize = 10;
const HOSTS: usize = 300;

fn host(node: usize, pod: usize) -> String {
    format!("host-{}", (node * PODS + pod) % HOSTS)
}

fn big() -> World {
    let mut world = World::new();
    for node_at in 0..NODES {
        let class = format!("class-{node_at}");
        let labels = json!({ "podSelector": { "matchLabels": { "appType": "octez-node", "node_class": class } } });
        world.engine.apply_node(node(&format!("n{node_at}"), 0, labels));
        for at in 0..PODS {
            let labels = [("appType", "octez-node"), ("node_class", &*class)];
            let input = pod(&format!("u{node_at}-{at}"), Some(&host(node_at, at)), &labels);
            world.engine.apply_pod(&key(&format!("p{node_at}-{at}")), input);
        }
    }
    world
}

fn all_report(world: &mut World, messages: u64) {
    let mut by_host: BTreeMap<String, Vec<PodReport>> = BTreeMap::new();
    for node in 0..NODES {
        for at in 0..PODS {
            let report = PodReport { messages, ..recording(&format!("u{node}-{at}"), &format!("tezos/n{node}")) };
            by_host.entry(host(node, at)).or_default().push(report);
        }
    }
    for (host, pods) in by_host {
        let reported = HostReported { connected: true, since_ns: world.now, heard_ns: world.now, status: says(pods) };
        world.reports.hosts.insert(host, Arc::new(reported));
    }
    world.engine.set_reports(&world.reports);
}

/// Counts of work, not times: they hold on a loaded machine too.
#[test]
fn a_change_costs_what_it_touches() {
    let mut world = big();
    world.step();
    assert_eq!(world.desired.hosts.len(), HOSTS);
    assert_eq!(world.desired.hosts.values().map(|pods| pods.len()).sum::<usize>(), NODES * PODS);
    assert_eq!(world.writes, NODES);
    world.now += 2 * SECOND;
    all_report(&mut world, 1);
    world.step();
    // One write a node makes it ready, however many agents speak of it.
    assert_eq!(world.writes, 2 * NODES);
    assert!((0..NODES).all(|at| world.ready(&format!("tezos/n{at}")).0 == "True"));
    assert_eq!(world.engine.counts().ready, NODES);

    // Counts alone are written once a minute.
    world.writes = 0;
    for second in 0..30 {
        world.now += SECOND;
        all_report(&mut world, 10 + second);
        world.step();
    }
    assert_eq!(world.writes, 0);

    // One pod moves: its node, its two hosts, and nothing else.
    let before = Arc::clone(&world.desired);
    let labels = [("appType", "octez-node"), ("node_class", "class-7")];
    world.engine.apply_pod(&key("p7-0"), pod("u7-0", Some("host-1"), &labels));
    world.step();
    assert_eq!(world.writes, 1);
    let changed: Vec<_> = before
        .hosts
        .iter()
        .filter(|(host, pods)| !world.desired.hosts.get(*host).is_some_and(|now| Arc::ptr_eq(now, pods)))
        .map(|(host, _)| host.as_str())
        .collect();
    assert_eq!(changed, ["host-1", "host-70"]);
    let others = before.catalog.iter().filter(|(name, entry)| !Arc::ptr_eq(entry, &world.desired.catalog[*name]));
    assert_eq!(others.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tezos/n7"]);
}

/// Figures for people: `cargo test -p chainscope-operator scale -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn figures() {
    let time = |what: &str, work: &mut dyn FnMut()| {
        let began = std::time::Instant::now();
        work();
        println!("{what}: {:?}", began.elapsed());
    };
    let mut world = World::new();
    time("all nodes and pods applied", &mut || world = big());
    time("first decision", &mut || {
        world.step();
    });
    world.now += 2 * SECOND;
    time("reports of 300 hosts taken", &mut || all_report(&mut world, 1));
    time("decision after them", &mut || {
        world.step();
    });
    let labels = [("appType", "octez-node"), ("node_class", "class-7")];
    time("one pod moves", &mut || {
        world.engine.apply_pod(&key("p7-0"), pod("u7-0", Some("host-1"), &labels));
        world.step();
    });
    let selector = json!({ "podSelector": { "matchLabels": { "node_class": "class-8" } } });
    time("one selector changes", &mut || {
        world.engine.apply_node(NodeInput { generation: 2, ..node("n7", 0, selector.clone()) });
        world.step();
    });
    time("a new leader begins", &mut || {
        world.engine.begin(world.now);
        world.step();
    });
}
