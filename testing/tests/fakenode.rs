//! What a fake node says of itself, compared with what it was asked for and with other implementations.

use std::collections::BTreeSet;

use chainscope_testing::fakenode::{
    FakeNode, Fired, Flavour,
    blocks::{Block, setting},
    relay::Relay,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// SplitMix64 from a seed, as the node's payloads are made.
fn random_bytes(mut state: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

#[test]
fn payloads_have_the_digest_of_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Core(28));
    for size in [0, 1, 55, 56, 63, 64, 119, 120, 255, 32_568, 32_569, 65_536, 1 << 20, 3_999_999, 4_000_000, 4_194_304]
    {
        let fired = node.fire(&format!("net:inbound_message peer_id=-1 message_type=block size={size} seed=42"));
        assert_eq!(fired.number_of("size"), i64::try_from(size).unwrap());
        assert_eq!(fired.sha256(), digest(&random_bytes(42, size)), "{size} bytes");
    }
    let cut = node.fire("net:outbound_message size=18446744073709551615 payload=@cut:5000 seed=7");
    assert_eq!(cut.arguments["size"], u64::MAX);
    let expected = json!({ "readable": 5000, "sha256": digest(&random_bytes(7, 5000)) });
    assert_eq!(cut.arguments["payload"], expected);
    let given = node.fire("net:inbound_message payload=hex:00ff");
    assert_eq!((given.show("size"), given.sha256()), ("2".to_owned(), &*digest(&[0, 255])));
    assert!(node.finish().success());
}

#[test]
fn texts_and_pointers_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Core(31));
    let alphabet: String = ('a'..='z').cycle().take(255).collect();
    for length in [0, 9, 20, 63, 64, 68, 69, 118, 128, 255] {
        let fired = node.fire(&format!("mempool:rejected reason=@length:{length}"));
        assert_eq!(fired.show("reason"), alphabet[..length]);
    }
    let mut reason = |value: &str| node.fire(&format!("mempool:rejected reason={value}")).arguments["reason"].clone();
    assert_eq!(reason("mutated%20block"), "mutated block");
    assert_eq!(reason("%1b[2J%c3%a9"), json!({ "hex": "1b5b324ac3a9" }));
    assert_eq!(reason("@null"), json!(null));
    assert_eq!(reason("@unreadable"), json!({ "unreadable": true }));
    assert_eq!(reason("@cut:3"), json!({ "readable": "abc" }));
    assert_eq!(reason("@untouched"), "text of a page that was never touched");
    let id = "00000000000000000000000000000000000000000000000000000000000000ff";
    let fired = node.fire(&format!("mempool:removed txid={id} fee=-5 entry_time=18446744073709551615"));
    assert_eq!((fired.show("txid"), fired.number_of("fee")), (id.to_owned(), -5));
    assert_eq!(fired.arguments["entry_time"], u64::MAX);
}

#[test]
fn many_firings_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Tapyrus);
    let reply = node.execute("repeat 5000 mempool:removed txid=# reason=block threads=3");
    let ids: BTreeSet<String> = reply.fired.iter().map(|fired| fired.show("txid")).collect();
    let threads: BTreeSet<u32> = reply.fired.iter().map(|fired| fired.tid).collect();
    assert_eq!((reply.fired.len(), ids.len(), threads.len()), (5000, 5000, 3));
    let in_order = |fired: &[Fired]| {
        fired.iter().all(|fired| fired.before_ns <= fired.after_ns) && fired.is_sorted_by_key(|fired| fired.before_ns)
    };
    assert!(reply.fired.chunk_by(|a, b| a.tid == b.tid).all(in_order));

    let paced = node.execute("repeat 200 mempool:added threads=2 rate=1000 quiet=1");
    assert!(paced.fired.is_empty());
    // Each thread waits after each of its firings.
    assert!(paced.after_ns - paced.before_ns >= 190_000_000, "{paced:?}");

    let child = node.execute("fork fire mempool:added").fired.pop().unwrap();
    assert_ne!(child.pid, node.pid());
    node.exec();
    assert_eq!(node.fire("mempool:added").pid, node.pid());
}

#[test]
fn semaphores_are_those_of_the_flavour() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Core(31));
    let semaphores = node.semaphores();
    assert_eq!((semaphores.len(), semaphores.values().max()), (20, Some(&0)));
    assert_eq!(node.fire("mempool:added").active, 0);
    let mut node = FakeNode::run(folder.path(), Flavour::Core(28));
    assert!(node.semaphores().is_empty());
    assert_eq!(node.fire("mempool:added").active, 1);
}

#[test]
fn transactions_take_their_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Rippled);
    let reply = node.execute("transaction kind=payment result=128 preflight_us=200 apply_us=3000");
    let called: Vec<&str> = reply.called.iter().map(|called| &*called.function).collect();
    assert_eq!(called, ["preflight", "operator()"]);
    let apply = &reply.called[1];
    assert!(apply.after_ns - apply.before_ns >= 3_000_000);
    assert_eq!(reply.fired[0].number_of("result"), 128);
    assert!((apply.before_ns..apply.after_ns).contains(&reply.fired[0].before_ns));
    let thrown = node.execute("transaction kind=offer throws=1");
    assert_eq!((thrown.called.len(), thrown.fired.len()), (2, 0));
    let rejected = node.execute("transaction kind=offer applied=0");
    assert_eq!((rejected.called.len(), rejected.fired.len()), (1, 0));
}

#[test]
fn blocks_have_the_layout_of_the_wire() {
    let block = Block::new([7; 32], 500, 3, 9);
    let bytes = block.block();
    assert_eq!((bytes[..80].to_vec(), bytes[80]), (block.header.clone(), 3));
    assert_eq!(bytes[4..36], [7; 32]);
    assert_eq!((block.inv().len(), block.headers().len()), (37, 82));
    let ids: Vec<Vec<u8>> = block.transactions.iter().map(|one| Sha256::digest(Sha256::digest(one)).to_vec()).collect();
    let pair = |a: &[u8], b: &[u8]| Sha256::digest(Sha256::digest([a, b].concat())).to_vec();
    assert_eq!(bytes[36..68], pair(&pair(&ids[0], &ids[1]), &pair(&ids[2], &ids[2])));
    assert_eq!(block.cmpctblock().len(), 80 + 8 + 1 + 2 * 6 + 2 + block.transactions[0].len());
    assert_eq!(block.getblocktxn()[32..], [2, 1, 0]);
    assert_eq!(setting(&[1, 255]), "payload=hex:01ff");
    assert!(block.id().chars().all(|digit| digit.is_ascii_hexdigit()) && block.id().len() == 64);
}

#[test]
fn a_relayed_block_has_known_times() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(folder.path(), Flavour::Core(31));
    let first = Relay::after_stalling(&mut node, Block::new([1; 32], 200, 1, 1), 200);
    let second = Relay::compact(&mut node, Block::new(first.block.hash(), 201, 4, 1), 201);
    assert_eq!(second.block.header[4..36], first.block.hash());
    for relay in [&first, &second] {
        assert!(relay.fired.windows(2).all(|pair| pair[1].before_ns - pair[0].after_ns >= 15_000_000));
        assert_eq!(relay.connected().show("hash"), relay.block.id());
    }
    assert_eq!(first.message(2, "block").sha256(), digest(&first.block.block()));
    assert_eq!(second.message(3, "blocktxn").tracepoint, "net:inbound_message");
}
