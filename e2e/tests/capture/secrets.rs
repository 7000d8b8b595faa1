//! The node's secret key and the shared key are in no output: database, journal, logs, responses, support bundle.

use std::process::Command;

use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::search::{Places, assert_no_secret};
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, files_below, free_port, run, vectors, wait};

/// A name that the search must find, to check the search itself.
const NODE: &str = "searched-node";

#[test]
fn no_secret_leaves_the_agent() {
    let mut machine = Machine::new("auto");
    machine.options = "queue = \"16MiB\"".to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe(NODE, port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let side = |side: &str| {
        let options = format!("--session outgoing-all-messages --side {side}");
        DemoNode::new("replay").option("--dir", &vectors::tezos("synthetic-two-way")).with(&options)
    };
    let remote = side("remote").listen(peer).start();
    // The file of the identity itself is excluded from the search.
    let identity = machine.identity(NODE);
    side("local")
        .listen(port)
        .peer(peer)
        .identity(&identity)
        .start_observed(api, NODE)
        .join(WAIT_TIMEOUT)
        .expect_success("local");
    remote.join(WAIT_TIMEOUT).expect_success("remote");
    wait::until("all messages", || (api.count(NODE) >= 38).then_some(()));

    let mut places = Places::new();
    let rows = api.count(NODE);
    let mut paths: Vec<String> = [
        "/v2/p2p?limit=1000",
        "/v2/stats",
        "/nodes",
        "/metrics",
        "/openapi.json",
        "/v3/connections",
        "/v3/chunks?limit=1000",
        "/v3/messages",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend((0..rows).map(|id| format!("/v2/p2p/{id}")));
    for path in paths {
        let (_, body) = api.request(&path).unwrap_or_else(|| panic!("no response to {path}"));
        places.insert(path, body.into_bytes());
    }
    let bundle = machine.path("bundle.tar.gz");
    let bundle_output = run(Command::new(binary("chainscope"))
        .args(["support-bundle", "--config"])
        .arg(machine.path("chainscope.toml"))
        .arg("--output")
        .arg(&bundle));
    places.insert("output of support-bundle".to_owned(), bundle_output.into_bytes());
    let unpacked = machine.path("bundle");
    std::fs::create_dir(&unpacked).expect("folder");
    run(Command::new("tar").arg("-xf").arg(&bundle).arg("-C").arg(&unpacked));
    let finished = chainscope.program.terminate().expect_success("chainscope");
    places.insert("output of chainscope run".to_owned(), [finished.out, finished.err].concat().join("\n").into_bytes());
    for file in files_below(machine.directory()).into_iter().filter(|file| *file != identity) {
        places.insert(file.display().to_string(), std::fs::read(&file).expect("readable"));
    }
    assert_no_secret(&places, &[("/data/", NODE)]);
}
