//! Latency of functions through the real program: from `chainscope.toml` to `/v2/latency`, over a restart and two configurations,
//! compared with what the node says that it called.

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::wait;
use chainscope_testing::fakenode::{FakeNode, Flavour, build};
use serde_json::{Value, json};

/// The functions with the tracepoints `net:inbound_message` and `net:outbound_message`.
const FUNCTIONS: [&str; 2] = ["net_inbound_message_1", "net_outbound_message_1"];

fn runs(api: &Api) -> Vec<Value> {
    api.get("/v2/latency/runs").as_array().expect("a list").clone()
}

/// Spans of a function in a report, if it is in there.
fn spans(report: &Value, function: &str) -> u64 {
    let functions = report["functions"].as_array().expect("functions");
    let found = functions.iter().find(|found| found["entry"] == function);
    found.map_or(0, |found| found["sides"][0]["spans"].as_u64().expect("spans"))
}

#[test]
fn runs_over_http_have_every_call() {
    let mut machine = Machine::new("auto");
    // A file of its own: every process that executes it is recorded.
    let program = build(machine.directory(), Flavour::Core(31));
    let mut node = FakeNode::start(&program);
    let trace = |tag: &str| {
        let [inbound, outbound] = FUNCTIONS;
        let functions = format!("[{{ function = \"{inbound}\" }}, {{ function = \"{outbound}\" }}]");
        format!("trace = {{ latency = {{ functions = {functions}, block = \"1s\", tags = [\"{tag}\"] }} }}")
    };
    machine.observe_program("bitcoind", &program, &trace("v1"));
    let chainscope = machine.start();
    // The first block is recorded when the probe is attached.
    wait::until_true("the first run", || runs(&chainscope.api).len() == 1);
    node.execute("repeat 400 net:inbound_message peer_id=1 size=1 threads=4 rate=1000");
    let of_v1 = |api: &Api, function| spans(&api.get("/v2/latency/report?run=v1"), function);
    wait::until_true("the calls of the first run", || of_v1(&chainscope.api, FUNCTIONS[0]) == 400);
    // What is counted when the program ends is recorded.
    node.execute("repeat 30 net:outbound_message peer_id=1 size=1");
    chainscope.program.terminate();

    // Nothing is attached: no call of these is counted.
    node.execute("repeat 50 net:inbound_message peer_id=1 size=1");
    machine.observe_nothing();
    machine.observe_program("bitcoind", &program, &trace("v2"));
    let chainscope = machine.start();
    wait::until_true("the second run", || runs(&chainscope.api).len() == 2);
    node.execute("repeat 20 net:inbound_message peer_id=1 size=1");
    let pid = node.pid();
    drop(node);
    wait::until_true("the end of the second run", || runs(&chainscope.api)[1]["end"].is_string());

    let listed = runs(&chainscope.api);
    for (run, tag) in listed.iter().zip(["v1", "v2"]) {
        assert_eq!((&run["tags"], &run["pid"], &run["node"]), (&json!([tag]), &json!(pid), &json!("bitcoind")));
        assert_eq!(run["executable"], program.display().to_string());
        assert!(run["end"].as_str() > run["start"].as_str(), "{run}");
    }
    let report = |selector: &str| chainscope.api.get(&format!("/v2/latency/report?run={selector}"));
    for (selector, inbound, outbound) in [("v1", 400, 30), ("v2", 20, 0), ("v1,v2", 420, 30), ("latest", 20, 0)] {
        let report = report(selector);
        assert_eq!(FUNCTIONS.map(|function| spans(&report, function)), [inbound, outbound], "{selector}");
        for function in report["functions"].as_array().expect("functions") {
            let side = &function["sides"][0];
            assert_eq!((&side["unended"], &side["lost"]), (&json!(0), &json!({})), "{function:#}");
        }
    }
    let compared = chainscope.api.get("/v2/latency/compare?a=v1&b=v2");
    assert_eq!(compared["verdict"], "inconclusive", "{compared:#}");
    assert_eq!(compared["functions"][0]["reason"], "too_few_units");
    let (status, _) = chainscope.api.request("/v2/latency/report?run=v3").expect("response");
    assert_eq!(status, 404);
}
