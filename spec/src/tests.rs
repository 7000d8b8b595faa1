//! Tests of parsing, defaults, validation and legacy keys.

use std::{path::Path, time::Duration};

use bytesize::ByteSize;
use proptest::prelude::*;

use crate::{Capture, Config, Error, Logs, Memory, Network, Redaction, Stored, Trace, TraceRule};

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
fn the_proc_file_system_of_the_host_is_a_path() {
    let config = parse("host_proc = \"/host/proc\"\n[[nodes]]\np2p_port = 9732\n");
    assert_eq!(config.host_proc, Path::new("/host/proc"));
    assert_eq!(Config::for_port(9732, None).host_proc, Path::new("/proc"));
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
    assert_eq!(node.observe.logs.as_ref().unwrap().retention, Logs::default().retention);
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
        "log received syslog on all interfaces",
        "logs = { retention = { rows = 1000000 }, syslog = { listen = \"127.0.0.1:10000\" } }",
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
    assert_eq!(warnings.len(), 9, "{warnings:#?}");
    let spelled = "syslog_port = 10000 is now spelled logs = { syslog = { listen = \"127.0.0.1:10000\" } }";
    assert!(warnings.iter().any(|warning| warning.contains(spelled)), "{warnings:#?}");
    let syslog = config.nodes[0].log_sources.syslog.as_ref().unwrap();
    assert_eq!(syslog.listen.to_string(), "127.0.0.1:10000");
    assert_eq!(config.nodes[0].observe.logs, Some(Logs::default()));
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

#[test]
fn logs_are_disabled_without_their_table() {
    let node = |table: &str| {
        let (config, _) = Config::parse(&format!("[[nodes]]\np2p_port = 1\n{table}")).unwrap();
        config.nodes.into_iter().next().unwrap()
    };
    assert_eq!(node("").observe.logs, None);
    assert_eq!(node("logs = {}").observe.logs, Some(Logs::default()));
    let all = node(
        "logs = { enabled = false, redact = [\"edpk[a-z]+\"], retention = { rows = 7 }, file = \"/var/log/node\", \
         syslog = { listen = \"[::]:10000\", app = \"octez\", host = \"h\" } }",
    );
    let (logs, sources) = (all.observe.logs.unwrap(), all.log_sources);
    assert_eq!((logs.enabled, logs.redact, logs.retention.rows), (false, vec!["edpk[a-z]+".to_owned()], Some(7)));
    assert_eq!(sources.file.as_deref(), Some(Path::new("/var/log/node")));
    let syslog = sources.syslog.unwrap();
    assert_eq!(
        (syslog.app.as_deref(), syslog.host.as_deref(), syslog.listen.port()),
        (Some("octez"), Some("h"), 10000)
    );
}

#[test]
fn logs_that_cannot_be_recorded_are_rejected_with_their_entry() {
    let two = |one: &str, two: &str| {
        Config::parse(&format!("[[nodes]]\np2p_port = 1\nlogs = {one}\n[[nodes]]\np2p_port = 2\nlogs = {two}"))
            .map_err(|error| error.to_string())
    };
    let syslog = |rest: &str| format!("{{ syslog = {{ listen = \"127.0.0.1:10000\"{rest} }} }}");
    for (one, other, expected) in [
        ("{}", "{ redact = [\"a\", \"(b\"] }", "nodes[1]: logs.redact: invalid pattern \"(b\": error: unclosed group"),
        ("{ redact = [\"a*\"] }", "{}", "nodes[0]: logs.redact: the pattern \"a*\" matches empty text"),
        ("{ redact = [\"\\\\w{9999}\"] }", "{}", "nodes[0]: logs.redact: invalid pattern"),
        ("{}", "{ retention = { rows = 0 } }", "nodes[1]: logs.retention.rows must not be 0"),
        ("{}", "{ file = \"node.log\" }", "nodes[1]: logs.file \"node.log\" must be an absolute path"),
        ("{ file = \"/n\" }", "{ file = \"/n\" }", "nodes[1]: logs.file \"/n\" is the file of nodes[0], too"),
        ("{}", "{ syslog = { listen = \"127.0.0.1:0\" } }", "nodes[1]: logs.syslog.listen must not be 0"),
        (&syslog(""), &syslog(""), "nodes[1]: logs.syslog listens on 127.0.0.1:10000 as nodes[0] does"),
        (&syslog(", app = \"a\""), &syslog(""), "nodes[1]: logs.syslog listens on"),
        (&syslog(", app = \"a\""), &syslog(", host = \"a\""), "nodes[1]: logs.syslog listens on"),
        (&syslog(", app = \"a\""), &syslog(", app = \"a\""), "nodes[1]: logs.syslog listens on"),
    ] {
        let error = two(one, other).unwrap_err();
        assert!(error.contains(expected), "{one} {other}: {error}");
    }
    two(&syslog(", app = \"a\""), &syslog(", app = \"b\"")).unwrap();
    two(&syslog(", host = \"a\""), &syslog(", app = \"a\", host = \"b\"")).unwrap();
    two("{ file = \"/n\", enabled = false }", "{ file = \"/n\" }").unwrap();
}

#[test]
fn tracepoints_of_any_program_are_recorded() {
    let (config, _) = Config::parse(
        r#"
        [[nodes]]
        exe = "bitcoind"
        trace = { rules = [{ tracepoints = ["net:*", "validation:block_connected"] }] }

        [[nodes]]
        p2p_port = 9732
        [nodes.trace]
        rules = [{ tracepoints = ["mempool:*"], filter = ["fee>1000", "comm~net"] }]
        max_text = 68
        max_payload = "4MiB"
        contract = "tapyrus"
        retention = { rows = 7 }

        [[nodes]]
        container = "node"
        network = {}
        trace = { enabled = false, rules = [{ tracepoints = ["*:*"] }] }
        "#,
    )
    .unwrap();
    let [bitcoin, all, network] = config.nodes.as_slice() else { panic!("{config:?}") };
    assert_eq!(bitcoin.observe.network, Network { enabled: false, store: Stored::Both });
    assert_eq!(bitcoin.observe.trace, Some(Trace::of(["net:*", "validation:block_connected"])));
    assert!(all.observe.network.enabled && network.observe.network.enabled);
    let trace = all.observe.trace.as_ref().unwrap();
    let filter = vec!["fee>1000".to_owned(), "comm~net".to_owned()];
    assert_eq!(trace.rules, [TraceRule { tracepoints: vec!["mempool:*".to_owned()], filter }]);
    assert_eq!((trace.max_text.as_u64(), trace.max_payload.as_u64(), trace.retention.rows), (68, 4 << 20, Some(7)));
    assert_eq!(trace.contract.as_deref(), Some("tapyrus"));
    let json = serde_json::to_string(trace).unwrap();
    assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), *trace, "{json}");
}

#[test]
fn tracepoints_that_cannot_be_recorded_are_rejected_with_their_entry() {
    let many = format!("rules = [{}]", "{ tracepoints = [\"a:b\"] }, ".repeat(65));
    let long = format!("rules = [{{ tracepoints = [\"{}:b\"] }}]", "a".repeat(512));
    for (trace, expected) in [
        ("", "nodes[0]: trace.rules is empty: add one"),
        ("rules = []", "nodes[0]: trace.rules is empty: add one"),
        (&many, "trace.rules: 65 items"),
        (&long, "longer than 512 bytes"),
        ("rules = [{ tracepoints = [] }]", "trace.rules[0].tracepoints is empty"),
        ("rules = [{ tracepoints = [\"net\"] }]", "trace.rules[0].tracepoints: \"net\": not PROVIDER:NAME"),
        ("rules = [{ tracepoints = [\"a:[\"] }]", "trace.rules[0].tracepoints: \"a:[\": "),
        ("rules = [{ tracepoints = [\"a:b\"], filter = [\"size\"] }]", "trace.rules[0].filter: \"size\": no operator"),
        ("rules = [{ tracepoints = [\"a:b\"], filter = [\"size>x\"] }]", "\"x\" is no number"),
        ("rules = [{ tracepoints = [\"a:b\"] }], max_text = 0", "trace.max_text must be from 1 to 16384 bytes, not 0"),
        (
            "rules = [{ tracepoints = [\"a:b\"] }], max_payload = \"5MiB\"",
            "max_payload must be from 1 to 4194304 bytes",
        ),
        ("rules = [{ tracepoints = [\"a:b\"] }], contract = \"monero\"", "contract: \"monero\" is neither"),
        ("rules = [{ tracepoints = [\"a:b\"] }], retention = { rows = 0 }", "trace.retention.rows must not be 0"),
    ] {
        let error = Config::parse(&format!("[[nodes]]\npid = 7\ntrace = {{ {trace} }}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{trace}: {error}");
    }
    let path = "[[nodes]]\npid = 7\ntrace = { rules = [{ tracepoints = [\"a:b\"] }], contract = \"/etc/node.toml\" }";
    Config::parse(path).unwrap();
    let nothing = Config::parse("[[nodes]]\npid = 7\nnetwork = { enabled = false }").unwrap_err();
    assert!(matches!(nothing, Error::NothingObserved { index: 0 }), "{nothing}");
}

#[test]
fn every_match_of_every_pattern_is_redacted() {
    let redaction = Redaction::new(&["edsk\\w+".to_owned(), "(?-u)\\xff+".to_owned(), "^secret".to_owned()]).unwrap();
    let redacted = |message: &[u8]| redaction.apply(message.to_vec());
    assert_eq!(redacted(b"key edsk3abc, edsk4 $0"), b"key [redacted], [redacted] $0");
    assert_eq!(redacted(b"secret \xff\xff\xfe"), b"[redacted] [redacted]\xfe");
    assert_eq!(redacted(b"a secret"), b"a secret");
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
