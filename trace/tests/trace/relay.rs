//! Block relay: announcements, requests, deliveries, and peers that do not answer.

use chainscope_testing::fakenode::blocks::Block;
use chainscope_trace::{Event, Incomplete, Selection, Value, view::Relay};

use crate::support::{attachment, event, hash, lines, output, text};

/// The first block of Bitcoin: its header and its hash.
const HEADER: &str = "0100000000000000000000000000000000000000000000000000000000000000000000003ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c";
const HASH: &str = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";

fn message(ms: u64, direction: &str, peer: i64, kind: &str, payload: Vec<u8>) -> Event {
    let texts = [format!("10.0.0.{peer}:8333"), "manual".to_owned(), kind.to_owned()].map(|it| text(&it));
    let size = Value::Unsigned(payload.len() as u64);
    let arguments = [Value::Signed(peer)].into_iter().chain(texts).chain([size, Value::bytes(payload)]).collect();
    event(&attachment("bitcoin-core-v31", &format!("net:{direction}_message")), ms, arguments)
}

fn header() -> Vec<u8> {
    hex::decode(HEADER).expect("valid")
}

/// The hash in the order of the protocol.
fn hash_bytes() -> Vec<u8> {
    let mut bytes = hex::decode(HASH).expect("valid");
    bytes.reverse();
    bytes
}

/// An inventory of a transaction, and of the block with this type.
fn inventory(kind: u32) -> Vec<u8> {
    [vec![2, 1, 0, 0, 0], vec![9; 32], kind.to_le_bytes().to_vec(), hash_bytes()].concat()
}

fn headers() -> Vec<u8> {
    [vec![1], header(), vec![0]].concat()
}

fn connected(ms: u64) -> Event {
    let block = attachment("bitcoin-core-v31", "validation:block_connected");
    let counts = [Value::Signed(7), Value::Unsigned(1), Value::Signed(1), Value::Signed(1), Value::Signed(1_000_000)];
    event(&block, ms, [hash(HASH)].into_iter().chain(counts).collect())
}

#[test]
fn a_compact_block_with_missing_transactions() {
    let events = [
        message(100, "inbound", 3, "cmpctblock", [header(), vec![0; 20]].concat()),
        message(110, "outbound", 3, "getblocktxn", hash_bytes()),
        message(120, "inbound", 7, "headers", headers()),
        message(130, "outbound", 7, "getdata", inventory(0x4000_0002)),
        message(140, "inbound", 7, "inv", inventory(2)),
        message(220, "inbound", 3, "blocktxn", hash_bytes()),
        connected(580),
        // Late, and no block of its own.
        message(600, "inbound", 9, "inv", inventory(2)),
    ];
    let expected = [
        "Logging block relay",
        &format!(
            "Block 7 ({HASH}) announced 2021-07-14T09:30:00.100000000Z by peer 3 (manual, 10.0.0.3:8333) with cmpctblock"
        ),
        "  +0.010000 s requested with getblocktxn",
        "  +0.120000 s delivered by peer 3 (manual, 10.0.0.3:8333) with blocktxn",
        "  +0.480000 s connected",
        "  +0.020000 s announced by peer 7 (manual, 10.0.0.7:8333) with headers",
        "  +0.030000 s getdata to peer 7 (manual, 10.0.0.7:8333) without an answer",
        "8 hits = 8 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Relay::default(), &events), expected);

    let json = output(&mut Relay::default(), Selection::default(), true, &events);
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    let block = &last["summary"]["blocks"][0];
    assert_eq!((&block["hash"], &block["height"]), (&HASH.into(), &7.into()));
    assert_eq!(block["delivery"]["after_ns"], 120_000_000);
    assert_eq!(block["connected_after_ns"], 480_000_000);
    assert_eq!(block["announcements"].as_array().unwrap().len(), 2);
}

#[test]
fn a_peer_that_stalls_is_reported_and_another_delivers() {
    let events = [
        message(0, "inbound", 1, "inv", inventory(2)),
        message(10, "outbound", 1, "getdata", inventory(2)),
        message(1_000, "inbound", 2, "headers", headers()),
        message(2_500, "outbound", 2, "getdata", inventory(2)),
        message(2_600, "inbound", 2, "block", header()),
        connected(2_700),
    ];
    let expected = [
        "Logging block relay",
        &format!(
            "Block ({HASH}): peer 1 (manual, 10.0.0.1:8333) stalls: no answer to getdata of 2021-07-14T09:30:00.010000000Z for 2 s"
        ),
        &format!(
            "Block 7 ({HASH}) announced 2021-07-14T09:30:00.000000000Z by peer 1 (manual, 10.0.0.1:8333) with inv"
        ),
        "  +2.500000 s requested with getdata",
        "  +2.600000 s delivered by peer 2 (manual, 10.0.0.2:8333) with block",
        "  +2.700000 s connected",
        "  +1.000000 s announced by peer 2 (manual, 10.0.0.2:8333) with headers",
        "  +0.010000 s getdata to peer 1 (manual, 10.0.0.1:8333) without an answer",
        "6 hits = 6 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Relay::default(), &events), expected);
}

#[test]
fn a_complete_compact_block_is_a_delivery_and_a_block_may_not_be_connected() {
    let compact = message(5, "inbound", 3, "cmpctblock", header());
    let found = lines(&mut Relay::default(), &[compact.clone(), connected(9)]);
    assert_eq!(
        found[2..4],
        ["  +0.000000 s delivered by peer 3 (manual, 10.0.0.3:8333) with cmpctblock", "  +0.004000 s connected"]
    );
    let found = lines(&mut Relay::default(), &[compact]);
    assert_eq!(found[3], "  not connected");
}

#[test]
fn what_is_no_announcement_is_left_out() {
    // Nine headers answer a request; an inventory may lie about its length or be captured in part.
    let many = [vec![9], [header(), vec![0]].concat().repeat(9)].concat();
    let mut cut = message(2, "inbound", 1, "inv", Vec::new());
    cut.arguments[5] =
        Value::Bytes { bytes: inventory(2)[..50].to_vec().into(), claimed: 73, incomplete: Some(Incomplete::Limit) };
    let events = [
        message(1, "inbound", 1, "headers", many),
        cut,
        message(3, "inbound", 1, "inv", [vec![0xff; 9], vec![2, 0, 0, 0]].concat()),
        message(4, "inbound", 1, "inv", inventory(1)),
        message(5, "outbound", 1, "inv", inventory(2)),
        message(6, "inbound", 1, "block", header()),
        message(7, "inbound", 1, "cmpctblock", vec![1; 79]),
        message(8, "inbound", 1, "inv", Vec::new()),
    ];
    assert_eq!(lines(&mut Relay::default(), &events), ["Logging block relay", "8 hits = 8 delivered + 0 dropped"]);
}

#[test]
fn blocks_that_do_not_exist_are_bounded() {
    let invented = |n: u64| {
        let hash: Vec<u8> = n.to_le_bytes().repeat(4);
        message(n, "inbound", 1, "inv", [vec![1, 2, 0, 0, 0], hash].concat())
    };
    let events: Vec<Event> = (0..300).map(invented).collect();
    let found = lines(&mut Relay::default(), &events);
    assert_eq!(found.iter().filter(|line| *line == "  not connected").count(), 256);
    assert_eq!(found[found.len() - 2], "44 blocks that were announced and not connected are forgotten");
}

/// Stalls that become known together are in the order in which they began, as when each is known at once.
#[test]
fn stalls_are_in_the_order_of_time() {
    let inv = |hash: u8| [vec![1, 2, 0, 0, 0], vec![hash; 32]].concat();
    let events = [
        message(0, "inbound", 1, "inv", inv(1)),
        message(1, "inbound", 2, "inv", inv(2)),
        message(10, "outbound", 2, "getdata", inv(2)),
        message(300, "outbound", 1, "getdata", inv(1)),
        message(5_000, "inbound", 3, "ping", Vec::new()),
    ];
    let found = lines(&mut Relay::default(), &events);
    let stalls: Vec<&str> =
        found.iter().filter_map(|line| line.split_once(": ")?.1.split_once(" stalls")).map(|it| it.0).collect();
    assert_eq!(stalls, ["peer 2 (manual, 10.0.0.2:8333)", "peer 1 (manual, 10.0.0.1:8333)"]);
}

#[test]
fn processes_are_told_apart() {
    let of = |pid: u32, mut event: Event| {
        event.pid = pid;
        event
    };
    let events = [
        of(1, message(100, "inbound", 3, "cmpctblock", header())),
        of(2, message(110, "inbound", 3, "inv", inventory(2))),
        of(1, connected(120)),
        of(2, message(130, "outbound", 3, "getdata", inventory(2))),
        of(2, message(140, "inbound", 3, "block", header())),
        of(2, connected(150)),
    ];
    let found = lines(&mut Relay::default(), &events);
    let blocks: Vec<&String> = found.iter().filter(|line| line.contains("announced 20")).collect();
    assert!(blocks[0].starts_with("Process 1: Block 7") && blocks[0].ends_with("with cmpctblock"), "{blocks:?}");
    assert!(blocks[1].starts_with("Process 2: Block 7") && blocks[1].ends_with("with inv"), "{blocks:?}");
    assert_eq!(blocks.len(), 2);
    let delivered = "  +0.030000 s delivered by peer 3 (manual, 10.0.0.3:8333) with block";
    assert!(found.iter().any(|line| line == delivered), "{found:#?}");
    assert!(!found.iter().any(|line| line == "  not connected"), "{found:#?}");
}

/// Headers of Tapyrus have other lengths: without an extra field, with a public key, with the maximum size of a block.
#[test]
fn headers_of_tapyrus() {
    let key = [&[1, 33][..], &[2; 33]].concat();
    let blocks = [&[0][..], &key, &[2, 0, 0, 16, 0]].map(|extra| Block::of_tapyrus([1; 32], 5, extra, 9));
    let of_tapyrus = |mut event: Event, name: &str| {
        event.attachment = attachment("tapyrus", name);
        event
    };
    let inbound =
        |ms, peer, kind, payload| of_tapyrus(message(ms, "inbound", peer, kind, payload), "net:inbound_message");
    let connected = |ms, block: &Block| {
        let counts = [Value::Signed(5), Value::Unsigned(1), Value::Signed(1), Value::Signed(1), Value::Signed(1)];
        let arguments = [hash(&block.id())].into_iter().chain(counts).collect();
        event(&attachment("tapyrus", "validation:block_connected"), ms, arguments)
    };
    // All in one message, then one by one.
    let each: Vec<u8> = blocks.iter().flat_map(|block| [&block.header[..], &[0]].concat()).collect();
    let mut events = vec![inbound(1, 1, "headers", [&[3][..], &each].concat())];
    for (ms, block) in (10..).step_by(10).zip(&blocks) {
        events.extend([inbound(ms, 2, "cmpctblock", block.cmpctblock()), inbound(ms + 1, 3, "block", block.block())]);
        events.push(connected(ms + 2, block));
    }
    let found = lines(&mut Relay::default(), &events);
    for block in &blocks {
        let first = format!("Block 5 ({}) announced", block.id());
        let at = found.iter().position(|line| line.starts_with(&first)).unwrap_or_else(|| panic!("{found:#?}"));
        assert!(found[at].ends_with("peer 1 (manual, 10.0.0.1:8333) with headers"), "{}", found[at]);
        assert!(found[at + 1].ends_with("delivered by peer 3 (manual, 10.0.0.3:8333) with block"), "{}", found[at + 1]);
    }
    assert!(!found.iter().any(|line| line == "  not connected"), "{found:#?}");
    // What is cut, or has a field that is not known, has no hash.
    let unknown = Block::of_tapyrus([1; 32], 5, &[3, 0], 9).header;
    let cut = blocks[0].header[..blocks[0].header.len() - 1].to_vec();
    let events = [unknown, cut, vec![0; 104], Vec::new()].map(|payload| inbound(1, 1, "cmpctblock", payload));
    assert_eq!(lines(&mut Relay::default(), &events).len(), 2);
}
