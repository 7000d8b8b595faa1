//! `/v1`: the contract's shapes, differences, snapshots, and permissions.

use std::{collections::BTreeMap, io::Read as _, time::Duration};

use chainscope_aggregator::{NodeConfig, SnapshotPolicy};
use chainscope_proto::v1::{
    FunctionCategory, MemoryKind, MemoryMapping, MemoryState, ReasonCount, record_reply::Reply,
};
use chainscope_store::{MemorySnapshot, SnapshotLimits};
use chainscope_testing::{
    memory::{FrameName, Recorder, in_parts},
    tree::check,
    wait,
};
use flate2::read::GzDecoder;
use proptest::{
    prelude::*,
    test_runner::{Config as ProptestConfig, TestRunner},
};
use serde_json::{Value, json};

use crate::common::Server;

const HOUR_NS: i64 = 3_600_000_000_000;
/// 2026-01-01
const NOON: i64 = 1_767_225_600_000_000_000;

fn recorder(pid: u32) -> Recorder {
    Recorder::new("9732", pid, u64::from(pid))
}

/// The example of the contract: a reading thread, a stack below the threshold, and unnamed frames.
pub(crate) fn example() -> Recorder {
    let mut recorder = recorder(48213);
    let read = FrameName::library("libpthread.so.0", Some("read"), 0x1297a);
    let caller = FrameName::own("<std::process::ChildStderr as std::io::Read>::read::h2b39f2a53104c282", 0x022f_e583);
    recorder.hold(&[caller, read.clone()], [1773, 343_210, 0]);
    recorder.hold(&[FrameName::own("small", 0x77), read], [0, 6, 0]);
    recorder
        .hold(&[FrameName::own("never seen", 0x88), FrameName::library("", None, 0x7fff_0000)], [63_785, 204_122, 9]);
    recorder.unattributed = [-83, 0, 0];
    recorder
}

const EXAMPLE: &str = concat!(
    r#"{"value":2451584,"cacheValue":2189352,"frames":["#,
    r#"{"name":{"offset":"0001297a","executable":"libpthread.so.0","functionName":"read","functionCategory":"systemLib"},"#,
    r#""value":1379956,"cacheValue":1372864,"frames":["#,
    r#"{"name":{"offset":"022fe583","executable":"light-node","functionName":"#,
    r#""<std::process::ChildStderr as std::io::Read>::read::h2b39f2a53104c282","functionCategory":"nodeRust"},"#,
    r#""value":1379932,"cacheValue":1372840,"frames":[]},"#,
    r#"{"name":"underThreshold","value":24,"cacheValue":24}]},"#,
    r#"{"name":"unknown","value":1071628,"cacheValue":816488}]}"#,
);

#[test]
fn the_contracts_example_to_the_letter() {
    let server = Server::start();
    assert_eq!(server.get("/v1/tree").body, r#"{"value":0,"cacheValue":0,"frames":[]}"#, "before anything is known");
    assert_eq!(server.get("/v1/pid").body, "0");
    let mut agent = server.agent(&[]);
    agent.memory([example().keyframe()]);

    for path in
        ["/v1/tree", "/v1/tree/", "/v1/tree/?", "/v1/tree?threshold=512&reverse=false&unknown=1", "/nodes/9732/v1/tree"]
    {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (200, EXAMPLE), "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(server.get("/v1/pid/?").body, "48213");
    let short = r#"{"total":2451584,"cache":2189352,"anon":262232,"systemReportAnon":261900}"#;
    assert_eq!(server.get("/v1/tree?short=true&threshold=7").body, short);

    // In the reversed tree only the unnamed frame itself is omitted.
    let reversed = server.json("/v1/tree?reverse=true&threshold=0");
    let names: Vec<_> =
        reversed["frames"].as_array().unwrap().iter().map(|child| child["name"]["functionName"].clone()).collect();
    assert_eq!(
        names,
        [
            json!("<std::process::ChildStderr as std::io::Read>::read::h2b39f2a53104c282"),
            json!("never seen"),
            json!("small")
        ]
    );
    // A node whose only child is unnamed has no frames.
    assert_eq!(reversed["frames"][1]["frames"], json!([]));
    assert_eq!(server.json("/v1/tree?kind=kernel")["value"], 36);
    assert_eq!(server.json("/v1/tree?kind=all")["value"], 2_451_584 + 36);
    assert_eq!(server.json("/v1/tree?kind=anon")["cacheValue"], 0);
    let cache = server.json("/v1/tree?kind=cache");
    assert_eq!((&cache["value"], &cache["cacheValue"]), (&json!(2_189_352), &json!(2_189_352)));
}

#[test]
fn losses_of_a_host_are_counted_once_for_its_processes() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let state = |pid, count| {
        let mut state = recorder(pid).keyframe();
        state.totals.as_mut().unwrap().lost = vec![ReasonCount { reason: "call tree full".into(), count }];
        state
    };
    // Each is acknowledged.
    for pid in [1, 2] {
        agent.memory([state(pid, 40)]);
    }
    let lost = || {
        let page = server.get("/metrics").body;
        page.lines().find(|line| line.starts_with("chainscope_memory_lost{")).map(str::to_owned)
    };
    assert_eq!(lost().unwrap(), r#"chainscope_memory_lost{node="9732"} 40"#);
    // A later report of another process.
    agent.memory([state(3, 50)]);
    assert_eq!(lost().unwrap(), r#"chainscope_memory_lost{node="9732"} 50"#);
}

#[test]
fn malformed_parameters_are_named() {
    let server = Server::start();
    for (path, parameter) in [
        ("/v1/tree?threshold=-1", "threshold"),
        ("/v1/tree?threshold=", "threshold"),
        ("/v1/tree?reverse=1", "reverse"),
        ("/v1/tree?short=yes", "short"),
        ("/v1/tree?kind=heap", "kind"),
        ("/v1/tree?since=x", "since"),
        ("/v1/tree?pid=1&pid=2", "pid"),
        ("/v1/flamegraph?at=-5", "at"),
        ("/v1/snapshots?limit=many", "limit"),
    ] {
        assert_eq!(server.problem(path, 400)["parameter"], parameter, "{path}");
    }
    for path in [
        "/v1/tree?node_name=other",
        "/v1/pid?node_name=other",
        "/v1/targets?node_name=other",
        "/nodes/x/v1/tree",
        "/v1/tree?pid=7",
        "/v1/nothing",
    ] {
        server.problem(path, 404);
    }
    let missing = server.problem("/v1/tree?since=1700000000000", 404);
    assert_eq!(missing["parameter"], "since");
}

#[test]
fn memory_before_the_attach_is_shown_and_adds_up() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let mut process = recorder(1);
    process.hold(&[FrameName::own("main", 1), FrameName::own("grow", 2)], [1000, 0, 0]);
    process.hold(&[FrameName::own("main", 1), FrameName::own("tiny", 3)], [1, 0, 0]);
    process.before_attach = [500, 250, 0];
    process.unattributed = [3, 0, 0];
    let mut state = process.keyframe();
    let mapping =
        |mapping: &str, kind: MemoryKind, pages| MemoryMapping { kind: kind.into(), mapping: mapping.into(), pages };
    state.totals.as_mut().unwrap().at_attach = vec![
        mapping("[stack]", MemoryKind::Anon, 20),
        mapping("[heap]", MemoryKind::Anon, 600),
        mapping("/usr/bin/light-node", MemoryKind::Cache, 300),
        mapping("kernel", MemoryKind::Kernel, 1),
    ];
    state.totals.as_mut().unwrap().before_now =
        vec![mapping("[stack]", MemoryKind::Anon, 0), mapping("[heap]", MemoryKind::Anon, 500)];
    agent.memory([state]);
    let tree = server.json("/v1/tree");
    assert_eq!((&tree["value"], &tree["cacheValue"]), (&json!(4 * 1754), &json!(1000)));
    let names: Vec<_> = tree["frames"].as_array().unwrap().iter().map(|child| child["name"].clone()).collect();
    assert_eq!(names[1..], [json!("[resident before attach]"), json!("[unattributed]"), json!("underThreshold")]);
    assert_eq!(
        tree["frames"][1],
        json!({ "name": "[resident before attach]", "value": 3000, "cacheValue": 1000, "atAttach": [
            { "mapping": "[heap]", "kind": "anon", "value": 2400 },
            { "mapping": "/usr/bin/light-node", "kind": "cache", "value": 1200 },
            { "mapping": "[stack]", "kind": "anon", "value": 80 },
        ], "now": [
            { "mapping": "[heap]", "kind": "anon", "value": 2000 },
            { "mapping": "[stack]", "kind": "anon", "value": 0 },
        ] })
    );
    check(&tree, 256, false);
    // No threshold hides it.
    let tree = server.json("/v1/tree?threshold=99999999");
    let names: Vec<_> = tree["frames"].as_array().unwrap().iter().map(|child| child["name"].clone()).collect();
    assert_eq!(names, [json!("[resident before attach]"), json!("[unattributed]"), json!("underThreshold")]);
    check(&tree, 99_999_999, false);
    assert_eq!(
        server.json("/v1/tree?short=true"),
        json!({ "total": 7016, "cache": 1000, "anon": 6016, "systemReportAnon": 6016 })
    );
}

#[test]
fn every_answer_of_a_random_run_keeps_the_invariants() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let mut process = recorder(1);
    agent.memory([process.keyframe()]);
    let frame = |number: u8| match number % 8 {
        0 => FrameName::library("", None, 5),
        1 => FrameName::library("libc.so.6", None, 0x10),
        2 => FrameName { category: FunctionCategory::NodeCpp, ..FrameName::own("caml", 7) },
        other => FrameName::own(&format!("f{other}"), u64::from(other)),
    };
    let change = (proptest::collection::vec(0u8..8, 0..7), [0u64..300, 0u64..200, 0u64..50]);
    let step = (
        proptest::collection::vec(change, 0..12),
        ([0u64..100, 0u64..100, 0u64..5], [-20i64..20, -20i64..20, 0i64..2]),
        (any::<bool>(), prop_oneof![Just(0u64), 1u64..2000], 0usize..5, any::<bool>()),
    );
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() });
    let agent = std::cell::RefCell::new((agent, process));
    let kept = std::cell::Cell::new(0);
    let ran = runner.run(&step, |(changes, (before, unattributed), (reverse, threshold, kind, snapshot))| {
        let (agent, process) = &mut *agent.borrow_mut();
        for (stack, pages) in changes {
            process.hold(&stack.into_iter().map(frame).collect::<Vec<_>>(), pages);
        }
        (process.before_attach, process.unattributed) = (before, unattributed);
        let base = process.sequence;
        let ack = agent.memory(in_parts(&process.delta(base), 3));
        prop_assert_eq!(ack.sequence, process.sequence);
        if snapshot {
            kept.set(NOON + i64::try_from(process.sequence).unwrap() * 1_000_000);
            let head = MemorySnapshot { time_ns: kept.get(), ..MemorySnapshot::default() };
            server.store.put_memory("9732", head, &[process.keyframe()]).unwrap();
            // That state was not sent.
            let _ = agent.memory([process.keyframe()]);
        }
        let kind = ["", "&kind=anon", "&kind=cache", "&kind=kernel", "&kind=all"][kind];
        let path = format!("/v1/tree?threshold={threshold}&reverse={reverse}{kind}");
        check(&server.json(&path), threshold, false);
        if kept.get() != 0 {
            check(&server.json(&format!("{path}&since={}", kept.get() / 1_000_000)), threshold, true);
        }
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn a_gap_is_healed_by_a_keyframe_and_intake_is_acknowledged() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let mut process = recorder(1);
    process.hold(&[FrameName::own("main", 1)], [1000, 0, 0]);
    process.keyframe();
    let delta = process.delta(1);
    let ack = agent.memory([delta]);
    assert!(ack.keyframe_wanted && ack.sequence == 0 && !ack.refused.is_empty(), "{ack:?}");
    assert_eq!(server.json("/v1/tree")["value"], 0);
    let ack = agent.memory(in_parts(&process.keyframe(), 1));
    assert_eq!((ack.sequence, ack.keyframe_wanted, ack.refused.as_str()), (3, false, ""));
    assert_eq!(server.json("/v1/tree")["value"], 4000);

    // An invalid state is refused, and the session continues.
    let mut nonsense = process.delta(3);
    nonsense.node_parents = vec![77];
    assert!(agent.memory([nonsense]).keyframe_wanted);
    assert_eq!(server.json("/v1/tree")["value"], 4000);
    // So do records on the same stream.
    agent.batch("9732", 0, Vec::new());
    assert!(matches!(agent.reply(), Some(Reply::Ack(_))));
    // An invalid node name is refused, and the session continues, as for records.
    let ack = agent.memory([MemoryState { node: "a b".into(), sequence: 1, ..MemoryState::default() }]);
    assert!(ack.refused.starts_with("a b cannot be the name of a node"), "{ack:?}");
    let ack = agent.memory(in_parts(&process.keyframe(), 1));
    assert_eq!(ack.refused, "");
    assert_eq!(server.json("/v1/tree")["value"], 4000);
}

#[test]
fn several_processes_add_up_and_the_oldest_gives_the_pid() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let (mut parent, mut child) = (recorder(20), recorder(10));
    let main = [FrameName::own("main", 1)];
    parent.hold(&main, [100, 0, 0]);
    parent.process.started_ns = 5;
    child.hold(&main, [300, 10, 0]);
    child.process.started_ns = 6;
    agent.memory([parent.keyframe()]);
    agent.memory([child.keyframe()]);
    assert_eq!(server.get("/v1/pid").body, "20");
    assert_eq!(server.json("/v1/tree")["value"], 4 * 410);
    assert_eq!(server.json("/v1/tree?pid=10")["value"], 4 * 310);
    assert_eq!(server.json("/v1/tree?target=pid%2020")["value"], 4 * 100);
    let targets = server.json("/v1/targets");
    let states: Vec<_> =
        targets.as_array().unwrap().iter().map(|target| (target["pid"].clone(), target["state"].clone())).collect();
    assert_eq!(states, [(json!(20), json!("running")), (json!(10), json!("running"))]);
    assert_eq!(targets[1]["anon"], json!({ "attributed": 1200, "beforeAttach": 0, "unattributed": 0 }));
    assert_eq!((&targets[1]["stacks"], &targets[1]["agent"]), (&json!(1), &json!("host-1")));

    parent.process.ended_ns = NOON;
    parent.process.ended_by = "exited".into();
    parent.hold(&main, [0; 3]);
    agent.memory([parent.delta(1)]);
    assert_eq!(server.get("/v1/pid").body, "10");
    assert_eq!(server.json("/v1/tree")["value"], 4 * 310);
    assert_eq!(server.json("/v1/targets")[0]["endedBy"], "exited");
    assert_eq!(server.json("/v1/tree?pid=20")["value"], 0);

    agent.end();
    while agent.reply().is_some() {}
    wait::until_true("the agent is away", || server.json("/v1/targets")[1]["state"] == "silent");
    assert_eq!(server.get("/v1/pid").body, "10", "the last that is known");
    assert_eq!(server.json("/nodes")[0]["state"], "waiting");
}

#[test]
fn snapshots_are_stored_compared_and_evicted() {
    let keep = SnapshotPolicy {
        every: Duration::from_millis(1),
        limits: SnapshotLimits { age: Some(Duration::from_secs(1 << 30)), bytes: None },
    };
    let mut server = Server::with(|config| config.nodes.push(NodeConfig { memory: keep, ..NodeConfig::new("9732") }));
    let mut agent = server.agent(&[]);
    let mut process = recorder(1);
    let (grow, shrink) = (
        [FrameName::own("main", 1), FrameName::own("grow", 2)],
        [FrameName::own("main", 1), FrameName::own("shrink", 3)],
    );
    process.hold(&grow, [1000, 0, 0]);
    process.hold(&shrink, [800, 400, 0]);
    agent.memory([process.keyframe()]);
    let first = || server.json("/v1/snapshots").as_array().unwrap().first().cloned();
    wait::until_true("a first snapshot is taken", || first().is_some());
    let snapshot = first().unwrap();
    assert_eq!(
        (&snapshot["anon"], &snapshot["cache"], &snapshot["targets"], &snapshot["stacks"]),
        (&json!(7200), &json!(1600), &json!(1), &json!(2))
    );
    let since = snapshot["time"].as_i64().unwrap();
    let before = server.get(&format!("/v1/tree?at={since}")).body;
    assert_eq!(before, server.get("/v1/tree").body);

    process.hold(&grow, [5000, 0, 0]);
    process.hold(&shrink, [100, 0, 0]);
    agent.memory([process.delta(1)]);
    let grown = server.json(&format!("/v1/tree?since={since}&reverse=true"));
    assert_eq!((&grown["value"], &grown["cacheValue"]), (&json!(4 * (4000 - 1100)), &json!(-1600)));
    let main = &grown["frames"][0];
    assert_eq!((&main["frames"][0]["value"], &main["frames"][1]["value"]), (&json!(16_000), &json!(-4400)));
    check(&grown, 256, true);
    assert_eq!(server.get(&format!("/v1/tree?at={since}")).body, before, "the tree of yesterday");
    assert_eq!(server.problem(&format!("/v1/tree?at={}", since - 1000), 404)["parameter"], "at");
    let svg = server.get(&format!("/v1/flamegraph?since={since}"));
    assert_eq!((svg.status, svg.header("content-type")), (200, Some("image/svg+xml")));
    assert!(svg.body.contains("+16,000 KiB") && svg.body.contains("-4,400 KiB"), "{}", svg.body);

    // Snapshots persist over a restart; there is no current state yet.
    wait::until_true("the second state is kept", || server.json("/v1/snapshots").as_array().unwrap().len() == 2);
    drop(agent);
    server.shutdown();
    let Server { dir, store, .. } = server;
    assert!(store.verify().unwrap().is_sound());
    let keep = SnapshotPolicy {
        every: Duration::ZERO,
        limits: SnapshotLimits { age: Some(Duration::from_nanos(1)), bytes: None },
    };
    let server = Server::on(dir, store.clone(), |config| {
        config.nodes.push(NodeConfig { memory: keep, ..NodeConfig::new("9732") })
    });
    assert_eq!(server.json("/v1/tree")["value"], 0);
    wait::until_true("expired snapshots are evicted", || server.json("/v1/snapshots") == json!([]));
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn yesterdays_tree_is_found_by_time() {
    // The snapshots are older than the default age, and eviction is periodic.
    let keep = SnapshotPolicy { every: Duration::ZERO, limits: SnapshotLimits::default() };
    let server = Server::with(|config| config.nodes.push(NodeConfig { memory: keep, ..NodeConfig::new("9732") }));
    for (hour, pages) in [(0, 100), (1, 200), (2, 300)] {
        let mut process = recorder(7);
        process.hold(&[FrameName::own("main", 1)], [pages, 0, 0]);
        let head = MemorySnapshot { time_ns: NOON + hour * HOUR_NS, anon_kib: pages * 4, ..MemorySnapshot::default() };
        server.store.put_memory("9732", head, &in_parts(&process.keyframe(), 1)).unwrap();
    }
    let value = |query: &str| server.json(&format!("/v1/tree?{query}"))["value"].clone();
    let seconds = NOON / 1_000_000_000;
    assert_eq!(value(&format!("at={seconds}")), 400);
    assert_eq!(value(&format!("at={}", seconds + 3599)), 400);
    assert_eq!(value(&format!("at={}", (seconds + 3600) * 1000)), 800);
    assert_eq!(value(&format!("at={}&since={}", seconds + 9999, seconds)), 800);
    // Nothing is observed now: the difference removes everything.
    assert_eq!(value(&format!("since={}", seconds + 9999)), -1200);
    let times = |query: &str| -> Vec<i64> {
        let list = server.json(&format!("/v1/snapshots?{query}"));
        list.as_array()
            .unwrap()
            .iter()
            .map(|each| (each["time"].as_i64().unwrap() * 1_000_000 - NOON) / HOUR_NS)
            .collect()
    };
    assert_eq!(times(""), [2, 1, 0]);
    assert_eq!(times("limit=1"), [2]);
    assert_eq!(times(&format!("from={}&to={}", seconds + 1, seconds + 7200)), [2, 1]);
    assert_eq!(times(&format!("to={seconds}")), [0]);
    let oldest = server.problem(&format!("/v1/tree?at={}", seconds - 1), 404);
    assert!(oldest["detail"].as_str().unwrap().contains(&format!("{}", NOON / 1_000_000)), "{oldest}");
}

#[test]
fn pprof_has_every_stack_and_the_same_total() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let mut process = example();
    process.before_attach = [10, 20, 30];
    agent.memory([process.keyframe()]);
    let answer = server.get("/v1/pprof");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")));
    let mut profile = Vec::new();
    GzDecoder::new(answer.bytes.as_slice()).read_to_end(&mut profile).unwrap();

    // Read by field numbers alone.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Profile {
        #[prost(message, repeated, tag = "2")]
        sample: Vec<Sample>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Sample {
        #[prost(int64, repeated, tag = "2")]
        value: Vec<i64>,
    }
    let profile: Profile = prost::Message::decode(profile.as_slice()).unwrap();
    let total: i64 = profile.sample.iter().map(|sample| sample.value[0]).sum();
    assert_eq!(total, server.json("/v1/tree?threshold=0")["value"].as_i64().unwrap() * 1024);
    assert_eq!(profile.sample.len(), 4);
}

#[test]
fn a_tree_of_any_depth_and_size_is_written_to_its_end() {
    let server = Server::start();
    let mut agent = server.agent(&[]);
    let depth = 50_000;
    let mut process = recorder(1);
    let stack: Vec<FrameName> = (0..depth).map(|at| FrameName::own(&format!("level {}", at % 5), at % 5)).collect();
    process.hold(&stack, [100, 0, 0]);
    for at in 0..2000 {
        process.hold(&[FrameName::own(&format!("wide {at}\u{1b}[2J\u{202e}"), 1000 + at)], [100, 0, 0]);
    }
    agent.memory(in_parts(&process.keyframe(), 10_000));
    for reverse in [false, true] {
        let answer = server.get(&format!("/v1/tree?reverse={reverse}"));
        let count = |text: &str| answer.body.matches(text).count();
        assert_eq!((count("\"frames\":["), count("\"name\":{")), (depth as usize + 2001, depth as usize + 2000));
        assert_eq!(count("{"), count("}"));
        assert!(answer.body.ends_with("]}") && !answer.body.chars().any(char::is_control));
    }
    let svg = server.get("/v1/flamegraph").body;
    assert!(svg.ends_with("</svg>\n") && !svg.contains('\u{1b}'));
}

#[test]
fn a_further_listener_and_the_documents_are_served() {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig { aliases: vec!["19732".into()], ..NodeConfig::new("tezos/rolling") });
        config.memory = Some("127.0.0.1:0".parse().unwrap());
    });
    let mut process = recorder(1);
    process.node = "tezos/rolling".into();
    process.hold(&[FrameName::own("main", 1)], [100, 0, 0]);
    server.agent(&[]).memory([process.keyframe()]);
    let address = server.running().memory_addr().unwrap();
    for path in ["/v1/tree", "/v1/tree?node_name=19732", "/nodes/tezos/rolling/v1/tree"] {
        let answer = crate::common::get(address, "GET", path, &[]);
        assert!(answer.status == 200 && answer.body.starts_with("{\"value\":400,"), "{path}: {}", answer.body);
    }
    let document = server.json("/openapi/memory-profiler-openapi.json");
    let paths: BTreeMap<String, Value> = serde_json::from_value(document["paths"].clone()).unwrap();
    assert!(paths.contains_key("/v1/tree") && paths.keys().all(|path| path.starts_with("/v1/")));
}
