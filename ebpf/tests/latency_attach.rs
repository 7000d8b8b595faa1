//! Attaching to many functions, and to what cannot be probed.

mod latency_common;

use std::fs::File;
use std::time::{Duration, Instant};

use chainscope_ebpf::latency::{Exit, LatencyOptions, LatencyProbe, Scope, Span};
use chainscope_testing::wait::until_true;

use latency_common::{Exits, Target, Watcher, plain, span};

/// Far more than it takes.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_thousand_functions() {
    let program = plain("latency_many");
    for exits in [Exits::Returns, Exits::Instructions] {
        let mut target = Target::start(&program);
        let all = span(&program, "many_*", exits);
        let spans: Vec<Span> = all
            .entries
            .iter()
            .zip(&all.exits)
            .map(|(entry, exit)| Span { entries: vec![*entry], exits: vec![*exit], ..all.clone() })
            .collect();
        assert_eq!(spans.len(), 1000);
        let start = Instant::now();
        let mut watcher = Watcher::attach(&program, Some(target.pid()), None, &spans);
        let attached = start.elapsed();
        target.call("all", 3, 0);
        for index in 0..1000 {
            let counts = watcher.counts(index);
            assert_eq!((counts.started, counts.ended), (3, 3), "{index} {exits:?}");
        }
        let start = Instant::now();
        watcher.probe.detach_all();
        let detached = start.elapsed();
        println!("1000 functions, {exits:?}: attached in {attached:?}, detached in {detached:?}");
        assert!(attached < LIMIT && detached < LIMIT, "{attached:?}, {detached:?}");
        // A process that another test spawns has a copy of the link's descriptor until it executes its program.
        until_true("a call that is not counted", || {
            let started = watcher.counts(0).started;
            target.call("all", 1, 0);
            watcher.counts(0).started == started
        });
    }
}

#[test]
fn what_cannot_be_probed_is_named() {
    let program = plain("latency_refused");
    let file = File::open(&program).expect("compiled");
    let mut probe = LatencyProbe::load(&LatencyOptions { max_spans: 2, ..LatencyOptions::default() }).expect("root");
    let good = span(&program, "plain_nap", Exits::Returns);
    let beyond = file.metadata().expect("a file").len() + 0x10_0000;
    let bad =
        Span { entries: vec![beyond], exits: vec![Exit::Return(beyond)], scope: Scope::Call, counts_returns: false };
    assert!(probe.attach(&file, None, &[good.clone(), bad.clone()]).is_err());
    let attached = probe.attach_accepted(&file, None, &[bad, good.clone()]).expect("one of them");
    let error = attached.spans[0].as_ref().expect_err("beyond the file").to_string();
    assert!(error.contains(&format!("{beyond:#x}")), "{error}");
    let good_span = *attached.spans[1].as_ref().expect("attached");
    let mut target = Target::start(&program);
    target.call("nap", 3, 100);
    let counts = probe.counts(good_span);
    assert_eq!((counts.started, counts.ended, counts.no_entry), (3, 3, 0));
    probe.detach(attached.id);
    let mut probe = LatencyProbe::load(&LatencyOptions { max_spans: 2, ..LatencyOptions::default() }).expect("root");
    let error =
        probe.attach(&file, Some(u32::MAX >> 2), std::slice::from_ref(&good)).expect_err("no such process").to_string();
    assert_eq!(error, format!("there is no process {}", u32::MAX >> 2));
    let error =
        probe.attach(&file, None, &[good.clone(), good.clone(), good.clone()]).expect_err("too many").to_string();
    assert_eq!(error, "the kernel's table of spans is full");
    probe.attach(&file, None, &[good.clone(), good]).expect("nothing of the failed ones remains");
}
