//! A Tezos node: its messages, log and memory, and the database when its Chainscope has ended.

use std::fs;

use chainscope_e2e::harness::demo_node::DemoNode;

use crate::Outcome::{Ends, Follows, Interrupted, OnTerminal};
use crate::user::User;
use crate::{Outcome, Scene};

/// Started at first.
pub(crate) const SERVER: &[(&str, Outcome)] =
    &[("chainscope run --p2p-port 9732", Interrupted("API on http://127.0.0.1:17732"))];

pub(crate) const OUTCOMES: &[(&str, Outcome)] = &[
    ("chainscope messages --live", OnTerminal("127.0.0.1]:9733")),
    ("chainscope messages -f --types current_head", Follows("current_head")),
    ("chainscope messages --limit 3", Ends(0, "127.0.0.1]:9733")),
    ("chainscope message 1104", Ends(0, "1104")),
    ("chainscope connections --since 1h", Ends(0, "127.0.0.1:9733")),
    ("chainscope logs -f --level warning,error", Follows("WARNING too few connections")),
    ("chainscope logs --limit 3", Ends(0, "WARNING too few connections")),
    ("chainscope stats", Ends(0, "9732")),
    ("chainscope memory --pid", Ends(0, "[resident before attach]")),
    ("curl 'localhost:17732/v2/p2p?limit=2'", Ends(0, "127.0.0.1]:9733\"")),
    ("curl 'localhost:17732/v2/p2p?types=current_head,operation&incoming=true'", Ends(0, "\"incoming\":true")),
    ("curl 'localhost:17732/v2/p2p?remote_addr=127.0.0.1:9733", Ends(0, "[{\"id\":0,")),
    ("curl 'localhost:17732/v2/p2p/0'", Ends(0, "\"id\":0,")),
    ("curl -N 'localhost:17732/v2/p2p/stream?types=operation'", Follows("\"kind\":\"operation\"")),
    ("curl 'localhost:17732/v2/stats'", Ends(0, "\"bytes_seen\":")),
    ("curl 'localhost:17732/v1/tree'", Ends(0, "chainscope-demo-node")),
    ("curl -N 'localhost:17732/v2/log/stream?log_level=warning,error'", Follows("too few connections")),
    ("curl -G 'localhost:17732/v2/log' --data-urlencode 'query=peer -branch'", Ends(0, "[]")),
];

/// A warning of Octez again and again.
const WARNINGS: &str = "while sleep 0.05; do \
     date \"+%b %d %H:%M:%S.%3N    WARN │ too few connections (0)\" >> node.log; done";

/// After the server.
pub(crate) const DATABASE: &[(&str, Outcome)] = &[("chainscope db check --data-dir", Ends(0, "no problems found"))];

#[test]
fn commands_about_a_tezos_node() {
    let user = User::new();
    let data_dir = user.path("data").display().to_string();
    let printed = Scene {
        substitutions: vec![("--p2p-port 9732", format!("--p2p-port 9732 --data-dir {data_dir}"))],
        outcomes: SERVER,
    };
    user.play(&printed);

    // The README's node "with `memory = {}`", and with its log.
    let (identity, log) = (user.path("identity.json"), user.path("node.log"));
    let config = format!(
        "data_dir = {data_dir:?}\n[[nodes]]\nname = \"9732\"\np2p_port = 9732\nidentity = {:?}\nmemory = {{}}\n\
         logs = {{ file = {:?} }}\n",
        identity.display(),
        log.display()
    );
    fs::write(user.path("chainscope.toml"), config).expect("written");
    fs::write(&log, "").expect("written");
    let server = user.serve("chainscope run");
    let peer = load(&user, "--listen [::]:9733 --rate 200 --seed 2").start();
    let mut node = load(&user, "--listen [::]:9732 --peer 127.0.0.1:9733 --rate 200 --hold connect")
        .option("--identity", &identity)
        .option("--store", &user.path("store"))
        .start();
    user.wait_for(&format!("curl -s localhost:17732/nodes | grep -q '\"pid\":{}\\b'", node.pid()));
    node.write_line("go");
    user.wait_for("curl -s localhost:17732/v2/p2p/1104 | grep -q original_bytes");

    let _warnings = user.start(&format!("bash -c '{WARNINGS}'"));
    user.wait_for("curl -s localhost:17732/v1/tree | grep -q demo-node");
    user.wait_for("curl -s localhost:17732/v2/log | grep -q few");
    let pid = ("--pid 48213", format!("--pid {}", node.pid()));
    user.play(&Scene { substitutions: vec![pid], outcomes: OUTCOMES });
    server.terminate().expect_success("chainscope run");
    let moved = ("/var/lib/chainscope", data_dir);
    user.play(&Scene { substitutions: vec![moved], outcomes: DATABASE });
    drop((node, peer));
}

/// A demo node of this user that sends messages until its end.
fn load(user: &User, options: &str) -> DemoNode {
    DemoNode::in_namespace(user.namespace(), "load").with("--keep-open").with(options)
}
