//! A recording that is replayed has the lines of the run, in every view.

use std::fs;

use chainscope_testing::{
    fakenode::{FakeNode, Flavour, blocks::Block, relay::Relay},
    wait::until_true,
};

use crate::support::{Node, Tool};

/// Every view.
const VIEWS: [&[&str]; 11] = [
    &["p2p", "--decode"],
    &["p2p-monitor"],
    &["raw"],
    &["blocks", "0", "0", "0"],
    &["utxocache"],
    &["utxos"],
    &["mempool"],
    &["coins"],
    &["connections"],
    &["relay"],
    &["any", "*:*"],
];

/// Everything that views show, with pauses after which they say more, without an event: the end of a second, a stalling peer, the
/// end of a transaction.
fn scenario(node: &mut FakeNode) {
    for name in ["add", "spent", "uncache", "flush"] {
        node.fire(&format!("utxocache:{name}"));
    }
    for name in ["added", "removed", "rejected", "replaced"] {
        node.fire(&format!("mempool:{name}"));
    }
    for name in ["inbound", "outbound", "evicted_inbound", "misbehaving", "closed"] {
        node.fire(&format!("net:{name}_connection peer_id=7"));
    }
    let relay = Relay::after_stalling(node, Block::new([1; 32], 200, 3, 1), 200);
    Relay::compact(node, Block::new(relay.block.hash(), 201, 4, 1), 201);
    // The second transaction ends first; the peer that is asked last stalls last.
    node.execute("repeat 2 coin_selection:normal_create_tx_internal wallet=a threads=2");
    node.fire("coin_selection:selected_coins wallet=b");
    node.fire("coin_selection:normal_create_tx_internal wallet=b");
    let blocks = [2, 3].map(|seed| Block::new([seed; 32], 202, 1, 1));
    let payload = |bytes: Vec<u8>| chainscope_testing::fakenode::blocks::setting(&bytes);
    for (peer, block) in (1..).zip(&blocks) {
        node.fire(&format!("net:inbound_message peer_id={peer} message_type=inv {}", payload(block.inv())));
    }
    for (peer, block) in [(2, &blocks[1]), (1, &blocks[0])] {
        node.fire(&format!("net:outbound_message peer_id={peer} message_type=getdata {}", payload(block.getdata())));
        node.execute("pause 200");
    }
    node.execute("pause 2300");
    for name in ["mempool:added", "net:inbound_message", "validation:block_connected height=202", "utxocache:flush"] {
        node.fire(name);
    }
    node.fire("coin_selection:selected_coins wallet=c");
    node.fire("net:closed_connection peer_id=1");
    node.fire("utxocache:add");
}

/// All views at once: each is a tracer of its own, which loses nothing.
#[test]
fn a_replay_has_the_lines_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(Flavour::Core(31));
    let mut running = Vec::new();
    for view in VIEWS {
        for flags in [&[][..], &["--json"]] {
            let recording = folder.path().join(format!("{}{}.trace", view[0], flags.concat()));
            let recording = recording.to_str().unwrap().to_owned();
            let shown = [view, flags].concat();
            let live = [&shown[..], &["--ring-pages", "2048", "--record", &recording]].concat();
            let pid = node.node.pid().to_string();
            let tool = Tool::start(&[&live[..], &["--pid", &pid]].concat());
            // It is created when the probe is attached.
            until_true(&format!("{shown:?} to be attached"), || fs::exists(&recording).unwrap());
            running.push((shown, recording, tool));
        }
    }
    scenario(&mut node.node);
    for (shown, recording, tool) in running {
        let live = tool.interrupt();
        assert!(live.lines().count() > 2, "{shown:?}: {live}");
        let last = live.lines().next_back().unwrap();
        assert!(last.ends_with(" + 0 dropped") || last.contains("\"residual\":0"), "{last}");
        let replayed = Tool::start(&[&["replay", &recording][..], &shown].concat()).output();
        for (number, (found, expected)) in replayed.lines().zip(live.lines()).enumerate() {
            assert!(found == expected, "line {number} of {shown:?}:\n{found:.300}\ninstead of\n{expected:.300}");
        }
        assert_eq!(replayed.lines().count(), live.lines().count(), "{shown:?}");
        // What views say without an event is in it.
        match (shown[0], shown.len()) {
            ("relay", 1) => assert_eq!(live.matches(" stalls: ").count(), 2, "{live}"),
            ("coins", 1) => assert!(live.matches("Transaction [").count() >= 3, "{live}"),
            ("blocks", 4) => assert!(live.contains("BENCH "), "{live}"),
            _ => {}
        }
    }
}
