//! Decoding of messages, compared with vectors of other decoders.
use chainscope_tezos::{
    Category, KINDS, canonical_kind, decode,
    generate::Generator,
    locate,
    message::{MAX_MESSAGE_BYTES, PEER_KINDS, PREVIEW_BYTES, preview, preview_of_prefix},
    seal::frame,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{as_expected, decode_json, json_text, read, read_json, unhex};

fn tag_of(name: &str) -> u16 {
    let name = name.to_lowercase();
    PEER_KINDS.iter().find(|(_, kind)| *kind == name).unwrap().0
}

#[test]
fn mainnet_bodies_are_decoded() {
    for name in [
        "block-header.msg",
        "current-branch.big.msg",
        "get-block-headers.msg",
        "get-current-branch.msg",
        "get-current-head.msg",
        "operations-for-blocks.huge.msg",
    ] {
        let expected = read_json(&format!("mainnet-bodies/{name}.decoded.json"));
        let message = frame(tag_of(expected[0].as_str().unwrap()), &read(&format!("mainnet-bodies/{name}")));
        assert_eq!(as_expected(&decode_json(Category::P2p, &message)), expected[1], "{name}");
    }
    let connection = decode_json(Category::Connection, &read("mainnet-bodies/connection.msg"));
    let expected = read_json("mainnet-bodies/connection.msg.decoded.json");
    assert_eq!(connection["port"], expected["port"]);
    assert_eq!(connection["version"]["chain_name"], expected["chain_name"]);
    assert_eq!(connection["version"]["distributed_db_version"], expected["distributed_db_version"]);
    assert_eq!(connection["version"]["p2p_version"], expected["p2p_version"]);
    for field in ["public_key", "proof_of_work_stamp", "message_nonce"] {
        let bytes: Vec<u8> = serde_json::from_value(connection[field].clone()).unwrap();
        assert_eq!(bytes, unhex(&expected[field]));
    }
}

#[test]
fn tezedge_unit_vectors_are_decoded() {
    let mut seen = 0;
    for vector in read_json("tezedge-unit/unit-vectors.json").as_array().unwrap() {
        let (bytes, decoded) = (unhex(&vector["hex"]), &vector["decoded"]);
        let in_frame = |tag| as_expected(&decode_json(Category::P2p, &frame(tag, &bytes)));
        let got = match vector["form"].as_str().unwrap() {
            "len+tag+body" => as_expected(&decode_json(Category::P2p, &bytes)),
            "block_header" => in_frame(0x21),
            "current_branch body" => in_frame(0x11),
            "advertise body" => in_frame(0x03),
            "operation" => in_frame(0x31),
            "mempool" => {
                // In a message whose header is all zero.
                let header = [0; 4 + 1 + 32 + 8 + 1 + 32 + 4 + 32];
                let body = [&[0; 4][..], &(header.len() as u32).to_be_bytes(), &header, &bytes].concat();
                decode_json(Category::P2p, &frame(0x14, &body))["CurrentHead"]["current_mempool"].clone()
            }
            "ack" => {
                let ack = decode_json(Category::Ack, &bytes);
                if let Some(nack) = ack.get("Nack") {
                    let names = ["UnknownChainName", "DeprecatedP2pVersion"];
                    let motive = decoded["Nack"]["motive"].as_u64().unwrap() as usize;
                    assert_eq!(nack["motive"], names[motive - 2]);
                    assert_eq!(nack["potential_peers_to_connect"], decoded["Nack"]["peers"]);
                    decoded.clone()
                } else {
                    as_expected(&ack)
                }
            }
            other => panic!("{other}"),
        };
        assert_eq!(got, *decoded, "{}", vector["hex"]);
        seen += 1;
    }
    assert_eq!(seen, 24);
}

#[test]
fn octez_codec_headers_and_operations_are_decoded() {
    let vectors = read_json("octez-codec/decoded.json");
    let vectors = vectors.as_array().unwrap();
    assert_eq!(vectors.len(), 86);
    for vector in vectors {
        let tag = if vector["kind"] == "block_header" { 0x21 } else { 0x31 };
        let message = decode_json(Category::P2p, &frame(tag, &unhex(&vector["hex"])));
        assert_eq!(as_expected(&message), vector["decoded"]);
        if tag == 0x31 {
            let kind = message["Operation"]["operation"]["kind"].as_str().unwrap();
            assert!(!kind.starts_with("0x"), "{kind}");
        }
    }
}

#[test]
fn every_kind_has_the_documented_shape() {
    let mut generator = Generator::new(1);
    for (tag, kind) in PEER_KINDS {
        for _ in 0..50 {
            let plain = generator.message(tag);
            let decoded = decode(Category::P2p, false, &plain).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let text = serde_json::to_string(&decoded).unwrap();
            let name: String = kind.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
            assert!(text.starts_with(&format!("{{\"{name}\":{{")) || text == format!("\"{name}\""), "{text}");
            let mut short = text.as_str();
            while short.len() > PREVIEW_BYTES {
                let (at, _) = short.char_indices().next_back().unwrap();
                short = &short[..at];
            }
            assert_eq!(preview(&decoded).as_deref(), Some(short));
        }
    }
}

#[test]
fn one_byte_less_or_more_is_an_error_with_its_offset() {
    let mut generator = Generator::new(2);
    for (tag, kind) in PEER_KINDS {
        let body = generator.body(tag);
        let longer = frame(tag, &[&body[..], &[0]].concat());
        // If a message ends with data of any length, an additional byte belongs to it.
        let open = ["block_header", "operation", "checkpoint", "predecessor_header"];
        let result = decode(Category::P2p, false, &longer);
        assert_eq!(result.is_ok(), open.contains(&kind), "{kind}: {result:?}");
        if let Some(shorter) = body.len().checked_sub(1).filter(|_| !open.contains(&kind)) {
            let error = decode(Category::P2p, false, &frame(tag, &body[..shorter])).unwrap_err();
            assert_eq!(error.tag, Some(tag));
            assert!(error.offset >= 6 && error.offset <= shorter + 6, "{error}");
            assert!(error.to_string().starts_with(&format!("tag 0x{tag:04x}: at byte {}: ", error.offset)));
        }
    }
}

#[test]
fn error_messages_name_tag_offset_and_cause() {
    let error = |category, bytes: &[u8]| decode(category, false, bytes).unwrap_err().to_string();
    assert_eq!(error(Category::P2p, &frame(0x99, b"x")), "tag 0x0099: at byte 4: unknown tag");
    assert_eq!(error(Category::P2p, &frame(0x10, b"xyz")), "tag 0x0010: at byte 6: 4 bytes needed, 3 left");
    assert_eq!(error(Category::P2p, &frame(0x02, b"x")), "tag 0x0002: at byte 6: 1 bytes after the end of the message");
    assert_eq!(error(Category::P2p, &[0, 0, 0, 9, 0, 2]), "tag 0x0002: at byte 0: length prefix 9 for 2 bytes");
    assert_eq!(error(Category::P2p, &[0, 0]), "at byte 0: 4 bytes needed, 2 left");
    assert_eq!(error(Category::Meta, &[0, 1]), "at byte 1: invalid boolean 0x01");
    assert_eq!(error(Category::Ack, &[7]), "at byte 0: invalid ack tag 0x07");
    assert_eq!(error(Category::Ack, &[0, 7]), "at byte 1: 1 bytes after the end of the message");
    let hash_list = frame(0x20, &[0, 0, 1, 0, 1, 2]);
    assert_eq!(error(Category::P2p, &hash_list), "tag 0x0020: at byte 6: length 256 exceeds the 2 bytes left");
    let dal = decode(Category::P2p, true, &frame(0x10, b"")).unwrap_err();
    assert_eq!(dal.to_string(), "tag 0x0010: at byte 4: DAL messages are not decoded");
}

#[test]
fn the_depth_of_paths_is_limited() {
    for step in [vec![0xf0], [vec![0x0f], vec![1; 32]].concat()] {
        let deep = |depth: usize| {
            let mut body = vec![0; 33];
            body.extend(step.repeat(depth));
            body.push(0);
            if step.len() == 1 {
                body.extend(vec![2; 32 * depth]);
            }
            frame(0x61, &body)
        };
        assert_eq!(
            decode_json(Category::P2p, &deep(64))["OperationsForBlocks"]["operation_hashes_path"]
                .as_array()
                .unwrap()
                .len(),
            64
        );
        let error = decode(Category::P2p, false, &deep(1_000_000)).unwrap_err().to_string();
        assert!(error.ends_with("path deeper than 64"), "{error}");
    }
}

#[test]
fn text_of_peers_is_escaped_in_json() {
    let points = [&b"\x00\x1b[31m\"\\\n\x7f"[..], &b"\xff\xfe ok \xc3"[..], "é\u{202e}".as_bytes()];
    let body: Vec<u8> =
        points.iter().flat_map(|point| [&(point.len() as u32).to_be_bytes()[..], point].concat()).collect();
    let text = json_text(Category::P2p, &frame(0x03, &body));
    assert!(!text.bytes().any(|byte| byte < b' '), "{text}");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value["Advertise"]["id"],
        json!(["\0\u{1b}[31m\"\\\n\u{7f}", "\u{fffd}\u{fffd} ok \u{fffd}", "é\u{202e}"])
    );
}

#[test]
fn connection_messages_before_2019_have_several_versions() {
    let mut plain = read("mainnet-bodies/connection.msg");
    let one = json_text(Category::Connection, &plain);
    assert!(!one.contains("other_versions"));
    plain.extend([0, 0, 0, 3, b'o', b'l', b'd', 0, 7, 0, 8]);
    let two = decode_json(Category::Connection, &plain);
    let other = json!([{"chain_name": "old", "distributed_db_version": 7, "p2p_version": 8}]);
    assert_eq!(two["other_versions"], other);
    plain.push(0);
    assert!(decode(Category::Connection, false, &plain).is_err());
}

#[test]
fn times_show_as_rfc_3339() {
    use chainscope_tezos::json::Timestamp;
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_617_895_099, "2021-04-08T15:18:19Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
        (253_402_300_800, "253402300800"),
        (-62_167_219_200, "0000-01-01T00:00:00Z"),
        (i64::MIN, "-9223372036854775808"),
    ] {
        assert_eq!(Timestamp(seconds).to_string(), text);
    }
}

#[test]
fn kinds_have_canonical_names() {
    assert_eq!(KINDS.len(), 30);
    assert_eq!(KINDS[3..29], PEER_KINDS.map(|(_, name)| name));
    assert_eq!(canonical_kind("operation_hashes_for_block"), Some("operation_hashes_for_blocks"));
    assert_eq!(canonical_kind("unknown"), Some("unknown"));
    assert_eq!(canonical_kind("nonsense"), None);
    assert_eq!(MAX_MESSAGE_BYTES, 104_857_600);
}

#[test]
fn one_of_several_messages_in_a_chunk_is_located() {
    let mut generator = Generator::new(3);
    let messages = [generator.message(0x31), generator.message(0x20), generator.message(0x31)];
    let plain = messages.concat();
    for message in &messages {
        let sha256 = Sha256::digest(message).into();
        assert_eq!(locate(&plain, message.len() as u64, &sha256), Some(&message[..]));
        assert_eq!(locate(message, message.len() as u64, &sha256), Some(&message[..]));
    }
    assert_eq!(locate(&plain, 50, &[0; 32]), None);
    assert_eq!(locate(&plain, 0, &[0; 32]), None);
    assert_eq!(locate(&plain, u64::MAX, &[0; 32]), None);
}

#[test]
fn the_preview_of_a_long_message_is_made_from_its_prefix() {
    let message = frame(tag_of("operations_for_blocks"), &read("mainnet-bodies/operations-for-blocks.huge.msg"));
    let whole = preview(&decode(Category::P2p, false, &message).unwrap());
    for cut in [300, 5_000, 170_000] {
        assert_eq!(preview_of_prefix(Category::P2p, false, &message[..cut]), whole);
    }
    assert_eq!(preview_of_prefix(Category::P2p, false, &message[..7]), None);
}
