//! Block relay: who announced, who delivered, who did not answer, and when, as the program knows it.

use std::ops::RangeInclusive;

use chainscope_testing::fakenode::{Fired, Flavour, blocks::Block, relay::Relay};
use serde_json::{Value, json};

use crate::support::Node;

const TRACEPOINTS: [&str; 3] = ["net:inbound_message", "net:outbound_message", "validation:block_connected"];

/// The time between two firings: from the end of one to the begin of the other at least.
fn between(first: &Fired, then: &Fired) -> RangeInclusive<u64> {
    then.before_ns.saturating_sub(first.after_ns)..=then.after_ns - first.before_ns
}

/// Compares a step with its message: its peer, its type, and the time since the first announcement.
#[track_caller]
fn assert_step(step: &Value, first: &Fired, fired: &Fired) {
    assert_eq!(
        (&step["peer_id"], &step["message_type"]),
        (&fired.arguments["peer_id"], &fired.arguments["message_type"])
    );
    let after = step["after_ns"].as_u64().unwrap();
    assert!(between(first, fired).contains(&after), "{step} {fired:?}");
}

#[track_caller]
fn assert_block(found: &Value, relay: &Relay, height: u32, announcements: &[&Fired]) {
    assert_eq!((&found["hash"], &found["height"]), (&json!(relay.block.id()), &json!(height)));
    let first = announcements[0];
    let steps = found["announcements"].as_array().unwrap();
    assert_eq!(steps.len(), announcements.len(), "{found:#}");
    steps.iter().zip(announcements).for_each(|(step, fired)| assert_step(step, first, fired));
    let connected = found["connected_after_ns"].as_u64().unwrap();
    assert!(between(first, relay.connected()).contains(&connected), "{found:#}");
}

#[test]
fn times_of_blocks_are_those_of_the_node() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["relay", "--json"], &TRACEPOINTS);
    let stalled = Relay::after_stalling(&mut node.node, Block::new([1; 32], 200, 3, 1), 200);
    let compact = Relay::compact(&mut node.node, Block::new(stalled.block.hash(), 201, 4, 1), 201);
    let output = tool.interrupt();
    let last: Value = serde_json::from_str(output.lines().next_back().unwrap()).unwrap();
    let blocks = last["summary"]["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 2, "{last:#}");

    let first = stalled.message(1, "inv");
    assert_block(&blocks[0], &stalled, 200, &[first, stalled.message(2, "headers"), stalled.message(3, "inv")]);
    assert_step(&blocks[0]["request"], first, stalled.message(2, "getdata"));
    assert_step(&blocks[0]["delivery"], first, stalled.message(2, "block"));
    let unanswered = blocks[0]["unanswered"].as_array().unwrap();
    assert_eq!(unanswered.len(), 1);
    assert_step(&unanswered[0], first, stalled.message(1, "getdata"));

    let first = compact.message(3, "cmpctblock");
    assert_block(&blocks[1], &compact, 201, &[first, compact.message(1, "inv")]);
    assert_step(&blocks[1]["request"], first, compact.message(3, "getblocktxn"));
    assert_step(&blocks[1]["delivery"], first, compact.message(3, "blocktxn"));
    assert_eq!(blocks[1]["unanswered"], json!([]));
    let fired = stalled.fired.len() + compact.fired.len();
    assert_eq!(last["accounting"]["total"]["delivered"], fired);
}
