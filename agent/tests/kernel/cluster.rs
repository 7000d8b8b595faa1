//! The agent on a cluster: the test creates cgroups of pods, and the operator is in memory.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use chainscope_agent::{Agent, ClusterConfig, Config, Running, Watch};
use chainscope_proto::v1::{
    ConnectionState, MemoryOptions, NetworkOptions, ObservedPod, PodState, connection_event::Event,
    observed_pod::Identity,
};
use chainscope_testing::{free_port, wait::until_true};

use crate::{
    common::{
        Stage, TIMEOUT, capture,
        session::{identity, messages, play, steps},
        session_out, sessions,
        test_process::TestProcess,
    },
    operator::Operator,
};

const NODE: &str = "default/octez";

/// A pod with one container, as the kubelet creates it in a cgroup hierarchy.
struct Pod {
    uid: String,
    container: String,
    group: PathBuf,
    program: PathBuf,
}

/// The name of the node's executable, unique per test because agents of other tests scan the same host.
fn program(stage: &Stage) -> String {
    let name = stage.dir.path().file_name().unwrap().to_str().unwrap();
    format!("node-{}", name.trim_start_matches(".tmp"))
}

impl Pod {
    fn new(stage: &Stage) -> Self {
        let uid = uid();
        let container = format!("{}{}", uid.replace('-', ""), "0".repeat(32));
        let link = stage.dir.path().join(program(stage));
        if !link.exists() {
            std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
        }
        let group = make_group(&format!("kubepods/pod{uid}/{container}"));
        Self { uid, container, group, program: link }
    }

    fn start(&self) -> TestProcess {
        TestProcess::start_in(&self.group, &self.program)
    }

    /// The first shell of a container.
    fn shell(&self) -> Shell {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec cat"]).arg(&self.group);
        Shell(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn observed(&self, identity: Identity) -> ObservedPod {
        ObservedPod {
            node: NODE.to_owned(),
            node_generation: 1,
            uid: self.uid.clone(),
            namespace: "tezos".to_owned(),
            name: "octez-0".to_owned(),
            container: "octez-node".to_owned(),
            container_ids: vec![self.container.clone()],
            process: self.program.file_name().unwrap().to_str().unwrap().to_owned(),
            p2p_port: Some(9732),
            identity: Some(identity),
            network: Some(NetworkOptions { enabled: true, plain_only: false }),
            memory: None,
            logs: None,
            trace: None,
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Killed processes may still be in it.
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir(&self.group).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let _ = self.group.parent().map(std::fs::remove_dir);
    }
}

struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn uid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// Creates it in the first hierarchy that is writable: version 1, hybrid, or 2.
pub(crate) fn make_group(path: &str) -> PathBuf {
    let tried: Vec<PathBuf> = ["pids", "systemd", "freezer", "unified", ""]
        .iter()
        .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy))
        .filter(|hierarchy| hierarchy.join("cgroup.procs").exists())
        .collect();
    let made = tried.iter().map(|hierarchy| hierarchy.join(path)).find(|group| std::fs::create_dir_all(group).is_ok());
    made.unwrap_or_else(|| panic!("none of the hierarchies takes a control group: {tried:?}"))
}

fn start(stage: &Stage, operator: SocketAddr, hold: Duration) -> Running {
    let cluster = ClusterConfig {
        operator: chainscope_tls::Remote::new(&format!("http://{operator}"), None).unwrap(),
        token_file: None,
        watch: Watch { process_names: [program(stage)].into(), ports: [].into(), hold },
    };
    let config = Config {
        capture: capture(),
        ring_bytes: 8 << 20,
        cluster: Some(cluster),
        ..Config::new(stage.dir.path().join("data"), Vec::new())
    };
    Agent::start(config, stage.collector.link()).unwrap()
}

fn in_file(stage: &Stage) -> Identity {
    Identity::IdentityPath(stage.identity.to_str().unwrap().to_owned())
}

/// Waits until the kernel captures the traffic of the node's process.
fn captured(stage: &Stage) {
    stage.collector.wait("the beginning", |delivered| {
        delivered.target_events(NODE).iter().any(|event| event.event == "found").then_some(())
    });
}

/// The value of a metric without labels.
fn metric(agent: &Running, name: &str) -> f64 {
    let metrics = agent.monitor().metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn traffic_before_the_configuration_is_recorded_from_its_first_byte() {
    let stage = Stage::new();
    let operator = Operator::start(Vec::new());
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    let pod = Pod::new(&stage);
    let mut node = pod.start();
    // At once, before any scan.
    session_out(&mut node);
    until_true("it to be held", || metric(&agent, "chainscope_agent_held_processes") == 1.0);
    assert!(stage.collector.now().nodes().is_empty());
    operator.configure(vec![pod.observed(in_file(&stage))]);
    stage.whole_sessions(NODE, 1);
    // Later messages too.
    session_out(&mut node);
    stage.whole_sessions(NODE, 2);
    let report = operator.wait("the report", &pod.uid, |pod| (pod.messages > 0).then(|| pod.clone()));
    assert_eq!((report.state(), report.pid, report.process_starts), (PodState::Recording, node.pid(), 1));
    assert!(!report.peer_id.is_empty() && report.identity_error.is_empty(), "{report:?}");
    assert_eq!(metric(&agent, "chainscope_agent_discarded_processes_total"), 0.0);
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    let account = delivered.account(NODE).unwrap();
    let dropped: u64 = account.bytes_dropped.iter().map(|reason| reason.count).sum();
    assert_eq!((dropped, account.bytes_in_ring), (0, 0), "{account:?}");
}

#[test]
fn a_node_that_is_never_configured_is_dropped_and_counted() {
    let stage = Stage::new();
    let operator = Operator::start(Vec::new());
    // Longer than it takes from the start of the process until it sends.
    let agent = start(&stage, operator.address, Duration::from_secs(3));
    let pod = Pod::new(&stage);
    let mut node = pod.start();
    session_out(&mut node);
    until_true("it to be dropped", || metric(&agent, "chainscope_agent_discarded_processes_total") == 1.0);
    until_true("the count", || metric(&agent, "chainscope_agent_held_processes") == 0.0);
    assert!(metric(&agent, "chainscope_agent_discarded_bytes_total") > 0.0);
    // Configured now: recorded from here on.
    operator.configure(vec![pod.observed(in_file(&stage))]);
    operator.wait("the target", &pod.uid, |pod| (pod.state() == PodState::Recording).then_some(()));
    captured(&stage);
    session_out(&mut node);
    stage.whole_sessions(NODE, 1);
    agent.shutdown(TIMEOUT).unwrap();
    assert_eq!(sessions(&stage.collector.now(), NODE), 1, "not the first one");
}

#[test]
fn a_node_without_network_recording_is_profiled() {
    let stage = Stage::new();
    let pod = Pod::new(&stage);
    let observed = |network| ObservedPod {
        network: Some(NetworkOptions { enabled: network, plain_only: false }),
        memory: Some(MemoryOptions { enabled: true }),
        ..pod.observed(in_file(&stage))
    };
    let operator = Operator::start(vec![observed(false)]);
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    let mut node = pod.start();
    let report = operator
        .wait("the profile", &pod.uid, |report| (report.state() == PodState::Profiling).then(|| report.clone()));
    assert_eq!((report.pid, report.process_starts, report.bytes_seen), (node.pid(), 1, 0));
    stage.collector.wait("memory", |delivered| delivered.profiles(NODE).next().map(drop));
    session_out(&mut node);
    // Enabled now: recorded from here on.
    operator.configure(vec![observed(true)]);
    captured(&stage);
    session_out(&mut node);
    stage.whole_sessions(NODE, 1);
    operator.wait("the target", &pod.uid, |report| (report.state() == PodState::Recording).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();
    assert_eq!(sessions(&stage.collector.now(), NODE), 1, "not the first one");
}

#[test]
fn restarts_inside_the_container_are_followed() {
    let stage = Stage::new();
    let pod = Pod::new(&stage);
    let operator = Operator::start(vec![pod.observed(in_file(&stage))]);
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    operator.wait("no container", &pod.uid, |pod| (pod.state() == PodState::WaitingForContainer).then_some(()));
    let shell = pod.shell();
    for run in 1..=2 {
        operator.wait("a container", &pod.uid, |pod| (pod.state() == PodState::WaitingForProcess).then_some(()));
        let mut node = pod.start();
        session_out(&mut node);
        stage.whole_sessions(NODE, run);
        let report = operator.wait("the process", &pod.uid, |report| {
            (report.pid == node.pid() && report.messages as usize >= run * messages().len()).then(|| report.clone())
        });
        assert_eq!((report.state(), report.process_starts as usize), (PodState::Recording, run));
        assert!(report.process_started_ns > 0 && report.last_record_ns > report.process_started_ns, "{report:?}");
        node.stop();
    }
    operator
        .wait("the end", &pod.uid, |pod| (pod.pid == 0 && pod.state() == PodState::WaitingForProcess).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();
    drop(shell);
}

#[test]
fn without_the_operator_a_restarted_agent_uses_identities_from_files() {
    let stage = Stage::new();
    let (with_file, with_secret) = (Pod::new(&stage), Pod::new(&stage));
    let pods = || {
        let secret = with_secret.observed(Identity::IdentityJson(identity().into_bytes()));
        vec![with_file.observed(in_file(&stage)), ObservedPod { node: "default/secret".to_owned(), ..secret }]
    };
    let operator = Operator::start(pods());
    let address = operator.address;
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    let mut nodes = [with_file.start(), with_secret.start()];
    for node in &mut nodes {
        session_out(node);
    }
    stage.whole_sessions(NODE, 1);
    stage.whole_sessions("default/secret", 1);
    agent.shutdown(TIMEOUT).unwrap();
    drop(operator);
    let kept = std::fs::read(stage.dir.path().join("data/agent/configuration")).unwrap();
    let secret = serde_json::from_str::<serde_json::Value>(&identity()).unwrap()["secret_key"].clone();
    let secret = secret.as_str().unwrap().as_bytes();
    assert!(!kept.windows(secret.len()).any(|window| window == secret));

    let agent = start(&stage, address, Duration::from_secs(2));
    assert_eq!(agent.monitor().ready(), Ok(()), "the kept configuration is enough");
    for node in &mut nodes {
        session_out(node);
    }
    stage.whole_sessions(NODE, 2);
    stage.collector.wait("what is missing", |delivered| {
        delivered.connection_events("default/secret").iter().find_map(|(_, event)| match event {
            Event::StateChanged(changed) if changed.state() == ConnectionState::Undecryptable => {
                assert!(changed.reason.contains("the operator has not been reached"), "{changed:?}");
                Some(())
            }
            _ => None,
        })
    });
    let operator = Operator::start_at(address, pods());
    operator.wait("the identity", &with_secret.uid, |pod| (!pod.peer_id.is_empty()).then_some(()));
    session_out(&mut nodes[1]);
    stage.whole_sessions("default/secret", 2);
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn two_pods_listen_on_the_same_port_in_two_namespaces() {
    let stage = Stage::new();
    let (one, other) = (Pod::new(&stage), Pod::new(&stage));
    let port = free_port();
    let observed = |pod: &Pod, node: &str| ObservedPod {
        node: node.to_owned(),
        p2p_port: Some(port.into()),
        ..pod.observed(in_file(&stage))
    };
    let operator = Operator::start(vec![observed(&one, "default/one"), observed(&other, "default/other")]);
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    for (pod, node) in [(&one, "default/one"), (&other, "default/other")] {
        let mut inside = TestProcess::start_in_apart(&pod.group, &pod.program);
        inside.listen(port);
        let mut peer = TestProcess::start_beside(&inside);
        let outside = peer.connect(port);
        let connection = inside.accept(1);
        play(&mut inside, connection, &mut (&mut peer, outside), &steps());
        stage.whole_sessions(node, 1);
    }
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(delivered.nodes(), ["default/one", "default/other"]);
    assert!([1, 1] == [sessions(&delivered, "default/one"), sessions(&delivered, "default/other")]);
}

#[test]
fn a_node_that_is_deleted_and_made_again_is_recorded_again() {
    let stage = Stage::new();
    let pod = Pod::new(&stage);
    let operator = Operator::start(vec![pod.observed(in_file(&stage))]);
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    let mut node = pod.start();
    session_out(&mut node);
    stage.whole_sessions(NODE, 1);
    operator.configure(Vec::new());
    stage.collector.wait("its release", |delivered| {
        delivered.target_events(NODE).iter().any(|event| event.event == "released").then_some(())
    });
    session_out(&mut node);
    operator.configure(vec![pod.observed(in_file(&stage))]);
    stage.collector.wait("the target again", |delivered| {
        let begun = |event: &&&chainscope_proto::v1::TargetEvent| matches!(event.event.as_str(), "found" | "started");
        (delivered.target_events(NODE).iter().filter(begun).count() == 2).then_some(())
    });
    session_out(&mut node);
    stage.whole_sessions(NODE, 2);
    agent.shutdown(TIMEOUT).unwrap();
    assert_eq!(sessions(&stage.collector.now(), NODE), 2, "nothing of the time between");
}

#[test]
fn a_pod_that_lies_about_its_container_gets_nothing() {
    let stage = Stage::new();
    let (honest, liar) = (Pod::new(&stage), Pod::new(&stage));
    let lie = ObservedPod {
        node: "default/liar".to_owned(),
        container_ids: vec![honest.container.clone()],
        ..liar.observed(in_file(&stage))
    };
    let operator = Operator::start(vec![honest.observed(in_file(&stage)), lie]);
    let agent = start(&stage, operator.address, Duration::from_secs(600));
    until_true("the configuration", || agent.monitor().ready().is_ok());
    let mut node = honest.start();
    session_out(&mut node);
    stage.whole_sessions(NODE, 1);
    operator.wait("what the liar has", &liar.uid, |pod| (pod.state() == PodState::WaitingForContainer).then_some(()));
    agent.shutdown(TIMEOUT).unwrap();
    assert_eq!(stage.collector.now().nodes(), [NODE]);
}
