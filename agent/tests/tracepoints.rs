//! Events of the tracepoint probe with the types of a contract. Needs root, a kernel with BTF and g++; fails where these are
//! missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use chainscope_agent::trace::{AttachError, Observed, ProbeSource};
use chainscope_ebpf::trace::TraceOptions;
use chainscope_testing::{
    fakenode::{FakeNode, Flavour, build},
    wait::WAIT_TIMEOUT,
};
use chainscope_trace::{Event, Pattern, Polled, Source, Value};
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
