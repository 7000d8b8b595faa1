//! A session of 2020 (Carthagenet) is replayed on real sockets, recorded, and read through the pages of the API.

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{expect, free_port, vectors, wait};
use serde_json::{Value, json};

/// Connection, metadata, ack and 5,472 messages of the local side; connection, metadata, ack and one message of the remote.
const LOCAL: usize = 5_475;
const REMOTE: usize = 4;

#[test]
fn at_the_socket_layer() {
    every_plaintext_comes_out("sock");
}

#[test]
fn at_system_calls() {
    every_plaintext_comes_out("syscall");
}

fn every_plaintext_comes_out(capture: &str) {
    let mut machine = Machine::new(capture);
    let (port, peer) = (free_port(), free_port());
    machine.observe("tezedge", port);
    let chainscope = machine.start();

    let side = |side: &str| {
        DemoNode::new("replay").option("--dir", &vectors::tezos("carthagenet-2020")).with(&format!("--side {side}"))
    };
    let remote = side("remote").listen(peer).start();
    let local = side("local").listen(port).peer(peer).identity(&machine.identity("tezedge"));
    local.start_observed(&chainscope.api, "tezedge").join(WAIT_TIMEOUT).expect_success("local side");
    remote.join(WAIT_TIMEOUT).expect_success("remote side");

    let api = &chainscope.api;
    wait::until("all messages", || (api.count("tezedge") >= (LOCAL + REMOTE) as u64).then_some(()));
    let rows = api.rows("tezedge", "");
    assert_eq!(rows.len(), LOCAL + REMOTE);
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    assert_eq!(api.rows("tezedge", "incoming=true").len(), REMOTE);
    check_local_side(api);

    let account = Account::wait_settled(api, "tezedge");
    account.assert_conserved();
    assert_eq!(account.bytes_seen, 713_756 + 203, "{account:?}");
    assert_eq!(account.bytes_captured, account.bytes_seen, "{account:?}");
    assert_eq!((account.bytes_dropped, account.gaps, account.chunks_undecryptable), (0, 0, 0), "{account:?}");
    assert_eq!(account.chunks, 1 + 5_474 + 4, "{account:?}");
    assert_eq!(account.bytes_in_chunks, account.bytes_captured, "{account:?}");
    drop(chainscope.program.terminate().expect_success("chainscope"));
}

fn check_local_side(api: &Api) {
    let rows = api.rows("tezedge", "incoming=false");
    assert_eq!(rows.len(), LOCAL);
    let categories: Vec<_> =
        rows.iter().take(4).map(|r| r["category"].as_str().expect("category").to_owned()).collect();
    assert_eq!(categories, ["connection", "meta", "ack", "p2p"]);
    assert!(rows.iter().all(|row| row["source_type"] == "local"));
    let expected = vectors::json_lines("carthagenet-2020/sent.expected.jsonl");
    assert_eq!(rows.len(), 1 + expected.len());
    for (row, expected) in rows.iter().skip(1).zip(&expected) {
        let details = api.message("tezedge", id(row));
        let plain = chainscope_e2e::harness::api::byte_list(&details["decrypted_bytes"]);
        assert_eq!(hex::encode(plain), expected["plaintext_hex"].as_str().expect("hex"), "{row}");
        assert_eq!(details["error"], Value::Null, "{row}");
        let kind = expected["type"].as_str().expect("type");
        if row["category"] == "p2p" {
            assert_eq!(row["kind"], expect::kind(kind), "{row}");
            let wanted = expect::message(kind, &expected["decoded"]);
            assert_eq!(expect::difference(&wanted, &details["message"]), None, "{row}");
        }
    }
    let count = |kind: &str| api.rows("tezedge", &format!("incoming=false&types={kind}")).len();
    let counts = json!({
        "get_current_branch": count("get_current_branch"), "current_branch": count("current_branch"),
        "get_block_headers": count("get_block_headers"), "get_operations_for_blocks": count("get_operations_for_blocks"),
        "advertise": count("advertise"), "get_operations": count("get_operations"),
    });
    assert_eq!(
        counts,
        json!({
            "get_current_branch": 6, "current_branch": 2, "get_block_headers": 2_071, "get_operations_for_blocks": 3_382,
            "advertise": 3, "get_operations": 8,
        })
    );
}
