//! Events of the tracepoint probe with the types of a contract. Needs root, a kernel with BTF and g++; fails where these are
//! missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use chainscope_agent::trace::{AttachError, Observed, ProbeSource, Wanted};
use chainscope_ebpf::trace::TraceOptions;
use chainscope_testing::{
    fakenode::{FakeNode, Flavour, build},
    program::compile,
    wait::{WAIT_TIMEOUT, until_true},
};
use chainscope_trace::{Event, Incomplete, Pattern, Polled, Source, Value};
use chainscope_usdt::built_in;

const QUEUE_BYTES: u64 = 64 << 20;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn attach(observed: &Observed, patterns: &[&str]) -> Result<ProbeSource, AttachError> {
    ProbeSource::attach(observed, wanted(patterns), &TraceOptions::default(), QUEUE_BYTES)
}

fn wanted(patterns: &[&str]) -> Wanted {
    let patterns: Vec<Pattern> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
    Wanted { patterns, contracts: built_in().to_vec(), is_contract_named: false }
}

/// Polls up to a number of events.
fn collect(source: &mut ProbeSource, count: usize) -> Vec<Event> {
    let (mut events, deadline) = (Vec::new(), Instant::now() + WAIT_TIMEOUT);
    while events.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} events", events.len());
        if let Polled::Event(event) = source.poll(Duration::from_millis(50)).unwrap() {
            events.push(event);
        }
    }
    events
}

fn end(source: &mut ProbeSource) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "no end");
        match source.poll(Duration::from_millis(50)).unwrap() {
            Polled::End => return,
            Polled::Idle { .. } | Polled::Process(_) => {}
            Polled::Event(event) => panic!("{event:?}"),
        }
    }
}

#[test]
fn every_tracepoint_of_a_file() {
    let program = build(folder(), Flavour::Tapyrus);
    let mut source = attach(&Observed::File(program.clone()), &[]).unwrap();
    assert_eq!(source.skipped(), []);
    let mut node = FakeNode::start(&program);
    let fired =
        ["net:inbound_message", "coin_selection:change_info#1", "coin_selection:change_info#2", "mempool:rejected"]
            .map(|tracepoint| node.fire(tracepoint));
    let events = collect(&mut source, fired.len());
    for (number, (event, fired)) in events.iter().zip(&fired).enumerate() {
        assert_eq!(event.attachment.full_name(), fired.tracepoint);
        assert_eq!((event.sequence, event.pid, event.tid), (number as u64, node.pid(), fired.tid));
        assert!((fired.before_ns..=fired.after_ns).contains(&event.time.monotonic_ns), "{fired:?} {:?}", event.time);
        assert_eq!(event.attachment.contract.as_deref(), Some("tapyrus"));
    }
    assert_eq!(events[0].get("peer_id"), Some(&Value::Signed(7)));
    assert_eq!(events[0].get("address"), Some(&Value::text("203.0.113.7:2357")));
    assert_eq!(events[0].get("size"), Some(&Value::Unsigned(8)));
    assert!(
        matches!(events[0].get("payload"), Some(Value::Bytes { bytes, claimed: 8, incomplete: None }) if bytes.len() == 8)
    );
    // One location passes the value, the other its address.
    assert_eq!(events[1].get("value"), Some(&Value::Signed(500)));
    assert_eq!(events[2].get("value"), Some(&Value::Signed(12345)));
    assert_eq!(events[3].get("reason"), Some(&Value::text("min-fee-not-met")));

    source.stop();
    end(&mut source);
    let accounting = source.accounting();
    assert_eq!(accounting.tracepoints.len(), 15);
    let total = accounting.total();
    assert_eq!((total.hits, total.delivered, total.residual()), (4, 4, 0));
    // Detached: nothing is counted any more. A process that another test starts has copies of this one's descriptors, and so keeps
    // the kernel from detaching, until it executes its program.
    until_true("the kernel to have detached", || {
        let before = source.accounting().total().hits;
        node.fire("mempool:rejected");
        source.accounting().total().hits == before
    });
}

#[test]
fn selected_tracepoints_of_a_process_until_it_ends() {
    let own = tempfile::tempdir().unwrap();
    let node = FakeNode::run(own.path(), Flavour::Core(31));
    let mut source = attach(&Observed::Process(node.pid()), &["net:{inbound,outbound}_message", "mempool:*"]).unwrap();
    let mut attached: Vec<String> = source.attachments().iter().map(|attachment| attachment.full_name()).collect();
    attached.sort_unstable();
    let expected = ["mempool:added", "mempool:rejected", "mempool:removed", "mempool:replaced"];
    assert_eq!(attached, [&expected[..], &["net:inbound_message", "net:outbound_message"]].concat());
    assert!(matches!(source.poll(Duration::ZERO).unwrap(), Polled::Idle { monotonic_ns } if monotonic_ns > 0));
    drop(node);
    end(&mut source);
}

#[test]
fn nothing_to_attach_to() {
    let program = build(folder(), Flavour::Rippled);
    let error = attach(&Observed::File(program), &["net:*"]).unwrap_err();
    assert_eq!(error.to_string(), "no tracepoint to attach to matches net:*");
    let missing = attach(&Observed::File("/nonexistent".into()), &[]).unwrap_err().to_string();
    assert_eq!(missing, "/nonexistent: No such file or directory (os error 2)");
    assert!(matches!(attach(&Observed::Process(u32::MAX), &[]).unwrap_err(), AttachError::Process(_)));
}

/// A program that executes commands, such as to load a library.
struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn start() -> Self {
        Self::run(&plugin_source("plugin_host", &["-O2", "-ldl"]))
    }

    fn run(program: &Path) -> Self {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut host = Self { child, input, output };
        host.expect("ready");
        host
    }

    fn execute(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.expect("done");
    }

    fn expect(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn plugin_source(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/tracepoint_plugin.c");
    compile("gcc", &source, folder(), name, flags)
}

#[test]
fn libraries_that_are_loaded_later() {
    let library = plugin_source("libplugin.so", &["-O2", "-DPLUGIN", "-fPIC", "-shared"]);
    let load = format!("load {}", library.display());
    let mut host = Host::start();
    let mut source = attach(&Observed::Process(host.child.id()), &["host:*", "plugin:*"]).unwrap();
    host.execute("host 1");
    let names = |source: &ProbeSource| {
        let attached = source.attachments();
        attached.iter().map(|attachment| attachment.full_name()).collect::<Vec<_>>()
    };
    assert_eq!(names(&source), ["host:fired"]);
    host.execute(&load);
    let mut events = Vec::new();
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !names(&source).contains(&"plugin:fired".to_owned()) {
        assert!(Instant::now() < deadline, "not attached: {:?}", source.skipped());
        if let Polled::Event(event) = source.poll(Duration::from_millis(50)).unwrap() {
            events.push(event);
        }
    }
    host.execute("plugin 2");
    // Mapped again, perhaps elsewhere: it remains attached, once.
    host.execute("unload");
    host.execute(&load);
    host.execute("plugin 3");
    host.execute("host 4");
    let wanted = 4 - events.len();
    events.extend(collect(&mut source, wanted));
    let found: Vec<_> = events.iter().map(|event| (event.attachment.name.as_str(), &event.arguments[0])).collect();
    let number = Value::Signed;
    let expected = [("fired", &number(1)), ("fired", &number(2)), ("fired", &number(3)), ("fired", &number(4))];
    assert_eq!(found, expected);
    let providers: Vec<&str> = events.iter().map(|event| event.attachment.provider.as_str()).collect();
    assert_eq!(providers, ["host", "plugin", "plugin", "host"]);
    source.stop();
    end(&mut source);
    assert_eq!(source.accounting().total().hits, 4);
    assert_eq!(source.skipped(), []);
}

/// Their limit is not that of hashes.
#[test]
fn hashes_are_whole_without_payloads() {
    let own = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(own.path(), Flavour::Core(31));
    let wanted = wanted(&["mempool:added", "net:inbound_message"]);
    let options = TraceOptions { max_payload: 0, ..TraceOptions::default() };
    let mut source = ProbeSource::attach(&Observed::Process(node.pid()), wanted, &options, QUEUE_BYTES).unwrap();
    node.fire("mempool:added");
    node.fire("net:inbound_message size=8");
    let events = collect(&mut source, 2);
    let hash = events[0].get("txid");
    assert!(
        matches!(hash, Some(Value::Bytes { bytes, claimed: 32, incomplete: None }) if bytes.len() == 32),
        "{hash:?}"
    );
    let expected = Value::Bytes { bytes: "".into(), claimed: 8, incomplete: Some(Incomplete::Limit) };
    assert_eq!(events[1].get("payload"), Some(&expected));
}

/// While the queue is full the ring is not read: the loss is that of the ring, and is exact.
#[test]
fn a_full_queue_leaves_the_loss_to_the_ring() {
    const HITS: u64 = 20_000;
    let own = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(own.path(), Flavour::Core(31));
    let options = TraceOptions { ring_bytes: 64 << 10, wake_bytes: 4 << 10, ..TraceOptions::default() };
    let mut source =
        ProbeSource::attach(&Observed::Process(node.pid()), wanted(&["mempool:removed"]), &options, 1).unwrap();
    // Nobody polls: after its first reading the queue is full.
    node.execute(&format!("repeat {HITS} mempool:removed quiet=1"));
    let before = source.accounting().total();
    assert_eq!((before.hits, before.delivered), (HITS, 0));
    assert!(before.all_dropped() > HITS / 2, "{before:?}");
    source.stop();
    let (mut events, deadline) = (0, Instant::now() + WAIT_TIMEOUT);
    loop {
        assert!(Instant::now() < deadline, "no end");
        match source.poll(Duration::from_millis(50)).unwrap() {
            Polled::End => break,
            Polled::Idle { .. } | Polled::Process(_) => {}
            Polled::Event(_) => events += 1,
        }
    }
    let total = source.accounting().total();
    assert_eq!((total.hits, total.delivered, total.residual()), (HITS, events, 0));
    assert_eq!(total.all_dropped(), before.all_dropped());
}

/// Semaphores that the kernel does not increment, and says nothing of; and what cannot be attached at all.
#[test]
fn semaphores_that_cannot_be_incremented() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/tracepoint_semaphores.c");
    let program = compile("gcc", &source, folder(), "tracepoint_semaphores", &["-O2"]);
    let mut host = Host::run(&program);
    let mut source = attach(&Observed::Process(host.child.id()), &["{plain,guarded,constant,data}:*"]).unwrap();
    let skipped: Vec<(&str, &str)> =
        source.skipped().iter().map(|one| (one.tracepoint.as_str(), one.reason.as_str())).collect();
    let [constant, data, guarded] = skipped[..] else { panic!("{skipped:?}") };
    assert_eq!(constant, ("constant:fired", "its semaphore is in no writable segment"));
    assert_eq!(data, ("data:fired", "its address is in no executable segment"));
    assert_eq!(guarded.0, "guarded:fired");
    let reason = guarded.1.strip_prefix("its semaphore is 0 all the same: the memory at 0x");
    assert!(reason.is_some_and(|rest| rest.ends_with(" of the process is read-only")), "{guarded:?}");
    // They are right: of the four only one has an event.
    host.execute("");
    let events = collect(&mut source, 1);
    source.stop();
    end(&mut source);
    assert_eq!(events[0].attachment.full_name(), "plain:fired");
    assert_eq!(source.accounting().total().hits, 1);
    // Of a file it is not known which processes there will be.
    let of_file = attach(&Observed::File(program), &["guarded:*"]).unwrap();
    assert_eq!(of_file.skipped(), []);
}
