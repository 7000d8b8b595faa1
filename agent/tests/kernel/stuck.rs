//! File systems and processes that do not answer: what is next to them is recorded.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use chainscope_agent::{Agent, Config, NodeConfig};
use chainscope_proto::v1::connection_event::Event;
use chainscope_testing::{free_port, wait::until_true};

use crate::{
    cluster::make_group,
    common::{Stage, TIMEOUT, capture, check_account, session_out, test_process::TestProcess},
};

/// A process of the program `silent_fs`.
struct Silent(Child);

impl Silent {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    /// Starts in a cgroup from its first instruction.
    fn start_in(group: &Path, program: &Path, mode: &str, dir: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(group).arg(program);
        Self::start(command.arg(mode).arg(dir))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn build(dir: &Path) -> PathBuf {
    let program = dir.join("silent_fs");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/programs/silent_fs.c");
    let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(status.success());
    program
}

/// The age of a stage in the metrics, in seconds.
fn age_of(metrics: &str, stage: &str) -> f64 {
    let name = format!("chainscope_agent_heartbeat_age_seconds{{stage=\"{stage}\"}} ");
    let age = metrics.lines().find_map(|line| line.strip_prefix(&name));
    age.unwrap_or_else(|| panic!("{stage} is not in {metrics}")).parse().unwrap()
}

#[test]
fn what_is_next_to_a_file_system_and_a_process_that_do_not_answer_is_recorded() {
    let stage = Stage::new();
    let program = build(stage.dir.path());
    let dir = stage.dir.path().join("silent");
    fs::create_dir(&dir).unwrap();
    // The agent and the processes are dropped after the file system that they wait for, also when an assertion fails.
    let (agent, locked, mut by_path, mut by_directory);
    let file_system = Silent::start(Command::new(&program).arg("mount").arg(&dir));

    let group = make_group(&format!("docker/{}", "5".repeat(64)));
    locked = Silent::start_in(&group, &program, "lock", &dir);

    // One whose identity is configured to be there, and one that works there.
    by_path = TestProcess::start();
    by_directory = TestProcess::start_with(|command| command.current_dir(&dir).env("TEZOS_NODE_DIR", "."));
    let mut node = TestProcess::start();
    // The node's port is bound again after its restart.
    let ports = [by_path.listen(0), by_directory.listen(0), node.listen(free_port())];
    let entry = |name: &str, port| NodeConfig { name: name.to_owned(), p2p_port: Some(port), ..NodeConfig::default() };
    let nodes = vec![
        NodeConfig { identity: Some(dir.join("identity.json")), ..entry("by path", ports[0]) },
        entry("by directory", ports[1]),
        stage.on_port(ports[2]),
    ];
    let config =
        Config { capture: capture(), ring_bytes: 8 << 20, ..Config::new(stage.dir.path().join("data"), nodes) };
    agent = Agent::start(config, stage.collector.link()).unwrap();
    stage.found(node.pid());
    session_out(&mut by_path);
    session_out(&mut by_directory);
    session_out(&mut node);
    stage.whole_sessions("node", 1);

    // Discovery finds the node again, after a restart.
    let pid = node.pid();
    node.stop();
    stage.collector.wait("the end of the process", |delivered| {
        delivered.target_events("node").iter().any(|event| event.pid == pid && event.event == "exited").then_some(())
    });
    let mut node = TestProcess::start();
    assert_eq!(node.listen(ports[2]), ports[2]);
    session_out(&mut node);
    stage.whole_sessions("node", 2);

    // The others are recorded without being decrypted, and say why.
    for name in ["by path", "by directory"] {
        let reason = "identity: its file system has not answered for 5 seconds";
        stage.collector.wait(reason, |delivered| {
            let events = delivered.connection_events(name);
            let is_so = |event: &Event| matches!(event, Event::StateChanged(changed) if changed.reason == reason);
            events.iter().any(|(_, event)| is_so(event)).then_some(())
        });
    }
    // Metrics show what is stuck. The agent is alive: a restart would not help.
    let monitor = agent.monitor();
    until_true("the ages of what is stuck", || {
        let metrics = monitor.metrics();
        age_of(&metrics, "identity") > 5.0 && age_of(&metrics, "processes") > 5.0
    });
    let metrics = monitor.metrics();
    for stage in ["discovery", "network reader", "network interpreter", "status", "uplink"] {
        assert!(age_of(&metrics, stage) < 5.0, "{metrics}");
    }
    assert_eq!(monitor.live(), Ok(()));
    agent.shutdown(TIMEOUT).unwrap();
    check_account(&stage.collector.now());
    drop(file_system);
    drop(locked);
    until_true("the control group to be empty", || fs::remove_dir(&group).is_ok());
}

#[test]
fn memory_next_to_code_of_a_file_system_that_does_not_answer_is_profiled() {
    let stage = Stage::new();
    let program = build(stage.dir.path());
    let dir = stage.dir.path().join("silent");
    fs::create_dir(&dir).unwrap();
    // The agent and the process are dropped after the file system that they wait for, also when an assertion fails.
    let (agent, mapped);
    let file_system = Silent::start(Command::new(&program).arg("mount").arg(&dir));
    let group = make_group(&format!("docker/{}", "6".repeat(64)));
    mapped = Silent::start_in(&group, &program, "map", &dir);
    let port = free_port();
    let silent = NodeConfig {
        name: "silent".to_owned(),
        pid: Some(mapped.pid()),
        is_network_disabled: true,
        memory: true,
        ..NodeConfig::default()
    };
    let nodes = vec![silent, NodeConfig { memory: true, ..stage.on_port(port) }];
    let config =
        Config { capture: capture(), ring_bytes: 8 << 20, ..Config::new(stage.dir.path().join("data"), nodes) };
    agent = Agent::start(config, stage.collector.link()).unwrap();
    let monitor = agent.monitor();
    until_true("the age of what is stuck", || age_of(&monitor.metrics(), "memory code") > 3.0);

    // Processes that start now are profiled until they end.
    for _ in 0..2 {
        let mut node = TestProcess::start();
        assert_eq!(node.listen(port), port);
        session_out(&mut node);
        let pid = node.pid();
        let wait = |what: &str, runs: bool| {
            stage.collector.wait(what, |delivered| {
                let data = delivered.profiles("node").rev().find(|data| data.process.pid == pid)?;
                (data.runs() == runs && (!runs || data.totals.control_anon > 0)).then_some(())
            });
        };
        wait("the node's memory", true);
        node.stop();
        wait("the end of the node", false);
    }
    // The other one is profiled as far as it answers, and the file is named.
    stage.collector.wait("the memory of the other", |delivered| {
        delivered.profiles("silent").any(|data| data.process.pid == mapped.pid()).then_some(())
    });
    let metrics = monitor.metrics();
    assert!(!metrics.contains("chainscope_agent_memory_refused_files 0\n"), "{metrics}");
    for stage in ["discovery", "memory watcher", "memory symbolizer"] {
        assert!(age_of(&metrics, stage) < 5.0, "{metrics}");
    }
    assert_eq!(monitor.live(), Ok(()));
    agent.shutdown(TIMEOUT).unwrap();
    drop(file_system);
    drop(mapped);
    until_true("the control group to be empty", || fs::remove_dir(&group).is_ok());
}
