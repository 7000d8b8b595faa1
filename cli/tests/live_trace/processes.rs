//! Which processes are traced: of a container, of another mount namespace, of a file that is replaced; and how several are
//! distinguished.

use std::fs;

use chainscope_testing::{
    cgroup::Group,
    fakenode::{FakeNode, Fired, Flavour, blocks::Block, build, relay::Relay},
    program::copy,
    wait::until_true,
};
use serde_json::{Value, json};

use crate::support::{Node, Tool, nothing_lost};

const ADDED: &[&str] = &["mempool:added"];

fn lines(fired: &[&Fired]) -> String {
    fired.iter().map(|fired| format!("{} {}\n", fired.pid, fired.show("fee"))).collect()
}

/// Those that start later as well; it ends with the last one.
#[test]
fn every_process_of_a_container_is_traced() {
    let folder = tempfile::tempdir().unwrap();
    let id = format!("{:064x}", 0xc0de_0000_0000 + u64::from(std::process::id()));
    let group = Group::of_container(&id);
    let program = build(folder.path(), Flavour::Core(31));
    let start = || FakeNode::start_command(&mut group.command(&program));
    let (mut first, mut outside) = (start(), FakeNode::start(&program));
    let tool = Tool::start(&["any", "mempool:added", "--format", "{pid} {fee}", "--container", &id]);
    first.wait_for_semaphores(ADDED, 1);
    let mut second = start();
    second.wait_for_semaphores(ADDED, 1);
    assert_eq!(outside.semaphores()["mempool:added"], 0);
    let before = [first.fire("mempool:added fee=1"), second.fire("mempool:added fee=2")];
    outside.fire("mempool:added fee=3");
    drop(first);
    let mut third = start();
    third.wait_for_semaphores(ADDED, 1);
    drop(second);
    let after = third.fire("mempool:added fee=4");
    drop(third);
    let expected = format!("{}{}\n", lines(&[&before[0], &before[1], &after]), nothing_lost(3));
    assert_eq!(tool.output(), expected);
}

/// Its file is at a path that does not exist here.
#[test]
fn a_process_in_another_mount_namespace_is_traced() {
    const INSIDE: &str = "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/inner\" && exec \"$1/inner\"";
    let folder = tempfile::tempdir().unwrap();
    let hidden = folder.path().join("hidden");
    fs::create_dir(&hidden).unwrap();
    let program = build(folder.path(), Flavour::Core(31));
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", INSIDE]).arg(&program).arg(&hidden);
    let mut node = FakeNode::start_command(&mut command);
    assert!(!hidden.join("inner").exists());
    let tool = Tool::start(&["any", "mempool:added", "--format", "{pid} {fee}", "--pid", &node.pid().to_string()]);
    node.wait_for_semaphores(ADDED, 1);
    let fired = node.fire("mempool:added fee=9");
    assert_eq!(tool.interrupt(), format!("{}{}\n", lines(&[&fired]), nothing_lost(1)));
}

/// As when a node is upgraded: the processes of both files are traced, and it is said.
#[test]
fn a_file_that_is_replaced_is_traced_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let built = build(folder.path(), Flavour::Core(31));
    let path = folder.path().join("noded");
    copy(&built, &path);
    let mut old = FakeNode::start(&path);
    let file = path.to_str().unwrap();
    let tool = Tool::start(&["any", "mempool:added", "--format", "{pid} {fee}", "--file", file]);
    old.wait_for_semaphores(ADDED, 1);
    copy(&built, &path);
    let mut new = FakeNode::start(&path);
    new.wait_for_semaphores(ADDED, 1);
    let note = format!("chainscope: {file} was replaced: processes of the new file are traced as well\n");
    until_true("a note", || tool.notes() == note);
    let fired = [old.fire("mempool:added fee=1"), new.fire("mempool:added fee=2")];
    assert_eq!(tool.interrupt(), format!("{}{}\n", lines(&[&fired[0], &fired[1]]), nothing_lost(2)));
}

/// Peers of two nodes have the same numbers.
#[test]
fn peers_of_several_processes_are_told_apart() {
    for json in [false, true] {
        let mut node = Node::start(Flavour::Core(31));
        let mut other = FakeNode::start(&node.program);
        let file = node.program.to_str().unwrap().to_owned();
        let flags: &[&str] = if json { &["--json"] } else { &[] };
        let tool = Tool::start(&[&["p2p-monitor", "--file", &file], flags].concat());
        for of in [&mut node.node, &mut other] {
            of.wait_for_semaphores(&["net:inbound_message", "net:closed_connection"], 1);
        }
        node.node.fire("net:inbound_message peer_id=7 address=10.0.0.1:8333 size=100");
        other.fire("net:inbound_message peer_id=7 address=10.0.0.2:8333 size=50");
        other.fire("net:closed_connection peer_id=7");
        let output = tool.interrupt();
        let pids = [node.node.pid(), other.pid()];
        if json {
            let last: Value = serde_json::from_str(output.lines().next_back().unwrap()).unwrap();
            let of = |pid: u32| {
                let peers = last["summary"]["peers"].as_array().unwrap();
                let found = peers.iter().find(|peer| peer["pid"] == pid).unwrap_or_else(|| panic!("{last:#}"));
                (found["peer_id"].clone(), found["inbound"]["bytes"].clone(), found["disconnected"].clone())
            };
            assert_eq!(pids.map(of), [(json!(7), json!(100), json!(false)), (json!(7), json!(50), json!(true))]);
        } else {
            let row = |pid: u32| output.lines().find(|line| line.contains(&format!(" process {pid}")));
            let [first, second] = pids.map(|pid| row(pid).unwrap_or_else(|| panic!("{pid} in {output}")));
            assert!(first.contains(" 100 byte ") && first.contains("10.0.0.1:8333") && !first.contains("disconnected"));
            assert!(
                second.contains(" 50 byte ") && second.contains("10.0.0.2:8333") && second.ends_with(" disconnected")
            );
        }
    }
}

/// Two nodes that get the same block, each from its own peers.
#[test]
fn block_relay_of_several_processes_is_told_apart() {
    let mut node = Node::start(Flavour::Core(31));
    let mut other = FakeNode::start(&node.program);
    let file = node.program.to_str().unwrap().to_owned();
    let tool = Tool::start(&["relay", "--json", "--file", &file]);
    for of in [&mut node.node, &mut other] {
        of.wait_for_semaphores(&["net:inbound_message", "net:outbound_message", "validation:block_connected"], 1);
    }
    let block = || Block::new([1; 32], 200, 3, 1);
    let stalled = Relay::after_stalling(&mut node.node, block(), 200);
    let compact = Relay::compact(&mut other, block(), 200);
    let output = tool.interrupt();
    let last: Value = serde_json::from_str(output.lines().next_back().unwrap()).unwrap();
    let blocks = last["summary"]["blocks"].as_array().unwrap();
    let found = |block: &Value| {
        let announcements = block["announcements"].as_array().unwrap();
        (block["pid"].clone(), block["hash"].clone(), announcements.len(), block["delivery"]["message_type"].clone())
    };
    let expected = [
        (json!(node.node.pid()), json!(stalled.block.id()), 3, json!("block")),
        (json!(other.pid()), json!(compact.block.id()), 2, json!("blocktxn")),
    ];
    assert_eq!(blocks.iter().map(found).collect::<Vec<_>>(), expected, "{last:#}");
    assert_eq!(last["summary"]["not_connected"], json!([]));
}
