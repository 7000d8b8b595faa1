//! Tests of parsing, defaults, validation and legacy keys.

use std::{path::Path, time::Duration};

use bytesize::ByteSize;
use proptest::prelude::*;

use crate::{Capture, Config, Error, Memory, Stored};

fn parse(text: &str) -> Config {
    let (config, warnings) = Config::parse(text).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    config
}

#[test]
fn a_minimal_file_has_all_defaults() {
    let config = parse("[[nodes]]\np2p_port = 9732\n");
    assert_eq!(config, Config::for_port(9732, None));
    assert_eq!(config.listen.to_string(), "127.0.0.1:17732");
    assert_eq!(config.nodes[0].name, "9732");
}

#[test]
fn origins_and_hosts_are_lists() {
    let config = parse("cors_origins = [\"https://a.example\"]\nhosts = [\"b.example\"]\n[[nodes]]\np2p_port = 9732\n");
    assert_eq!((config.cors_origins, config.hosts), (vec!["https://a.example".into()], vec!["b.example".into()]));
}

#[test]
fn every_key_of_the_example_file_is_read() {
    let config = parse(include_str!("../../docs/chainscope.example.toml"));
    assert_eq!(config.listen.to_string(), "127.0.0.1:17732");
    assert_eq!(config.capture, Capture::Auto);
    let node = &config.nodes[0];
    assert_eq!(node.target.p2p_port, Some(9732));
    assert_eq!(node.identity.as_deref(), Some(Path::new("/var/lib/tezos-node/identity.json")));
    assert_eq!(node.observe.retention.rows, Some(1_000_000));
    assert_eq!(node.observe.retention.bytes, Some(ByteSize::gib(20)));
    assert_eq!(node.observe.retention.age, Some(Duration::from_secs(14 * 86_400)));
    assert_eq!(node.observe.network.store, Stored::Both);
}

#[test]
fn an_unknown_key_is_rejected_with_its_line() {
    let error = Config::parse("listen = \"127.0.0.1:1\"\n[[nodes]]\np2p_prot = 9732\n").unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("p2p_prot"), "{error}");
    let error = Config::parse("[[nodes]]\np2p_port = 1\nretention = { row = 1 }\n").unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("row"), "{error}");
}

#[test]
fn invalid_entries_are_rejected_with_their_index() {
    for (text, expected) in [
        ("", "no [[nodes]] entry"),
        ("[[nodes]]\nname = \"a\"", "nodes[0]: one of p2p_port"),
        ("[[nodes]]\np2p_port = 0", "nodes[0]: p2p_port must not be 0"),
        ("[[nodes]]\np2p_port = 1\n[[nodes]]\nname = \"1\"\npid = 7", "nodes[1]: the name \"1\" is used"),
        ("[[nodes]]\np2p_port = 1\nname = \"a/b/c\"", "nodes[0]: invalid name \"a/b/c\""),
        ("[[nodes]]\np2p_port = 1\naliases = [\"..\"]", "nodes[0]: invalid name \"..\""),
        ("[[nodes]]\np2p_port = 1\nretention = { rows = 0 }", "nodes[0]: retention.rows must not be 0"),
        ("[[nodes]]\np2p_port = 1\nretention = { age = \"soon\" }", "\"soon\" is not an age"),
        ("[[nodes]]\np2p_port = 70000", "70000"),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?} gave {error:?}");
    }
}

#[test]
fn the_default_name_is_what_selects_the_process() {
    let config = parse("[[nodes]]\npid = 7\n[[nodes]]\nexe = \"/usr/bin/octez-node\"\n[[nodes]]\ncontainer = \"node\"");
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["pid-7", "octez-node", "node"]);
}

#[test]
fn a_tezedge_debugger_file_is_accepted_with_warnings() {
    let (config, warnings) = Config::parse(
        r#"
        http_v2 = 17732
        [[nodes]]
        name = "9732"
        http_v3 = 17742
        db = "/tmp/volume/tezedge_debugger"
        p2p = { identity = "/tmp/volume/tezedge/identity.json", port = 9732, store_limit = 1_000_000 }
        log = { port = 10000, store_limit = 1_000_000, disable_search = false }
        "#,
    )
    .unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:17732");
    assert_eq!(config.data_dir, Path::new("/tmp/volume/tezedge_debugger"));
    let node = &config.nodes[0];
    assert_eq!(node.listen.unwrap().to_string(), "127.0.0.1:17742");
    assert_eq!(node.target.p2p_port, Some(9732));
    assert_eq!(node.observe.retention.rows, Some(1_000_000));
    let text = warnings.join("\n");
    for spelling in [
        "listen = \"127.0.0.1:17732\"",
        "listen = \"127.0.0.1:17742\"",
        "http_v2 listened on all interfaces",
        "http_v3 listened on all interfaces",
        "everyone who reaches the port reads the node's decrypted messages",
        "data_dir = \"/tmp/volume/tezedge_debugger\"",
        "identity = \"/tmp/volume/tezedge/identity.json\"",
        "p2p_port = 9732",
        "retention = { rows = 1000000 }",
        "logs are not recorded",
    ] {
        assert!(text.contains(spelling), "{spelling} is missing in\n{text}");
    }
}

#[test]
fn a_file_of_before_1_6_is_accepted_with_warnings() {
    let (config, warnings) = Config::parse(
        r#"
        bpf_sniffer_path = "/tmp/bpf-sniffer.sock"
        rpc_port = 17732
        [[nodes]]
        db_path = "/tmp/db"
        identity_path = "/tmp/identity.json"
        p2p_port = 9733
        rpc_port = 17742
        syslog_port = 10000
        "#,
    )
    .unwrap();
    assert_eq!(config.nodes[0].name, "9733");
    assert_eq!(config.nodes[0].identity.as_deref(), Some(Path::new("/tmp/identity.json")));
    assert_eq!(warnings.len(), 8, "{warnings:#?}");
}

#[test]
fn a_legacy_key_with_its_replacement_is_rejected() {
    let error = Config::parse("listen = \"127.0.0.1:1\"\nhttp_v2 = 1\n[[nodes]]\np2p_port = 1\n").unwrap_err();
    assert!(matches!(error, Error::LegacyAndNew { old: "http_v2", new: "listen", .. }), "{error}");
}

#[test]
fn memory_is_disabled_without_its_table_and_enabled_by_an_empty_one() {
    let memory = |table: &str| {
        let (config, _) = Config::parse(&format!("[[nodes]]\np2p_port = 1\n{table}")).unwrap();
        config.nodes[0].observe.memory.clone()
    };
    assert_eq!(memory(""), None);
    assert_eq!(memory("memory = {}"), Some(Memory::default()));
    let all = memory("memory = { enabled = false, snapshots = { every = \"30s\", age = \"1d\", bytes = \"5MiB\" } }")
        .unwrap();
    assert_eq!((all.enabled, all.snapshots.every.as_secs(), all.snapshots.bytes.as_u64()), (false, 30, 5 << 20));
    assert_eq!(memory("memory = { snapshots = { age = \"2w\" } }").unwrap().snapshots.age.as_secs(), 14 * 86_400);
    for (table, key) in [
        ("memory = { snapshots = { every = \"0s\" } }", "every"),
        ("memory = { snapshots = { age = \"0s\" } }", "age"),
        ("memory = { snapshots = { bytes = 0 } }", "bytes"),
    ] {
        let error = Config::parse(&format!("[[nodes]]\np2p_port = 1\n{table}")).unwrap_err();
        assert!(matches!(error, Error::ZeroSnapshots { index: 0, key: found } if found == key), "{error}");
    }
    let error = Config::parse("[[nodes]]\np2p_port = 1\nmemory = { often = 1 }").unwrap_err().to_string();
    assert!(error.contains("often"), "{error}");
    let one = Config::for_memory_of(4711);
    assert_eq!((one.nodes[0].name.as_str(), one.nodes[0].target.pid), ("pid-4711", Some(4711)));
    assert_eq!(one.nodes[0].observe.memory, Some(Memory::default()));
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_rejected(text in "\\PC*") {
        let _ = Config::parse(&text);
    }

    #[test]
    fn any_value_of_a_known_key_is_parsed_or_rejected(
        key in prop::sample::select(vec!["listen", "data_dir", "ring_buffer", "capture", "http_v2"]),
        node_key in prop::sample::select(vec!["name", "p2p_port", "pid", "retention", "p2p", "aliases", "netns"]),
        value in "[-0-9a-z\"{}=\\[\\] .]{0,20}",
    ) {
        let _ = Config::parse(&format!("{key} = {value}\n[[nodes]]\np2p_port = 1\n"));
        let _ = Config::parse(&format!("[[nodes]]\nexe = \"a\"\n{node_key} = {value}\n"));
    }
}
