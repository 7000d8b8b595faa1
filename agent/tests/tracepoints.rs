//! Events of the tracepoint probe with the types of a contract. Needs root, a kernel with BTF and g++; fails where these are
//! missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use chainscope_agent::trace::{AttachError, Observed, ProbeSource};
use chainscope_ebpf::trace::TraceOptions;
use chainscope_testing::wait::WAIT_TIMEOUT;
use chainscope_trace::{Event, Pattern, Polled, Source, Value};
use chainscope_usdt::built_in;

fn program(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/tracepoint_nodes.cc");
    let flags: Vec<&str> = ["-std=c++20", "-O2"].iter().chain(flags).copied().collect();
    chainscope_testing::program::compile("g++", &source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, &flags)
}

fn run(program: &Path) -> Child {
    Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
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
    let path = program("tapyrusd", &["-DTAPYRUS"]);
    let mut source = attach(&Observed::File(path.clone()), &[]).unwrap();
    assert_eq!(source.skipped(), []);
    let mut first = run(&path);
    let events = collect(&mut source, 17);
    let names: Vec<String> = events.iter().map(|event| event.attachment.full_name()).collect();
    assert_eq!(names[0], "net:inbound_message");
    assert_eq!(names[16], "mempool:rejected");
    assert!(events.iter().all(|event| event.attachment.contract.as_deref() == Some("tapyrus")));
    assert!(events.iter().all(|event| event.pid == first.id() && event.comm == "tapyrusd"));
    assert!(events.iter().map(|event| event.sequence).eq(0..17));

    let unreadable = Value::Unreadable { address: 0 };
    assert_eq!(events[0].get("peer_id"), Some(&Value::Signed(0)));
    assert_eq!(events[0].get("address"), Some(&unreadable));
    assert_eq!(events[0].get("size"), Some(&Value::Unsigned(0)));
    assert_eq!(events[0].get("payload"), Some(&Value::bytes("")));
    assert_eq!(events[2].get("hash"), Some(&unreadable));
    assert_eq!(events[3].arguments[4], Value::Bool(false));
    // Two locations: one passes the value, the other its address.
    let changes: Vec<&Event> = events.iter().filter(|event| event.attachment.name == "change_info").collect();
    assert_eq!(changes.len(), 2);
    assert!(changes.iter().all(|event| event.get("value") == Some(&Value::Signed(0))));

    source.stop();
    end(&mut source);
    let accounting = source.accounting();
    assert_eq!(accounting.tracepoints.len(), 15);
    let total = accounting.total();
    assert_eq!((total.hits, total.delivered, total.residual()), (17, 17, 0));
    // Detached: nothing is counted any more.
    let mut second = run(&path);
    for process in [&mut first, &mut second] {
        drop(process.stdin.take());
        process.wait().unwrap();
    }
    assert_eq!(source.accounting().total().hits, 17);
}

#[test]
fn selected_tracepoints_of_a_process_until_it_ends() {
    let path = program("bitcoind", &["-DCORE=31"]);
    let mut process = run(&path);
    let mut source =
        attach(&Observed::Process(process.id()), &["net:{inbound,outbound}_message", "mempool:*"]).unwrap();
    let mut attached: Vec<String> = source.attachments().iter().map(|attachment| attachment.full_name()).collect();
    attached.sort_unstable();
    let expected = ["mempool:added", "mempool:rejected", "mempool:removed", "mempool:replaced"];
    assert_eq!(attached, [&expected[..], &["net:inbound_message", "net:outbound_message"]].concat());
    assert!(matches!(source.poll(Duration::ZERO).unwrap(), Polled::Idle { monotonic_ns } if monotonic_ns > 0));
    drop(process.stdin.take());
    process.wait().unwrap();
    end(&mut source);
}

#[test]
fn nothing_to_attach_to() {
    let path = program("nothing", &["-DRIPPLED"]);
    let error = attach(&Observed::File(path), &["net:*"]).unwrap_err();
    assert_eq!(error.to_string(), "no tracepoint to attach to matches net:*");
    let missing = attach(&Observed::File("/nonexistent".into()), &[]).unwrap_err().to_string();
    assert_eq!(missing, "/nonexistent: No such file or directory (os error 2)");
    assert!(matches!(attach(&Observed::Process(u32::MAX), &[]).unwrap_err(), AttachError::Process(_)));
}
