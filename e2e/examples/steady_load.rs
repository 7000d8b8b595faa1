//! What an agent and an aggregator, each a program of its own, use over a long time: without messages, then at 5,000 a second from
//! all nodes together. Prints a Markdown table; fails if anything is lost.
//!
//! steady_load [NODES] [SECONDS]    (default: 100, 3600; needs root)

#![expect(clippy::print_stdout, reason = "prints the table")]

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::usage::{self, ProcessorTime};
use chainscope_e2e::harness::{binary, free_port, wait};

/// Messages a second of all nodes together, in both directions.
const MESSAGES: f64 = 5000.0;
/// Time over which idle programs are measured.
const IDLE: Duration = Duration::from_secs(60);
/// Rows of the table for the time with messages.
const SAMPLES: u32 = 12;
/// How long nodes may take until they are observed, or connections until they are recorded.
const TIMEOUT: Duration = Duration::from_secs(300);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let (nodes, seconds) = (arguments.next().unwrap_or(100), arguments.next().unwrap_or(3600));
    let mut machine = Machine::new("auto");
    let nodes: Vec<(String, u16)> = (0..nodes).map(|number| (format!("node-{number}"), free_port())).collect();
    for (name, port) in &nodes {
        machine.observe(name, *port);
    }
    let chainscope = Chainscope::start(&machine);
    println!("| nodes | messages/s | after, s | program | processor time, % | anonymous, MiB | resident, MiB |");
    println!("| ---: | ---: | ---: | --- | ---: | ---: | ---: |");

    let listening: Vec<Program> = nodes.iter().map(|(_, port)| DemoNode::new("load").listen(*port).start()).collect();
    wait::until_within(TIMEOUT, "all nodes to be observed", || {
        (chainscope.api.observed_nodes()? == nodes.len()).then_some(())
    });
    chainscope.measure(nodes.len(), IDLE, IDLE);
    listening.into_iter().for_each(|program| drop(program.terminate()));

    let peer = free_port();
    let options = format!("--no-verify --rate {}", MESSAGES / (2 * nodes.len()) as f64);
    let load = |seed: usize| DemoNode::new("load").with(&options).with(&format!("--seed {seed}"));
    let remote = load(0).listen(peer).start();
    let local = nodes.iter().enumerate().map(|(at, (name, port))| {
        load(at + 1)
            .listen(*port)
            .peer(peer)
            .identity(&machine.identity(name))
            .with("--connections 1")
            .start_observed(&chainscope.api, name)
    });
    let local: Vec<Program> = local.collect();
    wait::until_within(TIMEOUT, "messages of each node", || {
        nodes.iter().all(|(name, _)| Account::read(&chainscope.api, name).messages > 0).then_some(())
    });
    let (begin, step) = (Instant::now(), Duration::from_secs(seconds) / SAMPLES);
    for number in 1..=SAMPLES {
        chainscope.measure(nodes.len(), step * number, (step * number).saturating_sub(begin.elapsed()));
    }
    local.into_iter().for_each(|program| drop(program.terminate()));
    remote.terminate();
    for (name, _) in &nodes {
        let account = Account::wait_settled(&chainscope.api, name);
        assert_eq!((account.bytes_dropped, account.messages_dropped), (0, 0), "{name}: {account:?}");
    }
}

/// An agent and the aggregator that it sends to.
struct Chainscope {
    api: Api,
    aggregator: Program,
    agent: Program,
}

impl Chainscope {
    fn start(machine: &Machine) -> Self {
        let config = machine.path("chainscope.toml");
        std::fs::write(&config, machine.configuration()).expect("the configuration can be written");
        let address = |port: u16| format!("127.0.0.1:{port}");
        let ingest = address(free_port());
        let aggregator = Program::start(
            "aggregator",
            Command::new(binary("chainscope-aggregator"))
                .args(["--listen", &address(machine.port()), "--ingest-listen", &ingest])
                .args(["--metrics-listen", &address(free_port()), "--data-dir"])
                .arg(machine.path("aggregator")),
        );
        aggregator.wait_stderr("the aggregator to run", |lines| {
            lines.iter().any(|line| line.contains("the aggregator is running")).then_some(())
        });
        let agent = Program::start(
            "agent",
            Command::new(binary("chainscope-agent"))
                .args(["--host", "host", "--aggregator", &format!("http://{ingest}"), "--config"])
                .arg(config),
        );
        agent.wait_stderr("the agent to be connected", |lines| {
            lines.iter().any(|line| line.contains("connected to the aggregator")).then_some(())
        });
        Self { api: Api::new(machine.port()), aggregator, agent }
    }

    /// Messages stored of all nodes.
    fn messages(&self) -> u64 {
        let nodes = self.api.get("/nodes");
        nodes.as_array().expect("a list").iter().filter_map(|node| node["next_id"].as_u64()).sum()
    }

    /// Prints a row for each program, with its processor time during a span that begins now.
    fn measure(&self, nodes: usize, after: Duration, span: Duration) {
        let programs = [("agent", self.agent.pid()), ("aggregator", self.aggregator.pid())];
        let (begin, messages) = (Instant::now(), self.messages());
        let before = programs.map(|(_, pid)| ProcessorTime::of(pid));
        thread::sleep(span);
        let elapsed = begin.elapsed().as_secs_f64();
        let rate = (self.messages() - messages) as f64 / elapsed;
        for ((name, pid), before) in programs.into_iter().zip(before) {
            let percent = 100.0 * ProcessorTime::of(pid).since(&before).as_secs_f64() / elapsed;
            let [anonymous, resident] = ["RssAnon", "VmRSS"].map(|field| usage::memory(pid, field) >> 20);
            println!(
                "| {nodes} | {rate:.0} | {} | {name} | {percent:.2} | {anonymous} | {resident} |",
                after.as_secs()
            );
        }
    }
}
