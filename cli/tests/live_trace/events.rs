//! Every tracepoint as JSON, with the values, the time and the thread that the program says; bursts; bad pointers.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
};

use chainscope_testing::fakenode::{Fired, Flavour};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Node, nothing_lost, stop};

/// The events of an output, and the last object.
fn events(output: &str) -> (Vec<Value>, Value) {
    let mut objects: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = objects.pop().unwrap();
    (objects, last)
}

/// Compares an event with its firing. Payloads are left out.
#[track_caller]
fn assert_event(event: &Value, fired: &Fired) {
    assert_eq!(event["tracepoint"], *fired.tracepoint);
    assert_eq!((&event["pid"], &event["tid"]), (&json!(fired.pid), &json!(fired.tid)));
    let time = event["monotonic_ns"].as_u64().unwrap();
    assert!((fired.before_ns..=fired.after_ns).contains(&time), "{event} {fired:?}");
    let found: BTreeMap<String, Value> = serde_json::from_value(event["arguments"].clone()).unwrap();
    let without_payload = |arguments: &BTreeMap<String, Value>| {
        let mut arguments = arguments.clone();
        arguments.remove("payload");
        arguments
    };
    assert_eq!(without_payload(&found), without_payload(&fired.arguments), "{}", fired.tracepoint);
}

/// Names of all tracepoints.
fn names(node: &Node) -> Vec<String> {
    let image = chainscope_usdt::Image::read(std::fs::read(&node.program).unwrap().as_slice()).unwrap();
    image.tracepoints.iter().map(chainscope_usdt::Tracepoint::full_name).collect()
}

#[test]
fn every_argument_of_every_tracepoint() {
    for flavour in [Flavour::Core(31), Flavour::Core(28), Flavour::Moneyrocket, Flavour::Tapyrus, Flavour::Rippled] {
        let mut node = Node::start(flavour);
        let names = names(&node);
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let tool = node.trace(&["any", "*:*", "--json"], &known);
        let mut fired: Vec<Fired> = names.iter().map(|name| node.node.fire(name)).collect();
        if flavour == Flavour::Tapyrus {
            fired.push(node.node.fire("coin_selection:change_info#2 value=-7"));
            fired.push(node.node.fire("coin_selection:fee_info#2"));
        }
        let (events, last) = events(&tool.interrupt());
        assert_eq!(events.len(), fired.len());
        for (number, (event, fired)) in events.iter().zip(&fired).enumerate() {
            assert_eq!(event["sequence"], number);
            assert_event(event, fired);
        }
        let total = &last["accounting"]["total"];
        assert_eq!((&total["hits"], &total["delivered"]), (&json!(fired.len()), &json!(fired.len())), "{last}");
        assert_eq!(node.breakpoints(&known).iter().filter(|is_set| **is_set).count(), 0);
    }
}

/// Extremes of the types.
#[test]
fn numbers_have_their_size_and_sign() {
    let mut node = Node::start(Flavour::Core(31));
    let names = ["utxocache:flush", "mempool:removed", "utxocache:add"];
    let tool = node.trace(&["any", "{utxocache,mempool}:*", "--json"], &names);
    let fired = [
        "utxocache:flush duration=-9223372036854775808 mode=4294967295 coins=18446744073709551615 memory=0 for_prune=true",
        "utxocache:flush duration=9223372036854775807 mode=0 coins=0 memory=18446744073709551615 for_prune=false",
        "mempool:removed size=-2147483648 fee=-1 entry_time=18446744073709551615",
        "utxocache:add index=4294967295 height=2147483648 value=-1 is_coinbase=true",
    ]
    .map(|command| node.node.fire(command));
    let (events, _) = events(&tool.interrupt());
    assert_eq!(events.len(), fired.len());
    events.iter().zip(&fired).for_each(|(event, fired)| assert_event(event, fired));
}

/// A connected block removes thousands of transactions at once; and several threads at the same time.
#[test]
fn a_burst_is_whole_and_in_order() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["any", "mempool:removed", "--json"], &["mempool:removed"]);
    let one = node.node.execute("repeat 5000 mempool:removed txid=# reason=block").fired;
    let mut many = node.node.execute("repeat 20000 mempool:removed txid=# reason=sizelimit threads=4").fired;
    let (events, last) = events(&tool.interrupt());
    assert_eq!(last["accounting"]["total"]["residual"], 0);
    assert_eq!(events.len(), 25_000, "{last}");
    let (first, rest) = events.split_at(5000);
    first.iter().zip(&one).for_each(|(event, fired)| assert_event(event, fired));
    // By the kernel's time, whichever thread it was; then each with its own.
    assert!(rest.is_sorted_by_key(|event| event["monotonic_ns"].as_u64()));
    let txid = |event: &Value| event["arguments"]["txid"].as_str().unwrap().to_owned();
    let mut by_txid: BTreeMap<String, &Value> = rest.iter().map(|event| (txid(event), event)).collect();
    many.sort_by_key(|fired| fired.before_ns);
    for fired in &many {
        assert_event(by_txid.remove(&fired.show("txid")).expect("delivered once"), fired);
    }
}

/// With a stopped reader and a ring of a page: the loss is said while it runs, and it is exact.
#[test]
fn losses_are_said_and_exact() {
    const FIRED: usize = 5000;
    let mut node = Node::start(Flavour::Core(31));
    let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
    command.args(["trace", "any", "mempool:removed", "--format", "{fee}", "--ring-pages", "1"]);
    command.args(["--pid", &node.node.pid().to_string()]).stdin(Stdio::null());
    let mut tool = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&tool);
    node.node.wait_for_semaphores(&["mempool:removed"], 1);
    stop(&tool);
    node.node.execute(&format!("repeat {FIRED} mempool:removed fee=7 quiet=1"));
    kill_process(pid, Signal::CONT).unwrap();
    let mut notes = BufReader::new(tool.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut output = String::new();
    tool.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(tool.wait().unwrap().success());
    let lines: Vec<&str> = output.lines().collect();
    let (last, events) = lines.split_last().unwrap();
    assert!(events.iter().all(|line| *line == "7"), "{events:?}");
    let lost = FIRED - events.len();
    assert!(lost > FIRED / 2, "{last}");
    let losses = format!("(mempool:removed: ring_full {lost})");
    assert_eq!(**last, *format!("{FIRED} hits = {} delivered + {lost} dropped {losses}", events.len()));
    let rest = "--ring-pages enlarges the ring buffer";
    assert_eq!(note, format!("{lost} hits were lost, {lost} so far {losses}; {rest}"));
}

/// Pointers that lead nowhere are listed, and have no value; texts without an end are cut where memory ends.
#[test]
fn unreadable_arguments_are_marked() {
    let mut node = Node::start(Flavour::Core(28));
    let tool = node.trace(&["any", "mempool:*", "--json"], &["mempool:rejected"]);
    let before = node.node.fire("mempool:rejected reason=@length:118");
    let untouched = node.node.fire("mempool:rejected reason=@untouched");
    node.node.fire("mempool:rejected reason=@null");
    node.node.fire("mempool:rejected reason=@unreadable");
    node.node.fire("mempool:rejected txid=@unreadable reason=");
    node.node.fire("mempool:rejected reason=@cut:30");
    let control = node.node.fire("mempool:rejected reason=%1b[31m%0a");
    let (events, _) = events(&tool.interrupt());
    assert_eq!(events.len(), 7);
    assert_event(&events[0], &before);
    // A kernel that reads with page faults has it; another says that it has not.
    if events[1]["unreadable"].is_null() {
        assert_event(&events[1], &untouched);
    } else {
        assert_eq!(events[1]["arguments"]["reason"], Value::Null);
    }
    assert_eq!(events[2]["unreadable"], json!([{ "name": "reason", "address": "0x0" }]));
    for (event, name) in [(&events[3], "reason"), (&events[4], "txid")] {
        assert_eq!(event["arguments"][name], Value::Null);
        assert_eq!(event["unreadable"][0]["name"], name);
    }
    assert_eq!(events[4]["arguments"]["reason"], "");
    // Nothing of it is shown as if it were the whole.
    let cut = &events[5];
    assert!(!cut["truncated"].is_null() || !cut["unreadable"].is_null(), "{cut}");
    assert_eq!(control.arguments["reason"], json!({ "hex": "1b5b33316d0a" }));
    assert_eq!(events[6]["arguments"]["reason"], "\u{1b}[31m\n");
}

/// Another process of the same file is not traced, and hits there are not counted.
#[test]
fn only_the_process_is_traced() {
    let mut node = Node::start(Flavour::Core(31));
    let mut other = chainscope_testing::fakenode::FakeNode::start(&node.program);
    let tool = node.trace(&["any", "mempool:added", "--format", "{pid} {fee}"], &["mempool:added"]);
    other.execute("repeat 100 mempool:added quiet=1");
    let fired = node.node.fire("mempool:added fee=7");
    other.execute("repeat 100 mempool:added quiet=1");
    let output = tool.interrupt();
    assert_eq!(output, format!("{} {}\n{}\n", fired.pid, fired.show("fee"), nothing_lost(1)));
}

/// By its file every process is traced, those that start later as well; semaphores of all are given back.
#[test]
fn every_process_of_a_file_is_traced() {
    let mut node = Node::start(Flavour::Core(31));
    let path = node.program.to_str().unwrap().to_owned();
    let arguments = ["any", "mempool:added", "--format", "{pid} {fee}", "--file", &path];
    let tool = crate::support::Tool::start(&arguments);
    node.node.wait_for_semaphores(&["mempool:added"], 1);
    let mut later = chainscope_testing::fakenode::FakeNode::start(&node.program);
    assert_eq!(later.semaphores()["mempool:added"], 1);
    let fired = [node.node.fire("mempool:added fee=1"), later.fire("mempool:added fee=2")];
    let output = tool.interrupt();
    let lines: Vec<String> = fired.iter().map(|fired| format!("{} {}\n", fired.pid, fired.show("fee"))).collect();
    assert_eq!(output, format!("{}{}\n", lines.concat(), nothing_lost(2)));
    node.node.wait_for_semaphores(&["mempool:added"], 0);
    later.wait_for_semaphores(&["mempool:added"], 0);
}

/// The kernel gives the semaphores back when the tool is killed.
#[test]
fn semaphores_are_given_back_by_a_killed_tool() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["any", "mempool:*"], &["mempool:added"]);
    node.node.wait_for_semaphores(&["mempool:added", "mempool:replaced"], 1);
    // SIGKILL.
    drop(tool);
    node.node.wait_for_semaphores(&["mempool:added", "mempool:replaced"], 0);
    assert_eq!(node.node.fire("mempool:added").active, 0);
    assert!(node.breakpoints(&["mempool:added"]).iter().all(|is_set| !is_set));
}

/// Whatever the compiler makes of the arguments: registers, the stack, several locations.
#[test]
fn arguments_of_other_compilers() {
    for (compiler, flags) in [("g++", "-O0"), ("clang++", "-O2"), ("clang++", "-O0")] {
        for flavour in [Flavour::Core(31), Flavour::Tapyrus] {
            let mut node = Node::start_built(flavour, compiler, &[flags]);
            let names = names(&node);
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            let tool = node.trace(&["any", "*:*", "--json"], &known);
            let fired: Vec<Fired> = names.iter().map(|name| node.node.fire(name)).collect();
            let (events, _) = events(&tool.interrupt());
            assert_eq!(events.len(), fired.len());
            events.iter().zip(&fired).for_each(|(event, fired)| assert_event(event, fired));
        }
    }
}
