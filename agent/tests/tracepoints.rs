//! Events of the tracepoint probe with the types of a contract. Needs root, a kernel with BTF and g++; fails where these are
//! missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use chainscope_agent::trace::{AttachError, Observed, ProbeSource};
use chainscope_ebpf::trace::TraceOptions;
use chainscope_testing::{
    fakenode::{FakeNode, Flavour, build},
    program::compile,
    wait::WAIT_TIMEOUT,
};
use chainscope_trace::{Event, Incomplete, Pattern, Polled, Source, Value};
use chainscope_usdt::built_in;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn attach(observed: &Observed, patterns: &[&str]) -> Result<ProbeSource, AttachError> {
    let patterns: Vec<Pattern> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
    ProbeSource::attach(observed, &patterns, built_in(), &TraceOptions::default())
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
            Polled::Idle { .. } => {}
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
    // Detached: nothing is counted any more.
    node.fire("mempool:rejected");
    assert_eq!(source.accounting().total().hits, 4);
}

#[test]
fn selected_tracepoints_of_a_process_until_it_ends() {
    let node = FakeNode::run(folder(), Flavour::Core(31));
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

/// A program that loads a library while it runs.
struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn start() -> Self {
        let program = plugin_source("plugin_host", &["-O2", "-ldl"]);
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
    let mut node = FakeNode::run(folder(), Flavour::Core(31));
    let patterns: Vec<Pattern> = ["mempool:added", "net:inbound_message"].map(|name| name.parse().unwrap()).into();
    let options = TraceOptions { max_payload: 0, ..TraceOptions::default() };
    let mut source = ProbeSource::attach(&Observed::Process(node.pid()), &patterns, built_in(), &options).unwrap();
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
