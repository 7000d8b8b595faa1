//! Late decoding compared with the vectors: the output of an independent decoder for recorded and synthetic sessions.

use std::{fs, path::Path};

use chainscope_proto::v1::{Message, Record, record::Kind};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::{Server, TIME, message, record, with_chunks};

/// Maximum plain bytes of a chunk.
const CHUNK: usize = 65_519;

fn vectors(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/tezos").join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `Get_current_branch` as the JSON's tag: `GetCurrentBranch`.
fn tag(kind: &str) -> String {
    kind.split('_')
        .map(|word| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        })
        .collect()
}

#[test]
fn every_message_of_the_two_way_session_comes_out_decoded() {
    let expected: Value =
        serde_json::from_slice(&vectors("synthetic-two-way/outgoing-all-messages.expected.json")).unwrap();
    let expected = expected["messages"].as_array().unwrap();
    let huge = framed(0x61, &vectors("mainnet-bodies/operations-for-blocks.huge.msg"));
    let plain = |vector: &Value| match vector["plaintext_hex"].as_str() {
        Some(text) => hex::decode(text).unwrap(),
        None => huge.clone(),
    };
    let mut records = Vec::new();
    for vector in expected {
        let kind = vector["type"].as_str().unwrap().to_lowercase();
        let message = Message { incoming: vector["from_"] == "R", ..message(&kind) };
        records.extend(with_chunks(message, &plain(vector), vector["first_counter"].as_u64().unwrap(), CHUNK));
    }
    let server = Server::start();
    server.feed("9732", records);
    let rows = server.json("/v2/p2p?direction=forward&limit=1000");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), expected.len());
    let mut compared = 0;
    for (id, (row, vector)) in rows.iter().zip(expected).enumerate() {
        let kind = vector["type"].as_str().unwrap();
        assert_eq!((&row["kind"], &row["incoming"]), (&json!(kind.to_lowercase()), &json!(vector["from_"] == "R")));
        let detail = server.json(&format!("/v2/p2p/{id}"));
        assert_eq!(detail["error"], Value::Null, "{kind}");
        let bytes = detail["decrypted_bytes"].as_array().unwrap().iter();
        let bytes: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte.as_str().unwrap(), 16).unwrap()).collect();
        assert_eq!(hex::encode(Sha256::digest(&bytes)), vector["plaintext_sha256"], "{kind}");
        let decoded = &detail["message"];
        if kind == "Disconnect" || kind == "Bootstrap" {
            assert_eq!(decoded, kind);
            continue;
        }
        let inner = decoded.get(tag(kind)).unwrap_or_else(|| panic!("{kind}: {decoded}"));
        // Where the shapes are the same: no times, computed hashes or further levels (vectors/README.md).
        let same = [
            "Get_current_branch",
            "Get_current_head",
            "Get_block_headers",
            "Get_operations",
            "Advertise",
            "Get_operations_for_blocks",
            "Swap_request",
            "Swap_ack",
            "Get_protocols",
            "Get_checkpoint",
            "Get_protocol_branch",
            "Get_predecessor_header",
        ];
        if same.contains(&kind) {
            assert_eq!(inner, &vector["decoded"], "{kind}");
            compared += 1;
        }
        if kind == "Block_header" {
            let header = &inner["block_header"];
            assert_eq!(header["hash"], vector["decoded"]["_hash"]);
            assert_eq!(header["predecessor"], vector["decoded"]["predecessor"]);
            assert!(header["timestamp"].as_str().unwrap().ends_with('Z'), "{header}");
        }
    }
    assert!(compared >= 12, "{compared}");
}

fn framed(tag: u16, body: &[u8]) -> Vec<u8> {
    let mut plain = u32::try_from(body.len() + 2).unwrap().to_be_bytes().to_vec();
    plain.extend_from_slice(&tag.to_be_bytes());
    plain.extend_from_slice(body);
    plain
}

#[test]
fn the_handshake_of_mainnet_is_decoded() {
    let server = Server::start();
    let body = vectors("mainnet-bodies/connection.msg");
    let decoded: Value = serde_json::from_slice(&vectors("mainnet-bodies/connection.msg.decoded.json")).unwrap();
    let mut records = with_chunks(message("connection_message"), &body, 0, CHUNK);
    records.extend(with_chunks(message("ack_message"), &[0], 2, CHUNK));
    server.feed("9732", records);
    let connection = server.json("/v2/p2p/0");
    assert_eq!(connection["error"], Value::Null);
    assert_eq!(connection["message"]["version"]["chain_name"], decoded["chain_name"]);
    assert_eq!(connection["message"]["public_key"].as_array().unwrap().len(), 32);
    assert_eq!(server.json("/v2/p2p/1")["message"], "Ack");
}

#[test]
fn of_several_messages_in_one_chunk_each_is_found() {
    let (bootstrap, disconnect) = (framed(0x02, &[]), framed(0x01, &[]));
    let both = [bootstrap.clone(), disconnect.clone()].concat();
    let mut records = with_chunks(message("bootstrap"), &both, 3, CHUNK);
    // Two rows refer to one chunk.
    let row = |kind: &str, plain: &[u8]| -> Record {
        let sha256 = Sha256::digest(plain).to_vec().into();
        let length = plain.len() as u64;
        record(TIME, Kind::Message(Message { first_chunk: 3, last_chunk: 3, length, sha256, ..message(kind) }))
    };
    records.pop();
    records.extend([row("bootstrap", &bootstrap), row("disconnect", &disconnect)]);
    let server = Server::start();
    server.feed("9732", records);
    assert_eq!(server.json("/v2/p2p/0")["message"], "Bootstrap");
    assert_eq!(server.json("/v2/p2p/1")["message"], "Disconnect");
}
