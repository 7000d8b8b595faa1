//! The synthetic two-way session: every kind of message in both directions, a message of three chunks, partial writes, odd read sizes;
//! the local node as initiator and as responder; sessions that end with a Nack.

use chainscope_e2e::harness::api::{Api, byte_list, id};
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::{Machine, Recorder};
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{expect, free_port, vectors, wait};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const ALL: &str = "outgoing-all-messages";

#[test]
fn initiator_at_the_socket_layer() {
    every_message_both_ways("sock", "initiator");
}

#[test]
fn initiator_at_system_calls() {
    every_message_both_ways("syscall", "initiator");
}

#[test]
fn responder_at_the_socket_layer() {
    every_message_both_ways("sock", "responder");
}

#[test]
fn responder_at_system_calls() {
    every_message_both_ways("syscall", "responder");
}

#[test]
fn refusals_of_both_versions() {
    for (session, role, nack) in [
        ("outgoing-nack-v1", "initiator", Refusal::V1),
        ("outgoing-nack-v1", "responder", Refusal::V1),
        ("incoming-nack-v0", "responder", Refusal::V0),
        ("incoming-nack-v0", "initiator", Refusal::V0),
    ] {
        let (_machine, chainscope) = play("auto", session, role);
        let api = &chainscope.api;
        wait::until("six messages", || (api.count("node") >= 6).then_some(()));
        let acks = api.rows("node", "types=ack_message");
        let mut answers: Vec<Value> = acks.iter().map(|row| api.message("node", id(row))["message"].clone()).collect();
        answers.sort_by_key(Value::is_object);
        match nack {
            Refusal::V0 => assert!(answers.contains(&json!("NackV0")), "{session} {role}: {answers:?}"),
            Refusal::V1 => {
                let motive = &answers[1]["Nack"]["motive"];
                assert!(motive.is_string(), "{session} {role}: {answers:?}");
                assert!(answers[1]["Nack"]["potential_peers_to_connect"].is_array(), "{answers:?}");
            }
        }
        assert_eq!(api.count("node"), 6, "{session} {role}");
        let account = Account::wait_settled(api, "node");
        account.assert_conserved();
        assert_eq!((account.gaps, account.bytes_dropped, account.chunks_undecryptable), (0, 0, 0), "{account:?}");
    }
}

enum Refusal {
    V0,
    V1,
}

/// Replays a session to its end, recorded as node "node".
fn play(capture: &str, session: &str, role: &str) -> (Machine, Recorder) {
    let mut machine = Machine::new(capture);
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let side = |side: &str| {
        let options = format!("--session {session} --local-role {role} --side {side}");
        DemoNode::new("replay").option("--dir", &vectors::tezos("synthetic-two-way")).with(&options)
    };
    let local = side("local").listen(port).identity(&machine.identity("node"));
    let both: [Program; 2] = if role == "initiator" {
        let remote = side("remote").listen(peer).start();
        [local.peer(peer).start_observed(&chainscope.api, "node"), remote]
    } else {
        let local = local.start_observed(&chainscope.api, "node");
        [local, side("remote").listen(peer).peer(port).start()]
    };
    for program in both {
        program.join(WAIT_TIMEOUT).expect_success("a side");
    }
    (machine, chainscope)
}

fn every_message_both_ways(capture: &str, role: &str) {
    let (_machine, chainscope) = play(capture, ALL, role);
    let api = &chainscope.api;
    let expected = vectors::json(&format!("synthetic-two-way/{ALL}.expected.json"));
    let expected = expected["messages"].as_array().expect("messages");
    // Connection, metadata and ack of both sides come first.
    let all = expected.len() as u64 + 6;
    wait::until("all messages", || (api.count("node") >= all).then_some(()));
    assert_eq!(api.count("node"), all);
    for (from, incoming) in [("L", false), ("R", true)] {
        let rows = api.rows("node", &format!("incoming={incoming}"));
        let categories: Vec<_> = rows.iter().take(3).map(|r| r["category"].clone()).collect();
        assert_eq!(categories, ["connection", "meta", "ack"]);
        let expected: Vec<_> = expected.iter().filter(|m| m["from_"] == from).collect();
        assert_eq!(rows.len(), 3 + expected.len());
        for (row, expected) in rows.iter().skip(3).zip(expected) {
            compare(api, row, expected);
            assert_eq!(row["source_type"], if role == "initiator" { "local" } else { "remote" });
        }
    }
    let account = Account::wait_settled(api, "node");
    account.assert_conserved();
    assert_eq!(account.bytes_seen, 213_454 + 1_356, "{account:?}");
    assert_eq!(account.bytes_in_chunks, account.bytes_seen, "{account:?}");
    assert_eq!((account.gaps, account.chunks_undecryptable), (0, 0), "{account:?}");
    let connections = api.connections("node");
    assert_eq!(connections.len(), 1, "{connections:?}");
    assert_eq!(connections[0].value["peer_id"], vectors::json("synthetic-two-way/remote_identity.json")["peer_id"]);
    drop(chainscope.program.terminate().expect_success("chainscope"));
}

fn compare(api: &Api, row: &Value, expected: &Value) {
    let kind = expected["type"].as_str().expect("type");
    assert_eq!(row["kind"], expect::kind(kind), "{row}");
    let details = api.message("node", id(row));
    let plain = byte_list(&details["decrypted_bytes"]);
    assert_eq!(hex::encode(Sha256::digest(&plain)), expected["plaintext_sha256"].as_str().expect("hash"), "{row}");
    assert_eq!(plain.len() as u64, expected["plaintext_len"].as_u64().expect("length"), "{row}");
    if !expected["plaintext_hex"].is_null() {
        assert_eq!(hex::encode(&plain), expected["plaintext_hex"].as_str().expect("hex"), "{row}");
    }
    assert_eq!(details["error"], Value::Null, "{row}");
    let preview = row["message_preview"].as_str().unwrap_or_else(|| panic!("no preview: {row}"));
    // Compared as text: the preview is a prefix of this JSON.
    let (_, body) = api.request(&format!("/v2/p2p/{}?node_name=node", id(row))).expect("response");
    assert!(preview.len() <= 100 && body.contains(&format!("\"message\":{preview}")), "{row}");
    let chunks = expected["chunks"].as_u64().expect("chunks");
    let wire = byte_list(&details["original_bytes"]).len() as u64;
    assert_eq!(wire, plain.len() as u64 + 18 * chunks, "{row}");
    if !expected["decoded"].is_null() {
        let wanted = expect::message(kind, &expected["decoded"]);
        assert_eq!(expect::difference(&wanted, &details["message"]), None, "{row}");
    }
}
