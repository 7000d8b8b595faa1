//! Events of tracepoints through the real program: of a node that is no Tezos node, from `chainscope.toml` to `/v2/trace` and block
//! relay, compared with what the node fired.

use std::ops::RangeInclusive;

use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::wait;
use chainscope_testing::fakenode::{FakeNode, Fired, Flavour, blocks::Block, build, relay::Relay};
use serde_json::{Value, json};

/// The time between two firings: from the end of one to the begin of the other at least.
fn between(first: &Fired, then: &Fired) -> RangeInclusive<u64> {
    then.before_ns.saturating_sub(first.after_ns)..=then.after_ns - first.before_ns
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn block_relay_over_http_has_the_times_of_the_node() {
    let mut machine = Machine::new("auto");
    // A file of its own: every process that executes it is recorded.
    let program = build(machine.directory(), Flavour::Core(31));
    let trace = "trace = { rules = [{ tracepoints = [\"net:*\", \"validation:*\"] }] }";
    machine.observe_program("bitcoind", &program, trace);
    let mut chainscope = machine.start();
    let mut node = FakeNode::start(&program);
    node.wait_for_semaphores(&["net:inbound_message", "validation:block_connected"], 1);
    let stalled = Relay::after_stalling(&mut node, Block::new([1; 32], 200, 3, 1), 200);
    let stored = |api: &chainscope_e2e::harness::api::Api| number(&api.stats()["nodes"][0]["trace"]["stored"]) as usize;
    wait::until_true("the events of the first block", || stored(&chainscope.api) == stalled.fired.len());
    // The semaphores are given back, and raised again.
    chainscope.program.kill();
    node.wait_for_semaphores(&["net:inbound_message", "validation:block_connected"], 0);
    chainscope = machine.start();
    node.wait_for_semaphores(&["net:inbound_message", "validation:block_connected"], 1);
    let compact = Relay::compact(&mut node, Block::new(stalled.block.hash(), 201, 4, 1), 201);
    let all = stalled.fired.len() + compact.fired.len();
    wait::until_true("all events", || stored(&chainscope.api) == all);

    let rows = chainscope.api.get("/v2/trace?direction=forward&limit=1000");
    let rows = rows.as_array().expect("a list");
    let fired: Vec<&Fired> = stalled.fired.iter().chain(&compact.fired).collect();
    assert_eq!(rows.len(), fired.len());
    for (row, fired) in rows.iter().zip(&fired) {
        assert_eq!((&row["tracepoint"], &row["pid"]), (&json!(fired.tracepoint), &json!(node.pid())));
        assert!((fired.before_ns..=fired.after_ns).contains(&number(&row["monotonic_ns"])), "{row} {fired:?}");
        for name in ["peer_id", "address", "message_type", "height"] {
            assert_eq!(row["arguments"].get(name), fired.arguments.get(name), "{row}");
        }
    }
    let of_peer = chainscope.api.get("/v2/trace?peer=203.0.113.2:8333&limit=1000");
    let expected = fired.iter().filter(|fired| fired.arguments.get("peer_id") == Some(&json!(2))).count();
    assert_eq!(of_peer.as_array().map(Vec::len), Some(expected));

    let relay = chainscope.api.get("/v2/trace/relay");
    assert_eq!((number(&relay["events"]), number(&relay["lost_events"])), (all as u64, 0));
    let blocks = relay["targets"][0]["blocks"].as_array().expect("a list");
    assert_eq!(blocks.len(), 2, "{relay:#}");
    let steps = [(&stalled, (1, "inv"), (2, "block")), (&compact, (3, "cmpctblock"), (3, "blocktxn"))];
    for (found, (relay, announced, delivered)) in blocks.iter().zip(steps) {
        assert_eq!(found["hash"], relay.block.id());
        let first = relay.message(announced.0, announced.1);
        assert_eq!(found["announcements"][0]["peer_id"], announced.0);
        let after = number(&found["delivery"]["after_ns"]);
        assert!(between(first, relay.message(delivered.0, delivered.1)).contains(&after), "{found:#}");
        assert!(between(first, relay.connected()).contains(&number(&found["connected_after_ns"])), "{found:#}");
    }
    // Nothing but its tracepoints is recorded.
    let node = &chainscope.api.stats()["nodes"][0];
    assert_eq!((number(&node["totals"]["messages"]), number(&node["totals"]["chunks"])), (0, 0));
}
