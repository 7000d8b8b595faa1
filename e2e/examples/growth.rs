//! How the costs of recording grow with the number of connections, nodes, and processes whose memory is observed. Prints points for
//! `growth_plot`.
//!
//! growth [connections] [nodes] [processes]    (default: all; needs root)

#![expect(clippy::print_stdout, reason = "prints the points")]

use std::time::{Duration, Instant};

use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::memory_process::MemoryProcess;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::usage::{self, ProcessorTime};
use chainscope_e2e::harness::{free_port, wait};
use chainscope_testing::program;

const NODE: &str = "node";
/// Messages a second of all connections together.
const MESSAGES: f64 = 2000.0;
/// Time over which processor time is measured.
const SPAN: Duration = Duration::from_secs(15);
/// How long processes may take until all are observed.
const TIMEOUT: Duration = Duration::from_secs(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    if is_chosen("connections") {
        [1, 10, 100, 1_000, 10_000].into_iter().for_each(connections);
    }
    if is_chosen("nodes") {
        [1, 10, 100, 1_000].into_iter().for_each(nodes);
    }
    if is_chosen("processes") {
        [1, 4, 16, 64, 256].into_iter().for_each(processes);
    }
}

fn point(chart: &str, series: &str, x: u64, y: f64) {
    println!("growth\t{chart}\t{series}\t{x}\t{y}");
}

/// Messages of one node at a fixed rate, over `count` connections.
fn connections(count: u64) {
    let mut machine = Machine::new("auto");
    let (port, peer) = (free_port(), free_port());
    machine.observe(NODE, port);
    let chainscope = machine.start();
    let (api, pid) = (&chainscope.api, chainscope.program.pid());
    let options = format!("--no-verify --size 1024 --rate {}", MESSAGES / (2 * count) as f64);
    let side = |seed: u64| DemoNode::new("load").with(&options).with(&format!("--seed {seed}"));
    let remote = side(1).listen(peer).start();
    let local = side(2).listen(port).peer(peer).identity(&machine.identity(NODE));
    let local = local.with(&format!("--connections {count}")).start_observed(api, NODE);
    wait::until_within(TIMEOUT, "all connections to be established", || {
        (local.events("established").len() as u64 == count).then_some(())
    });
    // Handshakes are not measured.
    wait::until_within(TIMEOUT, "all connections to be recorded", || {
        let account = Account::read(api, NODE);
        (account.connections_open == count && account.bytes_in_ring == 0).then_some(())
    });
    let (messages, cpu) = (api.count(NODE), ProcessorTime::of(pid));
    std::thread::sleep(SPAN);
    let (messages, cpu) = (api.count(NODE) - messages, ProcessorTime::of(pid).since(&cpu));
    let resident = usage::memory(pid, "VmRSS");
    let account = Account::read(api, NODE);
    assert_eq!((account.bytes_dropped, account.messages_dropped), (0, 0), "{account:?}");
    local.terminate();
    remote.terminate();
    point("connections", "processor time of a message, µs", count, cpu.as_secs_f64() * 1e6 / messages as f64);
    point("connections", "resident memory, MiB", count, mebibytes(resident));
}

/// `count` idle nodes, each a process that listens.
fn nodes(count: u64) {
    let mut machine = Machine::new("auto");
    let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
    for (number, port) in ports.iter().enumerate() {
        machine.observe(&format!("node-{number}"), *port);
    }
    let programs: Vec<Program> = ports.iter().map(|port| DemoNode::new("load").listen(*port).start()).collect();
    let begin = Instant::now();
    let chainscope = machine.start();
    let (api, pid) = (&chainscope.api, chainscope.program.pid());
    wait::until_within(TIMEOUT, "all nodes to be observed", || (api.observed_nodes()? as u64 == count).then_some(()));
    point("nodes", "start until all are observed, s", count, begin.elapsed().as_secs_f64());
    idle("nodes", count, pid);
    programs.into_iter().for_each(|program| drop(program.terminate()));
}

/// `count` idle processes whose memory is observed.
fn processes(count: u64) {
    let mut machine = Machine::new("auto");
    let exe = program::memory_workload(machine.directory());
    machine.observe_memory(NODE, &exe);
    let chainscope = machine.start();
    let (api, pid) = (&chainscope.api, chainscope.program.pid());
    let begin = Instant::now();
    let processes: Vec<MemoryProcess> = (0..count).map(|_| MemoryProcess::unobserved(&exe)).collect();
    wait::until_within(TIMEOUT, "all processes to be observed", || {
        let targets = api.get("/v1/targets");
        (targets.as_array()?.len() as u64 == count).then_some(())
    });
    point("processes", "start until all are observed, s", count, begin.elapsed().as_secs_f64());
    idle("processes", count, pid);
    processes.into_iter().for_each(MemoryProcess::finish);
}

/// What Chainscope uses while nothing happens.
fn idle(chart: &str, count: u64, pid: u32) {
    let cpu = ProcessorTime::of(pid);
    std::thread::sleep(SPAN);
    let used = ProcessorTime::of(pid).since(&cpu).as_secs_f64() / SPAN.as_secs_f64();
    point(chart, "processor time of an idle second, ms", count, used * 1e3);
    point(chart, "resident memory, MiB", count, mebibytes(usage::memory(pid, "VmRSS")));
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
