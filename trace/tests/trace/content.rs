//! The content of messages: those of the main network and of the documents of the protocol, and hostile ones.

use chainscope_trace::{
    Incomplete, Selection, Value,
    content::{ContentError, Protocol, decode},
    view::{Monitor, P2p},
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::support::{attachment, event, lines, output, text};

/// The first block of the main network, without its header and the number of its transactions.
const COINBASE: &str = "01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d04ffff001d0104\
455468652054696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f6e206272696e6b206f66207365636f6e64206261696c6f7574206\
66f722062616e6b73ffffffff0100f2052a01000000434104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6bc3f4c\
ef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac00000000";
const HEADER: &str = "01000000000000000000000000000000000000000000000000000000000000000000000\
03ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c";
const BLOCK_HASH: &str = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";
const COINBASE_ID: &str = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";

/// The signed transaction of the first example of BIP 143, which has an input with a witness.
const SEGWIT: &str = "01000000000102fff7f7881a8099afa6940d42d1e7f6362bec38171ea3edf433541db4e4ad969f00000000494830450221008b9d\
1dc26ba6a9cb62127b02742fa9d754cd3bebf337f7a55d114c8e5cdd30be022040529b194ba3f9281a99f2b1c0a19c0489bc22ede944ccf4ecbab4cc618e\
f3ed01eeffffffef51e1b804cc89d182d279655c3aa89e815b1b309fe287d9b2b55d57b90ec68a0100000000ffffffff02202cb206000000001976a91482\
80b37df378db99f66f85c95a783a76ac7a6d5988ac9093510d000000001976a9143bde42dbee7e4dbe6a21b2d50ce2f0167faa815988ac000247304402203\
609e17b84f6a7d30c80bfa610b5b4542f32a8a0d5447a12fb1366d7f01cc44a0220573a954c4518331561406f90300e8f3358f51928d43c212a8caed02de\
67eebee0121025476c2e83188368da1ff3e292e7acafcdb3566bb0ad253f62fc70f07aeee635711000000";

/// The example of the protocol's documentation, of a release before the last field.
const OLD_VERSION: &str = "62ea0000010000000000000011b2d05000000000010000000000000000000000000000000000ffff00000000000001000000\
0000000000000000000000000000ffff0000000000003b2eb35d8ce617650f2f5361746f7368693a302e372e322fc03e0300";

fn bytes(hex: &str) -> Vec<u8> {
    hex::decode(hex).expect("hexadecimal digits")
}

/// A message of each kind, with a part of its content.
fn messages() -> Vec<(&'static str, Vec<u8>, Json)> {
    let hash = "11".repeat(31) + "22";
    let reversed = "22".to_owned() + &"11".repeat(31);
    let of = |parts: &[&str]| bytes(&parts.concat());
    let coinbase = json!({ "txid": COINBASE_ID, "wtxid": COINBASE_ID, "size": 204, "lock_time": 0 });
    vec![
        (
            "version",
            of(&[OLD_VERSION, "01"]),
            json!({
                "version": 60002, "services": "NETWORK", "timestamp": 1_355_854_353, "user_agent": "/Satoshi:0.7.2/",
                "start_height": 212_672, "relay": true, "nonce": 0x6517_e68c_5db3_2e3b_u64,
                "sender": { "address": "0.0.0.0:0" },
            }),
        ),
        ("verack", Vec::new(), json!({})),
        ("ping", of(&["0102000000000000"]), json!({ "nonce": 513 })),
        ("pong", of(&["ffffffffffffffff"]), json!({ "nonce": u64::MAX })),
        (
            "addr",
            of(&["01e215104d010000000000000000000000000000000000ffff0a000001208d"]),
            json!({ "count": 1, "addresses": [
                { "time": 0x4d10_15e2, "services": "NETWORK", "address": "10.0.0.1:8333" }
            ] }),
        ),
        (
            "addrv2",
            // An IPv4 address, one of Tor, and one of a network that is not known.
            of(&[
                "03", "79627683", "01", "01", "04", "01020304", "208d", "79627683", "fd4804", "04", "20", &hash, "0001",
            ])
            .into_iter()
            .chain(of(&["00000000", "00", "aa", "03", "010203", "0001"]))
            .collect(),
            json!({ "count": 3, "addresses": [
                { "network": "ipv4", "address": "1.2.3.4", "port": 8333, "services": "NETWORK" },
                { "network": "torv3", "address": hash, "services": "WITNESS|COMPACT_FILTERS|NETWORK_LIMITED" },
                { "network": 0xaa, "address": "010203", "services": "NONE" },
            ] }),
        ),
        (
            "inv",
            of(&["0301000000", &hash, "05000000", &hash, "99000000", &hash]),
            json!({ "count": 3, "items": [
                { "type": "tx", "hash": reversed }, { "type": "wtx", "hash": reversed }, { "type": 0x99, "hash": reversed },
            ] }),
        ),
        ("getdata", of(&["0102000040", &hash]), json!({ "items": [{ "type": "witness_block", "hash": reversed }] })),
        ("notfound", of(&["00"]), json!({ "count": 0, "items": [] })),
        (
            "getheaders",
            of(&["7f110100", "01", &hash, &"00".repeat(32)]),
            json!({ "version": 70015, "locator_hashes": [reversed], "stop_hash": "00".repeat(32) }),
        ),
        (
            "headers",
            of(&["01", HEADER, "00"]),
            json!({ "count": 1, "headers": [{
                "hash": BLOCK_HASH, "merkle_root": COINBASE_ID, "time": 1_231_006_505, "bits": "1d00ffff", "nonce": 2_083_236_893,
            }] }),
        ),
        (
            "block",
            of(&[HEADER, "01", COINBASE]),
            json!({ "header": { "hash": BLOCK_HASH }, "transactions": [coinbase] }),
        ),
        (
            "tx",
            of(&[SEGWIT]),
            json!({
                "version": 1, "lock_time": 17, "inputs": [{ "index": 0, "witness": [] }, { "index": 1, "script_sig": "" }],
                "outputs": [{ "value": 112_340_000 }, { "value": 223_450_000 }],
            }),
        ),
        (
            "cmpctblock",
            of(&[
                HEADER,
                "0100000000000000",
                "02",
                "010203040506",
                "060504030201",
                "02",
                "01",
                COINBASE,
                "02",
                COINBASE,
            ]),
            json!({
                "header": { "hash": BLOCK_HASH }, "nonce": 1, "short_ids": ["060504030201", "010203040506"],
                "prefilled_transactions": [{ "index": 1, "transaction": coinbase }, { "index": 4 }],
            }),
        ),
        (
            "getblocktxn",
            of(&[&hash, "03", "00", "00", "fd0001"]),
            json!({ "block": reversed, "count": 3, "indexes": "0 1 258" }),
        ),
        ("blocktxn", of(&[&hash, "01", COINBASE]), json!({ "block": reversed, "transactions": [coinbase] })),
        ("sendcmpct", of(&["010200000000000000"]), json!({ "high_bandwidth": true, "version": 2 })),
        ("feefilter", of(&["e803000000000000"]), json!({ "fee_rate_sat_per_kvb": 1000 })),
        ("sendheaders", Vec::new(), json!({})),
        ("filteradd", of(&["03010203"]), json!({ "data": "010203" })),
        (
            "getcfilters",
            of(&["00", "05000000", &hash]),
            json!({ "filter_type": 0, "start_height": 5, "stop_hash": reversed }),
        ),
        ("cfcheckpt", of(&["00", &hash, "01", &hash]), json!({ "stop_hash": reversed, "filter_headers": [reversed] })),
        (
            "reject",
            of(&["027478", "12", "03647570", &hash]),
            json!({ "message": "tx", "code": "Duplicate", "reason": "dup", "hash": reversed }),
        ),
        (
            "merkleblock",
            of(&[HEADER, "01000000", "01", &hash, "01", "01"]),
            json!({ "transactions": 1, "hashes": [reversed], "flags": "10000000" }),
        ),
    ]
}

/// Whether all of `expected` is in `found`, which may have more fields.
fn contains(found: &Json, expected: &Json) -> bool {
    match (found, expected) {
        (Json::Object(found), Json::Object(expected)) => {
            expected.iter().all(|(name, expected)| found.get(name).is_some_and(|found| contains(found, expected)))
        }
        (Json::Array(found), Json::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| contains(found, expected))
        }
        _ => found == expected,
    }
}

#[test]
fn messages_of_every_kind_are_decoded() {
    for (message_type, payload, expected) in messages() {
        let found =
            decode(Protocol::Bitcoin, message_type, &payload).unwrap_or_else(|error| panic!("{message_type}: {error}"));
        assert!(contains(&found, &expected), "{message_type}: {found:#}\ninstead of\n{expected:#}");
    }
}

/// A byte less, a byte more, and any other byte: an error, or another content.
#[test]
fn what_differs_is_never_shown_as_the_same() {
    for (message_type, payload, _) in messages() {
        let content = decode(Protocol::Bitcoin, message_type, &payload).unwrap();
        let longer = [&payload[..], &[0]].concat();
        let longer = decode(Protocol::Bitcoin, message_type, &longer);
        assert!(matches!(longer, Err(ContentError::Invalid(_))), "{message_type} and a byte: {longer:?}");
        for length in 0..payload.len() {
            let shorter = decode(Protocol::Bitcoin, message_type, &payload[..length]);
            assert!(shorter.is_err(), "{message_type} of {length} bytes: {shorter:?}");
        }
        for at in 0..payload.len() {
            let mut changed = payload.clone();
            changed[at] ^= 0x21;
            assert_ne!(
                decode(Protocol::Bitcoin, message_type, &changed).as_ref(),
                Ok(&content),
                "{message_type} byte {at}"
            );
        }
    }
}

#[test]
fn what_is_not_decoded_says_why() {
    let error =
        |protocol, message_type, payload: &[u8]| decode(protocol, message_type, payload).unwrap_err().to_string();
    assert_eq!(error(Protocol::Bitcoin, "sendtxrcncl", b"\x01"), "messages of this type cannot be decoded");
    assert_eq!(error(Protocol::Bitcoin, "a type too long", b""), "its type is not known");
    assert_eq!(error(Protocol::Bitcoin, "inv\0", b"\0"), "its type is not known");
    // The field of a Boolean with another value, and without that field.
    let version = |relay: &str| error(Protocol::Bitcoin, "version", &bytes(&(OLD_VERSION.to_owned() + relay)));
    assert_eq!(version("02"), "the message has another encoding");
    assert!(version("").contains("unexpected end") || version("").contains("IO error"), "{}", version(""));
    let other = "the node's messages of this type are not known to be those of Bitcoin";
    assert_eq!(error(Protocol::Tapyrus, "tx", &bytes(SEGWIT)), other);
    assert_eq!(error(Protocol::Unknown, "ping", &[0; 8]), other);
    decode(Protocol::Tapyrus, "ping", &[0; 8]).unwrap();
}

#[test]
fn views_show_the_content_or_the_bytes_and_the_reason() {
    let message = |contract: &str, ms, kind: &str, payload: Value, size| {
        let arguments =
            [Value::Signed(1), text("10.0.0.1:8333"), text("inbound"), text(kind), Value::Unsigned(size), payload];
        event(&attachment(contract, "net:inbound_message"), ms, arguments.into())
    };
    let cut = Value::Bytes { bytes: vec![1, 2].into(), claimed: 8, incomplete: Some(Incomplete::Dropped) };
    let events = [
        message("bitcoin-core-v31", 1, "feefilter", Value::bytes(vec![232, 3, 0, 0, 0, 0, 0, 0]), 8),
        message("bitcoin-core-v31", 2, "inv", Value::bytes(vec![2, 1]), 2),
        message("bitcoin-core-v31", 3, "ping", cut, 8),
        message("tapyrus", 4, "tx", Value::bytes(vec![1]), 1),
    ];
    let shown = lines(&mut P2p::new(true), &events);
    assert_eq!(shown[2], "    {\"fee_rate_sat_per_kvb\":1000}");
    assert!(shown[4].starts_with("    not decoded (") && shown[4].ends_with("): 0201"), "{shown:#?}");
    assert_eq!(shown[6], "    not decoded (only 2 of 8 bytes were captured): 0102<dropped: 2 of 8 bytes>");
    assert!(shown[8].ends_with("are not known to be those of Bitcoin): 01"), "{shown:#?}");

    for view in [&mut P2p::new(true) as &mut dyn chainscope_trace::view::View, &mut Monitor::new(false, true)] {
        let json = output(view, Selection::default(), true, &events);
        let objects: Vec<Json> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects[0]["content"]["fee_rate_sat_per_kvb"], 1000);
        assert_eq!((&objects[1]["content"], &objects[1]["arguments"]["payload"]), (&Json::Null, &json!("0201")));
        assert!(objects[1]["content_error"].is_string());
        assert_eq!(objects[2]["content_error"], "only 2 of 8 bytes were captured");
    }
}

/// Payloads of the last 64 MiB are kept; of older messages the rest is.
#[test]
fn kept_payloads_are_bounded() {
    let inbound = attachment("bitcoin-core-v31", "net:inbound_message");
    let payload = bytes::Bytes::from(vec![0; 4_000_000]);
    let events: Vec<_> = (0..20)
        .map(|number| {
            let size = Value::Unsigned(4_000_000);
            let arguments = [
                Value::Signed(number % 3),
                text("a"),
                text("inbound"),
                text("tx"),
                size,
                Value::bytes(payload.clone()),
            ];
            event(&inbound, number.cast_unsigned(), arguments.into())
        })
        .collect();
    let mut monitor = Monitor::new(true, false);
    lines(&mut monitor, &events);
    let mut entries: Vec<_> = monitor.peers().values().flat_map(|peer| &peer.recent).collect();
    entries.sort_by_key(|entry| entry.sequence);
    let kept: Vec<bool> = entries.iter().map(|entry| entry.payload.is_some()).collect();
    assert_eq!(kept, [vec![false; 4], vec![true; 16]].concat());
    assert!(matches!(entries[0].content(), Err(ContentError::Incomplete { captured: 0, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(index in 0_usize..24, payload in prop::collection::vec(any::<u8>(), 0..400)) {
        let (message_type, _, _) = &messages()[index];
        let _ = decode(Protocol::Bitcoin, message_type, &payload);
    }

    #[test]
    fn any_change(index in 0_usize..24, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (message_type, mut payload, _) = messages().swap_remove(index);
        let original = payload.clone();
        for (at, byte) in changes {
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        let (found, content) = (decode(Protocol::Bitcoin, message_type, &payload), decode(Protocol::Bitcoin, message_type, &original));
        prop_assert_eq!(found == content, payload == original);
    }
}
