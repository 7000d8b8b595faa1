//! The tracepoints pillar: events of a node that is no Tezos node as records, compared with what the node fired. Needs root, a
//! kernel with BTF and g++; fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use chainscope_agent::{Agent, Config, Link, NodeConfig, Running, Uplink};
use chainscope_proto::v1::{Loss, Record, TraceEvent, record::Kind};
use chainscope_spec::{Trace, TraceRule};
use chainscope_testing::{
    fakenode::{FakeNode, Fired, Flavour, blocks::Block, build, relay::Relay},
    wait::until_true,
};
use chainscope_trace::{
    Event, Value,
    record::Decoder,
    view::{self, View as _},
};
use common::{Stage, TIMEOUT, collector::Delivered};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// A fake node in a file of this test's own: an agent observes every process of a file.
fn program(stage: &Stage, flavour: Flavour) -> PathBuf {
    build(stage.dir.path(), flavour)
}

/// A node whose tracepoints are recorded, and nothing else.
fn node(name: &str, program: &Path, trace: Trace) -> NodeConfig {
    trace.validate().unwrap();
    NodeConfig {
        name: name.to_owned(),
        exe: Some(program.to_owned()),
        is_network_disabled: true,
        trace: Some(trace),
        ..NodeConfig::default()
    }
}

fn start(stage: &Stage, nodes: Vec<NodeConfig>) -> Running {
    let config = Config { ring_bytes: 1 << 20, ..Config::new(stage.dir.path().join("data"), nodes) };
    Agent::start(config, stage.collector.link()).unwrap()
}

/// Waits until the target event of a process says so.
fn wait_for(stage: &Stage, node: &str, pid: u32, event: &str) -> String {
    stage.collector.wait(event, |delivered| {
        let events = delivered.target_events(node);
        let found = events.iter().find(|found| found.pid == pid && found.event == event);
        found.map(|found| found.detail.clone())
    })
}

fn trace_events(delivered: &Delivered, node: &str) -> Vec<TraceEvent> {
    let event = |kind: &Kind| if let Kind::TraceEvent(event) = kind { Some(event.clone()) } else { None };
    delivered.kinds(node).filter_map(event).collect()
}

fn decoded(delivered: &Delivered, node: &str) -> Vec<Event> {
    let mut decoder = Decoder::default();
    let events = trace_events(delivered, node).into_iter().enumerate();
    events.map(|(number, event)| decoder.event(number as u64, 0, event).unwrap()).collect()
}

#[test]
fn events_are_those_that_the_node_fired() {
    let stage = Stage::new();
    let program = program(&stage, Flavour::Core(31));
    let rule = |tracepoints: &[&str], filter: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        TraceRule { tracepoints: texts(tracepoints), filter: texts(filter) }
    };
    let rules = vec![rule(&["net:*"], &["message_type=tx", "size>10"]), rule(&["mempool:rejected"], &[])];
    let mut before = FakeNode::start(&program);
    let agent = start(&stage, vec![node("btc", &program, Trace { rules, ..Trace::of(["a:b"]) })]);
    let attached = wait_for(&stage, "btc", before.pid(), "tracepoints");
    assert!(attached.starts_with("attached to "), "{attached}");
    // One that starts later is observed, too.
    let mut later = FakeNode::start(&program);
    wait_for(&stage, "btc", later.pid(), "tracepoints");

    let mut expected = Vec::new();
    for running in [&mut before, &mut later] {
        expected.push(
            running.fire("net:inbound_message peer_id=7 address=203.0.113.7:8333 message_type=tx size=250 seed=1"),
        );
        running.fire("net:inbound_message peer_id=7 message_type=inv size=250");
        running.fire("net:inbound_message peer_id=7 message_type=tx size=10");
        running.fire("mempool:added");
        expected.push(running.fire("mempool:rejected"));
    }
    let count = expected.len();
    stage.collector.wait("the events", |delivered| (trace_events(delivered, "btc").len() >= count).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();

    let delivered = stage.collector.now();
    let mut events = decoded(&delivered, "btc");
    events.sort_by_key(|event| event.time.monotonic_ns);
    assert_eq!(events.len(), count, "{events:#?}");
    for (event, fired) in events.iter().zip(&expected) {
        assert_eq!(
            (event.attachment.full_name(), event.pid, event.tid),
            (fired.tracepoint.clone(), fired.pid, fired.tid)
        );
        assert!((fired.before_ns..=fired.after_ns).contains(&event.time.monotonic_ns), "{fired:?}");
        assert_eq!(event.attachment.contract.as_deref(), Some("bitcoin-core-v31"));
    }
    assert_eq!(events[0].get("peer_id"), Some(&Value::Signed(7)));
    assert!(
        matches!(events[0].get("payload"), Some(Value::Bytes { bytes, incomplete: None, .. }) if bytes.len() == 250)
    );
    let peers = trace_events(&delivered, "btc").into_iter().find(|event| event.provider == "net").unwrap().peers;
    assert_eq!(peers, ["7", "203.0.113.7:8333"]);
    // The network of such a node is left alone.
    assert!(delivered.account("btc").is_none());
}

/// The time between two firings: from the end of one to the begin of the other at least.
fn between(first: &Fired, then: &Fired) -> RangeInclusive<u64> {
    then.before_ns.saturating_sub(first.after_ns)..=then.after_ns - first.before_ns
}

#[test]
fn block_relay_of_the_recorded_events_has_the_times_of_the_node() {
    let stage = Stage::new();
    let program = program(&stage, Flavour::Core(31));
    let agent = start(&stage, vec![node("btc", &program, Trace::of(["net:*", "validation:*"]))]);
    let mut running = FakeNode::start(&program);
    wait_for(&stage, "btc", running.pid(), "tracepoints");
    let stalled = Relay::after_stalling(&mut running, Block::new([1; 32], 200, 3, 1), 200);
    let compact = Relay::compact(&mut running, Block::new(stalled.block.hash(), 201, 4, 1), 201);
    let count = stalled.fired.len() + compact.fired.len();
    stage.collector.wait("the events", |delivered| (trace_events(delivered, "btc").len() == count).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();
    let (mut view, mut lines) = (view::Relay::default(), view::Lines::default());
    for event in decoded(&stage.collector.now(), "btc") {
        view.event(&event, &mut lines);
    }
    let summary = view.summary().unwrap();
    let blocks = summary["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 2, "{summary:#}");
    let steps = [(&stalled, (1, "inv"), (2, "block"), 200), (&compact, (3, "cmpctblock"), (3, "blocktxn"), 201)];
    for (found, (relay, announced, delivered, height)) in blocks.iter().zip(steps) {
        assert_eq!((found["hash"].as_str(), found["height"].as_i64()), (Some(&*relay.block.id()), Some(height)));
        let first = relay.message(announced.0, announced.1);
        assert_eq!(found["announcements"][0]["peer_id"], announced.0);
        let after = found["delivery"]["after_ns"].as_u64().unwrap();
        assert!(between(first, relay.message(delivered.0, delivered.1)).contains(&after), "{found:#}");
        let connected = found["connected_after_ns"].as_u64().unwrap();
        assert!(between(first, relay.connected()).contains(&connected), "{found:#}");
    }
}

#[test]
fn what_cannot_be_traced_is_a_status_and_not_an_end() {
    let stage = Stage::new();
    let (rippled, tapyrus) = (program(&stage, Flavour::Rippled), program(&stage, Flavour::Tapyrus));
    let nodes = vec![
        node("none", &rippled, Trace::of(["net:*"])),
        node("contract", &tapyrus, Trace { contract: Some("/nonexistent/a.toml".to_owned()), ..Trace::of(["net:*"]) }),
    ];
    let agent = start(&stage, nodes);
    let (without, other) = (FakeNode::start(&rippled), FakeNode::start(&tapyrus));
    let cause = wait_for(&stage, "none", without.pid(), "tracepoints error");
    assert!(cause.starts_with("no tracepoint to attach to matches net:*"), "{cause}");
    let cause = wait_for(&stage, "contract", other.pid(), "tracepoints error");
    assert_eq!(cause, "contract /nonexistent/a.toml: No such file or directory (os error 2)");
    until_true("the metric", || {
        let metrics = agent.monitor().metrics();
        metrics.contains("tracepoints_failed{node=\"none\"} 1")
            && metrics.contains("tracepoints_failed{node=\"contract\"} 1")
    });
    assert!(agent.status().is_running);
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn a_pattern_without_a_tracepoint_is_named_and_the_others_are_recorded() {
    let stage = Stage::new();
    let program = program(&stage, Flavour::Moneyrocket);
    let agent = start(&stage, vec![node("partial", &program, Trace::of(["net:*", "nonsense:*"]))]);
    let mut running = FakeNode::start(&program);
    let detail = wait_for(&stage, "partial", running.pid(), "tracepoints");
    let is_named =
        detail.starts_with("attached to ") && detail.ends_with(" locations; no tracepoint matches nonsense:*");
    assert!(is_named, "{detail}");
    until_true("the metric", || agent.monitor().metrics().contains("tracepoints_failed{node=\"partial\"} 1"));
    running.fire("net:inbound_message peer_id=7");
    stage.collector.wait("the event", |delivered| (trace_events(delivered, "partial").len() == 1).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();
}

/// An aggregator that takes nothing until it is opened, and then collects.
fn closed_link(gate: &Arc<Mutex<bool>>, stage: &Stage) -> Link {
    let gate = Arc::clone(gate);
    let Link::Reopen(open) = stage.collector.link() else { panic!("a link that is opened again") };
    let mut open = open;
    Link::Reopen(Box::new(move || {
        if *gate.lock() {
            return open();
        }
        // Both channels end at once: the agent tries again.
        let (requests, _) = mpsc::channel(1);
        let (_, replies) = mpsc::channel(1);
        Some(Uplink { requests, replies })
    }))
}

#[test]
fn with_a_stopped_sink_the_loss_is_exact() {
    const HITS: u64 = 20_000;
    let stage = Stage::new();
    let program = program(&stage, Flavour::Core(31));
    let gate = Arc::new(Mutex::new(false));
    // A ring large enough for all hits: only the queue drops some.
    let trace = Trace { max_payload: bytesize::ByteSize::mib(4), ..Trace::of(["net:inbound_message"]) };
    let nodes = vec![node("btc", &program, trace)];
    let config =
        Config { ring_bytes: 1 << 20, queue_bytes: 1 << 20, ..Config::new(stage.dir.path().join("data"), nodes) };
    let mut running = FakeNode::start(&program);
    let agent = Agent::start(config, closed_link(&gate, &stage)).unwrap();
    running.wait_for_semaphores(&["net:inbound_message"], 1);
    running.execute(&format!("repeat {HITS} net:inbound_message size=100 quiet=1 rate=20000"));
    let metric = |name: &str| -> u64 {
        let metrics = agent.monitor().metrics();
        let of = |line: &&str| {
            line.starts_with(&format!("chainscope_agent_{name}_total{{")) && line.contains("inbound_message")
        };
        metrics.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    until_true("every hit is accounted for", || {
        let (hits, recorded, dropped) =
            (metric("tracepoint_hits"), metric("tracepoint_events"), metric("tracepoint_events_dropped"));
        hits == HITS && hits == recorded + dropped
    });
    let dropped = metric("tracepoint_events_dropped");
    assert!(dropped > 0, "the queue has room for all of them");
    *gate.lock() = true;
    let recorded = HITS - dropped;
    stage
        .collector
        .wait("what was recorded", |delivered| (trace_events(delivered, "btc").len() as u64 >= recorded).then_some(()));
    drop(running);
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(trace_events(&delivered, "btc").len() as u64, recorded);
    // The stream says how many records it dropped: these events, and none of another kind.
    let losses = losses(&delivered, "btc");
    assert!(losses.iter().all(|loss| (&*loss.stage, &*loss.reason) == ("queue", "queue full")), "{losses:?}");
    assert_eq!(losses.iter().map(|loss| loss.records).sum::<u64>(), dropped);
}

fn losses(delivered: &Delivered, node: &str) -> Vec<Loss> {
    let loss = |kind: &Kind| if let Kind::Loss(loss) = kind { Some(loss.clone()) } else { None };
    delivered.kinds(node).filter_map(loss).collect()
}

#[test]
fn a_record_is_readable_on_its_own() {
    // Encoded and decoded as on the wire.
    let stage = Stage::new();
    let program = program(&stage, Flavour::Tapyrus);
    let agent = start(&stage, vec![node("tapyrus", &program, Trace::of(["*:*"]))]);
    let mut running = FakeNode::start(&program);
    wait_for(&stage, "tapyrus", running.pid(), "tracepoints");
    running.fire("coin_selection:change_info#1");
    running.fire("mempool:rejected");
    let events = stage.collector.wait("two events", |delivered| {
        let events = trace_events(delivered, "tapyrus");
        (events.len() == 2).then_some(events)
    });
    agent.shutdown(TIMEOUT).unwrap();
    for event in events {
        let record = Record { time_ns: 5, target: String::new(), kind: Some(Kind::TraceEvent(event)) };
        let bytes = prost::Message::encode_to_vec(&record);
        let Record { kind: Some(Kind::TraceEvent(event)), time_ns, .. } = prost::Message::decode(&*bytes).unwrap()
        else {
            panic!("another record")
        };
        let event = Decoder::default().event(9, time_ns, event).unwrap();
        assert_eq!((event.sequence, event.time.wall_ns), (9, 5));
        let name = if event.attachment.name == "rejected" { "reason" } else { "value" };
        assert!(event.get(name).is_some(), "{event:?}");
    }
}
