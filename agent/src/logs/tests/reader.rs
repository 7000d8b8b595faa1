//! The pillar with its threads: targets that start and end, and files that cannot be read.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    sync::Arc,
};

use chainscope_proto::v1::record::Kind;
use chainscope_spec::{LogSources, Redaction};
use chainscope_testing::{logs, wait};

use super::TestSink;
use crate::{
    config::{Config, ContainerLogs, NodeConfig, NodeLogs},
    delivery::RecordStreams,
    folder::Folder,
    logs::LogsPillar,
    pillar::Pillar as _,
    status::ActiveSink,
    targets::{
        Assignment, ContainerId, ContainerLocation, Inbox, Logs, Observe, Owner, PodUid, ProcessFacts, StartCause,
        StartedTarget, TargetChange, identity::Source,
    },
};

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const UID: &str = "8d3f2a9c-1111-2222-3333-444455556666";

struct Stage {
    dir: tempfile::TempDir,
    sink: TestSink,
    pillar: LogsPillar,
    inbox: Box<dyn Inbox>,
}

impl Stage {
    fn new(files: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = |file: &&str| {
            let sources = LogSources { file: Some(dir.path().join(file)), syslog: None };
            let logs = NodeLogs { redact: Redaction::default(), sources };
            NodeConfig { name: (*file).to_owned(), logs: Some(logs), ..NodeConfig::default() }
        };
        let mut config = Config::new(dir.path().join("data"), files.iter().map(node).collect());
        config.container_logs = ContainerLogs {
            pods: dir.path().join("pods"),
            docker: dir.path().join("docker"),
            links: dir.path().join("links"),
        };
        let folder = Folder::open(&config.data_dir).unwrap();
        let sink = TestSink::default();
        let (pillar, inbox) = LogsPillar::start(&config, &folder, sink.clone()).unwrap();
        Self { dir, sink, pillar, inbox }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn expect(&self, node: &str, texts: &[&str]) {
        wait::until_true(&format!("{texts:?}"), || self.sink.texts(node) == texts);
    }

    fn sources(&self, node: &str) -> (i64, i64, i64) {
        let counts = self.pillar.figures.sources_of(node);
        (counts.followed, counts.waiting, counts.failed)
    }

    #[track_caller]
    fn wait_sources(&self, node: &str, expected: (i64, i64, i64)) {
        wait::until_true(&format!("{expected:?} sources"), || self.sources(node) == expected);
    }
}

fn target(pid: u32, pod_dir: Option<&str>, patterns: &[&str]) -> TargetChange {
    let location =
        ContainerLocation { container: ContainerId::parse(ID).unwrap(), pod: pod_dir.and_then(|_| PodUid::parse(UID)) };
    let facts = ProcessFacts {
        pid,
        start: 1,
        exe: "/usr/bin/octez-node".into(),
        netns: 1,
        container: Some(location.container.clone()),
        location: Some(location),
        parent: 1,
        argument: String::new(),
        listens: [].into(),
    };
    TargetChange::Started(Arc::new(StartedTarget {
        facts,
        owner: Owner::Entry(0),
        assignment: assignment(pod_dir, patterns),
        cause: StartCause::Found,
        was_held: false,
        has_exited: false,
    }))
}

fn assignment(pod_dir: Option<&str>, patterns: &[&str]) -> Assignment {
    let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    let logs = Logs { redact: Redaction::new(&patterns).unwrap(), pod_dir: pod_dir.map(Into::into) };
    Assignment {
        node: "node".into(),
        label: "default/octez-0".into(),
        p2p_port: None,
        identity: Source::Detect,
        observe: Observe { network: None, memory: false, logs: Some(logs), ..Observe::default() },
    }
}

#[test]
fn the_output_of_a_container_is_read_from_its_first_to_its_last_line() {
    let mut stage = Stage::new(&[]);
    let line = |text: &str| format!("2026-01-02T00:00:00.000000001Z stdout F {text}\n");
    stage.write("pods/default_octez-0_uid/node/0.log", &line("before discovery"));
    stage.inbox.put(&target(7, Some("default_octez-0_uid/node"), &["secret"])).unwrap();
    stage.expect("node", &["before discovery"]);
    stage.write("pods/default_octez-0_uid/node/0.log", &line("a secret"));
    stage.expect("node", &["before discovery", "a [redacted]"]);
    // The patterns change.
    let other = assignment(Some("default_octez-0_uid/node"), &["key"]);
    stage.inbox.put(&TargetChange::Changed(7, Arc::new(other))).unwrap();
    // Commands are executed in order: once the next one is, the patterns have changed.
    stage.inbox.put(&target(8, Some("default_other_uid/node"), &[])).unwrap();
    stage.wait_sources("node", (2, 0, 1));
    stage.inbox.put(&TargetChange::Released(8)).unwrap();
    stage.wait_sources("node", (1, 0, 0));
    stage.sink.set_space(Some(0));
    stage.write("pods/default_octez-0_uid/node/0.log", &line("a key"));
    stage.wait_sources("node", (1, 1, 0));
    // It exits while its last line waits for space.
    stage.inbox.put(&TargetChange::Exited(7)).unwrap();
    stage.sink.set_space(None);
    stage.expect("node", &["before discovery", "a [redacted]", "a [redacted]"]);
    stage.wait_sources("node", (0, 0, 0));
    assert!(stage.sink.records().iter().all(|record| record.target == "default/octez-0"));
    stage.pillar.drain().unwrap();
}

#[test]
fn recording_may_begin_and_end_while_the_process_runs() {
    let mut stage = Stage::new(&[]);
    stage.write("pods/default_octez-0_uid/node/0.log", "2026-01-02T00:00:00.000000001Z stdout F one\n");
    let TargetChange::Started(started) = target(7, Some("default_octez-0_uid/node"), &[]) else { panic!() };
    let enabled = started.assignment.clone();
    let disabled = Assignment { observe: Observe { memory: true, ..Observe::default() }, ..enabled.clone() };
    let change = |assignment: &Assignment| TargetChange::Changed(7, Arc::new(assignment.clone()));
    let started = StartedTarget { assignment: disabled.clone(), ..(*started).clone() };
    stage.inbox.put(&TargetChange::Started(Arc::new(started))).unwrap();
    stage.inbox.put(&change(&enabled)).unwrap();
    stage.expect("node", &["one"]);
    stage.wait_sources("node", (1, 0, 0));
    stage.inbox.put(&change(&disabled)).unwrap();
    stage.wait_sources("node", (0, 0, 0));
    stage.pillar.drain().unwrap();
}

#[test]
fn a_released_process_is_not_read_any_more() {
    let mut stage = Stage::new(&[]);
    let line =
        |text: &str| format!("{{\"log\":\"{text}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T00:00:00Z\"}}\n");
    let path = format!("docker/{ID}/{ID}-json.log");
    stage.write(&path, &line("one"));
    // Two processes of one container are one source.
    stage.inbox.put(&target(7, None, &[])).unwrap();
    stage.inbox.put(&target(8, None, &[])).unwrap();
    stage.expect("node", &["one"]);
    stage.wait_sources("node", (1, 0, 0));
    stage.inbox.put(&TargetChange::Released(7)).unwrap();
    stage.write(&path, &line("two"));
    stage.expect("node", &["one", "two"]);
    stage.inbox.put(&TargetChange::Released(8)).unwrap();
    stage.wait_sources("node", (0, 0, 0));
    stage.pillar.drain().unwrap();
}

#[test]
fn a_source_that_cannot_be_read_delays_no_other() {
    let stage = Stage::new(&["missing", "pipe", "file"]);
    let pipe = stage.dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    stage.write("file", "one\n");
    stage.expect("file", &["one"]);
    stage.wait_sources("pipe", (1, 0, 1));
    stage.wait_sources("missing", (1, 0, 1));
    stage.write("missing", "late\n");
    stage.expect("missing", &["late"]);
    stage.wait_sources("missing", (1, 0, 0));
}

#[test]
fn positions_are_kept_over_a_restart() {
    let mut stage = Stage::new(&["file"]);
    stage.write("file", "one\ntwo\n");
    stage.expect("file", &["one", "two"]);
    stage.pillar.drain().unwrap();
    let stored = fs::read_to_string(stage.dir.path().join("data/agent/log_positions")).unwrap();
    assert!(stored.contains("\"position\":8"), "{stored}");
}

#[test]
fn a_file_waits_for_a_full_queue_and_for_a_full_spool() {
    for spool_bytes in [None, Some(1 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(&dir.path().join("data")).unwrap();
        let streams = RecordStreams::open(&folder, 256 << 10, spool_bytes, ["node"]).unwrap();
        streams.begin_session(&[], &["node".to_owned()]);
        let path = dir.path().join("node.log");
        let lines: Vec<String> = logs::lines(0..logs::LINES).map(|line| line.octez()).collect();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let sources = LogSources { file: Some(path), syslog: None };
        let node = NodeConfig {
            name: "node".to_owned(),
            logs: Some(NodeLogs { redact: Redaction::default(), sources }),
            ..NodeConfig::default()
        };
        let config = Config::new(dir.path().join("data"), vec![node]);
        let sink = ActiveSink { streams: streams.clone(), active: Arc::default() };
        let (mut pillar, _inbox) = LogsPillar::start(&config, &folder, sink).unwrap();
        wait::until_true("the file to wait", || pillar.figures.sources_of("node").waiting == 1);
        let mut delivered = Vec::new();
        wait::until_true("all lines", || {
            while let Some(batch) = streams.next_batch() {
                let next = batch.first_sequence + batch.records.len() as u64;
                delivered.extend(batch.records);
                streams.acknowledge("node", next).unwrap();
            }
            delivered.len() >= lines.len()
        });
        let texts = delivered.into_iter().map(|record| match record.kind {
            Some(Kind::LogMessage(message)) => String::from_utf8(message.raw).unwrap(),
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), lines);
        pillar.drain().unwrap();
        streams.close();
    }
}
