//! Sessions that are seen from the beginning come out whole, and without their secrets.

use chainscope_proto::v1::ChunkState;
use sha2::{Digest as _, Sha256};

use super::*;

fn carthagenet() -> Vec<Step> {
    read("carthagenet-2020/payloads.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let (direction, bytes) = line.split_once(',').unwrap();
            let direction = if direction == "sent" { Direction::Sent } else { Direction::Received };
            Step { direction, bytes: hex::decode(bytes).unwrap() }
        })
        .collect()
}

#[test]
fn the_real_session_of_carthagenet_comes_out_whole() {
    let mut bench = bench(identity("carthagenet-2020/identity.json"));
    let steps = carthagenet();
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &steps);
    socket.close(&mut bench);

    let expected = read("carthagenet-2020/sent.expected.jsonl");
    let expected: Vec<serde_json::Value> = expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages = bench.messages();
    let sent: Vec<&&Message> =
        messages.iter().filter(|message| !message.incoming && message.category != "connection").collect();
    assert_eq!(sent.len(), expected.len());
    assert_eq!(sent.len(), 5_474);
    for (message, expected) in sent.iter().zip(&expected) {
        let plain = hex::decode(expected["plaintext_hex"].as_str().unwrap()).unwrap();
        assert_eq!(message.sha256, Sha256::digest(&plain).as_slice(), "{expected}");
        let kind = expected["type"].as_str().unwrap().to_lowercase();
        assert_eq!(message.kind, if kind == "ack" { "ack_message" } else { &kind });
        assert_eq!(message.first_chunk, expected["chunk"].as_u64().unwrap() + 1);
        assert_eq!((message.protocol.as_str(), message.error.as_str()), ("tezos", ""));
        assert!(message.preview.is_some());
    }
    let events = bench.connection_events();
    assert!(events.iter().all(|(key, _)| *key == 5_001 + 1_000), "the key is the real time of the start");
    assert!(!events.iter().any(|(_, event)| matches!(event, ConnectionKind::Gap(_))));
    assert!(matches!(events.first().unwrap().1, ConnectionKind::Opened(_)));
    let ConnectionKind::Closed(closed) = events.last().unwrap().1 else { panic!("{events:?}") };
    assert_eq!((closed.by.as_str(), closed.sent_bytes), ("remote", 713_756));
    let identified = events.iter().find_map(|(_, event)| match event {
        ConnectionKind::Identified(identified) => Some(identified),
        _ => None,
    });
    assert_eq!(identified.unwrap().network, "TEZOS_ALPHANET_CARTHAGE_2019-11-28T13:02:13Z");

    let account = bench.account_now(seen(bytes_of(&steps)));
    assert_eq!((account.bytes_in_ring, account.bytes_pending, account.gaps), (0, 0, 0));
    assert_eq!(account.bytes_in_chunks, bytes_of(&steps));
    assert_eq!((account.connections, account.connections_open), (1, 0));
    assert_eq!(account.messages_sent, bench.messages().len() as u64);
    assert_eq!(bench.take_verdicts(), [(SocketId(1), Verdict::Keep)]);
}

#[test]
fn the_synthetic_session_comes_out_whole_in_both_directions() {
    for role in [Some(Role::Initiator), None] {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        let mut socket = Socket::open(&mut bench, 1, role);
        socket.play(&mut bench, &synthetic());
        socket.close(&mut bench);
        assert_eq!(p2p_messages(&bench), synthetic_messages(), "{role:?}");
        let account = bench.account_now(seen(bytes_of(&synthetic())));
        assert_eq!((account.bytes_in_chunks, account.gaps), (bytes_of(&synthetic()), 0));
    }
}

#[test]
fn plain_bytes_alone_can_be_stored() {
    let mut bench = bench_with(
        identity("synthetic-two-way/identity.json"),
        TargetLimits::default(),
        Waiting::default(),
        Store::Plain,
    );
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let chunks: Vec<_> =
        bench.kinds().filter_map(|kind| if let Kind::Chunk(chunk) = kind { Some(chunk) } else { None }).collect();
    assert_eq!(chunks.len(), 2 + 16 + 22);
    for chunk in chunks {
        assert_eq!(chunk.wire.is_empty(), chunk.state() == ChunkState::Opened);
        assert!(!chunk.plain.is_empty());
    }
}

#[test]
fn no_secret_leaves_the_interpreter() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let json: serde_json::Value = serde_json::from_str(&read("synthetic-two-way/identity.json")).unwrap();
    let expected: serde_json::Value =
        serde_json::from_str(&read("synthetic-two-way/outgoing-all-messages.expected.json")).unwrap();
    let mut everything: Vec<u8> = bench.sink.records.iter().flat_map(|(_, record)| record.encode_to_vec()).collect();
    everything.extend(bench.journal().encode_to_vec());
    assert!(everything.len() > 300_000);
    for secret in [&json["secret_key"], &expected["precomputed_key"]] {
        let text = secret.as_str().unwrap();
        let raw = hex::decode(text).unwrap();
        assert!(!everything.windows(raw.len()).any(|window| window == raw));
        assert!(!everything.windows(text.len()).any(|window| window == text.as_bytes()));
    }
}
