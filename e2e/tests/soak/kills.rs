//! Repeated kill -9 of Chainscope under load: served rows persist, ids are dense, nothing is duplicated, no index entry dangles.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::{free_port, soak, wait};
use serde_json::Value;

/// Number of kills.
fn kills() -> u64 {
    if soak() { 50 } else { 5 }
}

#[test]
fn served_rows_persist_after_every_kill() {
    let _running = crate::exclusive();
    let mut machine = Machine::new("auto");
    let (port, peer_port) = (free_port(), free_port());
    machine.observe("node", port);
    let peer = DemoNode::new("load").listen(peer_port).with("--rate 200 --seed 3").start();
    let mut chainscope = machine.start();
    let options = "--rate 200 --connections 4";
    let mut node = DemoNode::new("load")
        .listen(port)
        .peer(peer_port)
        .identity(&machine.identity("node"))
        .with(options)
        .start_observed(&chainscope.api, "node");
    // Every row of any response.
    let mut served: BTreeMap<u64, Value> = BTreeMap::new();
    for kill in 0..kills() {
        let start = chainscope.api.count("node");
        // New sessions at times, so that not all sessions depend on the journal.
        if kill % 3 == 2 {
            node.write_line("close");
            node.write_line("connect");
        }
        wait::until(&format!("messages before kill {kill}"), || {
            let page = chainscope.api.page("node", "limit=200");
            served.extend(page.into_iter().map(|row| (id(&row), row)));
            // More than a second of messages: a session continues only if the journal, written every second, has it.
            (chainscope.api.count("node") >= start + 3000).then_some(())
        });
        chainscope.program.kill();
        chainscope = machine.start();
        check(&chainscope.api, &served);
    }
    eprintln!("{} rows served before {} kills, all present", served.len(), kills());
    node.terminate();
    peer.terminate();
}

fn check(api: &Api, served: &BTreeMap<u64, Value>) {
    let rows = api.rows("node", "");
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    for (id, row) in served {
        let now = rows
            .get(usize::try_from(*id).expect("small"))
            .unwrap_or_else(|| panic!("row {id} was served and is missing"));
        assert_eq!(now, row, "row {id} has changed");
    }
    // Every index matches a scan.
    let kinds: BTreeSet<&str> = rows.iter().filter_map(|r| r["kind"].as_str()).collect();
    for kind in kinds {
        let by_index: Vec<u64> = api.rows("node", &format!("types={kind}")).iter().map(id).collect();
        let by_scan: Vec<u64> = rows.iter().filter(|r| r["kind"] == kind).map(id).collect();
        // Recording continues: the index may have newer rows than the scan.
        assert_eq!(by_index.get(..by_scan.len()), Some(by_scan.as_slice()), "{kind}");
    }
    for incoming in [true, false] {
        let by_index: Vec<u64> = api.rows("node", &format!("incoming={incoming}")).iter().map(id).collect();
        let by_scan: Vec<u64> = rows.iter().filter(|r| r["incoming"] == incoming).map(id).collect();
        assert_eq!(by_index.get(..by_scan.len()), Some(by_scan.as_slice()), "incoming={incoming}");
    }
    // No message is recorded twice: a chunk belongs to one message. Encrypted bytes differ even if previews are equal.
    let mut seen = BTreeSet::new();
    for row in rows.iter().rev().take(300) {
        let message = api.message("node", id(row));
        assert!(message["original_bytes"].as_array().is_some_and(|b| !b.is_empty()), "row {} has no chunks", id(row));
        assert!(seen.insert(message["original_bytes"].to_string()), "row {} is a duplicate", id(row));
    }
}
