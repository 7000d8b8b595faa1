//! The latency pillar: runs of functions of an observed process as records, compared with what the process measured itself. Needs
//! root, a kernel with BTF and gcc; fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;
mod latency_common;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use chainscope_agent::{Agent, Config, NodeConfig, Running};
use chainscope_latency::{
    Histogram, LossReason, Run, RunId, Transaction,
    record::{Runs, decode_transaction},
};
use chainscope_proto::v1::{LatencyBlock, record::Kind};
use chainscope_spec::{Latency, TimedFunction, Trace};
use chainscope_testing::{
    fakenode::{FakeNode, Flavour},
    program::{self, compile},
    wait::until_true,
};
use common::{Stage, TIMEOUT, collector::Delivered};
use latency_common::assert_agrees;

/// A program in a file of this test's own: an agent observes every process of a file.
fn program(stage: &Stage) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = compile("gcc", &source, folder, "latency_pillar", &["-O2", "-pthread"]);
    let copy = stage.dir.path().join("plain");
    program::copy(&built, &copy);
    copy
}

struct Target {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path) -> Self {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self { child, commands, replies };
        target.answer("none 0 0");
        target
    }

    fn answer(&mut self, command: &str) -> Vec<u64> {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn function(pattern: &str) -> TimedFunction {
    TimedFunction { function: Some(pattern.to_owned()), returns: true, ..TimedFunction::default() }
}

fn latency(functions: Vec<TimedFunction>) -> Latency {
    let tags = vec!["test".to_owned()];
    Latency {
        functions,
        block: Duration::from_secs(1),
        tags,
        commit: Some("c0ffee".to_owned()),
        version: Some("2.4.0".to_owned()),
    }
}

fn start(stage: &Stage, program: &Path, latency: Latency) -> Running {
    let trace = Trace { rules: Vec::new(), latency: Some(latency), ..Trace::of::<&str>([]) };
    trace.validate().unwrap();
    let node = NodeConfig {
        name: "plain".to_owned(),
        exe: Some(program.to_owned()),
        is_network_disabled: true,
        trace: Some(trace),
        ..NodeConfig::default()
    };
    let config = Config { ring_bytes: 1 << 20, ..Config::new(stage.dir.path().join("data"), vec![node]) };
    Agent::start(config, stage.collector.link()).unwrap()
}

/// Waits until the target event of a process says so.
fn wait_for(stage: &Stage, pid: u32, event: &str) -> String {
    stage.collector.wait(event, |delivered| {
        let events = delivered.target_events("plain");
        let found = events.iter().find(|found| found.pid == pid && found.event == event);
        found.map(|found| found.detail.clone())
    })
}

fn blocks(delivered: &Delivered) -> Vec<LatencyBlock> {
    let block = |kind: &Kind| if let Kind::LatencyBlock(block) = kind { Some(block.clone()) } else { None };
    delivered.kinds("plain").filter_map(block).collect()
}

/// The runs that were recorded.
fn runs(delivered: &Delivered) -> Vec<Run> {
    let mut runs = Runs::new("plain");
    for (number, block) in blocks(delivered).iter().enumerate() {
        runs.add(i64::try_from(number).unwrap(), block, true).unwrap();
    }
    runs.into_runs()
}

fn whole(run: &Run, name: &str) -> Histogram {
    let index = run.functions.iter().position(|function| function.name == name).unwrap();
    let mut whole = Histogram::default();
    run.blocks_of(index).for_each(|block| whole.merge(&block.histogram));
    whole
}

fn returned(run: &Run, name: &str, code: i64) -> u64 {
    let index = run.functions.iter().position(|function| function.name == name).unwrap();
    run.blocks_of(index).filter_map(|block| block.returns.get(&code)).sum()
}

#[test]
fn runs_are_what_the_process_measured_before_and_after_a_restart() {
    let stage = Stage::new();
    let program = program(&stage);
    let mut target = Target::start(&program);
    let pid = target.child.id();
    let options = || latency(vec![function("plain_nap"), function("plain_code"), function("nothing_like_this")]);

    let agent = start(&stage, &program, options());
    let detail = wait_for(&stage, pid, "functions");
    let named = "2 functions are timed; not nothing_like_this: no function matches nothing_like_this";
    assert!(detail.starts_with(named), "{detail}");
    until_true("the metrics", || {
        let metrics = agent.monitor().metrics();
        metrics.contains("latency_functions{node=\"plain\"} 2") && metrics.contains("latency_failed{node=\"plain\"} 1")
    });
    target.answer("nap 40 3000");
    target.answer("code 100 7");
    // Blocks are recorded while it runs.
    stage.collector.wait("a block", |delivered| {
        runs(delivered).first().is_some_and(|run| whole(run, "plain_nap").count() == 40).then_some(())
    });
    target.answer("nap 20 6000");
    target.answer("code 11 -3");
    agent.shutdown(TIMEOUT).unwrap();
    let first = runs(&stage.collector.now());
    let [run] = &first[..] else { panic!("{} runs", first.len()) };
    assert_agrees(&whole(run, "plain_nap"), &target.answer("exact nap"));
    assert_eq!(whole(run, "plain_code").count(), 111);
    assert_eq!((returned(run, "plain_code", 7), returned(run, "plain_code", -3)), (100, 11));
    let info = &run.info;
    assert_eq!((info.pid, info.commit.as_deref(), info.block), (pid, Some("c0ffee"), Duration::from_secs(1)));
    assert_eq!(info.version.as_deref(), Some("2.4.0"));
    assert_eq!((info.executable.as_str(), info.tags.len()), (program.to_str().unwrap(), 1));
    assert!(info.end > Some(info.start) && run.blocks.len() > 2, "{info:?}");
    assert!(run.blocks.iter().all(|block| block.lost.is_empty() && block.unended == 0), "{:?}", run.blocks);

    // Another agent: another run of the same process. It ends with the process.
    let agent = start(&stage, &program, options());
    stage.collector.wait("the second run", |delivered| (runs(delivered).len() == 2).then_some(()));
    until_true("the probe", || agent.monitor().metrics().contains("latency_functions{node=\"plain\"} 2"));
    target.answer("code 5 1");
    drop(target);
    stage
        .collector
        .wait("the end of the run", |delivered| runs(delivered).iter().all(|run| run.info.end.is_some()).then_some(()));
    let all = runs(&stage.collector.now());
    let second = all.iter().find(|run| run.info.id != info.id).unwrap();
    assert_eq!((whole(second, "plain_code").count(), returned(second, "plain_code", 1)), (5, 5));
    assert_eq!(whole(second, "plain_nap").count(), 0);
    assert_eq!(
        second.blocks.iter().map(|block| block.lost.get(&LossReason::NotKept)).sum::<Option<u64>>().unwrap_or(0),
        0
    );
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn what_cannot_be_timed_is_a_status_and_not_an_end() {
    for (pattern, says) in [
        ("plain_napp", "no function matches plain_napp"),
        ("many_*", "many_* matches 1000 functions (many_000, many_001, "),
        // Each pattern alone selects few enough.
        (
            "many_00?;many_01?;many_02?;many_03?;many_04?;many_05?;many_06?;many_07?;many_08?;many_09?;plain_*",
            "functions are selected, at most 100",
        ),
    ] {
        let stage = Stage::new();
        let program = program(&stage);
        let target = Target::start(&program);
        let agent = start(&stage, &program, latency(pattern.split(';').map(function).collect()));
        let cause = wait_for(&stage, target.child.id(), "functions error");
        assert!(cause.contains(says), "{cause}");
        if pattern == "plain_napp" {
            assert!(cause.contains("nearest: plain_nap"), "{cause}");
        }
        until_true("the metric", || agent.monitor().metrics().contains("latency_failed{node=\"plain\"} 1"));
        assert!(agent.status().is_running);
        assert!(blocks(&stage.collector.now()).is_empty());
        agent.shutdown(TIMEOUT).unwrap();
    }
}

/// The transactions that were recorded, by run.
fn transactions(delivered: &Delivered) -> Vec<(RunId, Transaction)> {
    let transaction = |kind: &Kind| match kind {
        Kind::LatencyTransaction(of) => Some(decode_transaction(0, of).unwrap()),
        _ => None,
    };
    delivered.kinds("plain").filter_map(transaction).collect()
}

/// The ready set on rippled with USDT: what the program says of each transaction is a record.
#[test]
fn transactions_of_rippled_are_records() {
    let stage = Stage::new();
    let mut node = FakeNode::run(stage.dir.path(), Flavour::Rippled);
    let program = std::fs::read_link(format!("/proc/{}/exe", node.pid())).unwrap();
    let set = TimedFunction { set: Some("rippled".to_owned()), ..TimedFunction::default() };
    let agent = start(&stage, &program, latency(vec![set]));
    let detail = wait_for(&stage, node.pid(), "functions");
    assert_eq!(detail, "3 functions are timed; transaction one by one");
    let mut expected = Vec::new();
    for number in 0..30_u32 {
        let kind = if number % 3 == 0 { "offer" } else { "payment" };
        let result = [0, 125, -99][number as usize % 3];
        let command = format!("transaction kind={kind} txid={} result={result} apply_us=300", number % 7);
        let fired = node.execute(&command).fired.remove(0);
        expected.push((fired.show("txid").to_uppercase(), fired.number_of("type"), i64::from(result)));
        if number == 20 {
            // They are records before their block ends.
            stage.collector.wait("transactions", |delivered| (transactions(delivered).len() == 21).then_some(()));
        }
    }
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    let recorded = transactions(&delivered);
    let facts: Vec<_> = recorded.iter().map(|(_, of)| (of.id.to_string(), of.kind, of.result)).collect();
    assert_eq!(facts, expected);
    let run = &runs(&delivered)[0];
    assert!(recorded.iter().all(|(id, of)| *id == run.info.id && of.duration_ns >= 300_000), "{recorded:?}");
    // The blocks have the same transactions.
    let counted = whole(run, "transaction");
    let sum: u64 = recorded.iter().map(|(_, of)| of.duration_ns).sum();
    assert_eq!((counted.count(), counted.sum()), (30, sum));
    assert_eq!(returned(run, "transaction", 125), 10);
    assert!(run.blocks.iter().all(|block| block.lost.is_empty()), "{:?}", run.blocks);
}
