//! When the reader of the ring waits, and what ends the wait.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use chainscope_ebpf::network::CaptureMode;

use chainscope_testing::wait;
use common::recorder::Recorder;
use common::responder;

both_modes!(an_idle_reader_is_woken_by_the_next_event, a_waker_ends_the_wait);

/// Waits until this thread of the test sleeps in a system call.
fn wait_until_asleep(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    wait::until_true("the reader to wait", || {
        std::fs::read_to_string(&path)
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
    });
}

fn an_idle_reader_is_woken_by_the_next_event(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let _peer = TcpStream::connect(address).expect("a listener");
    let fd = process.call_ok(&format!("accept {listener}"));
    recorder.wait_opened(process.pid(), 1);
    let reader = rustix::thread::gettid();
    let mut delays: Vec<Duration> = (0..21)
        .map(|_| {
            let poll = |recorder: &mut Recorder, timeout| recorder.probe.poll(timeout, &mut |_| ()).expect("the ring");
            // Afterwards it has been idle for a while.
            while poll(&mut recorder, Duration::from_millis(100)) > 0 {}
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    wait_until_asleep(reader);
                    let sent = Instant::now();
                    assert_eq!(process.call_ok(&format!("send {fd} 1 0 64 1 write")), 64);
                    sent
                });
                assert!(poll(&mut recorder, wait::WAIT_TIMEOUT) > 0, "no event");
                let read = Instant::now();
                read.saturating_duration_since(sender.join().expect("a time"))
            })
        })
        .collect();
    delays.sort();
    // Without a wake-up an event is read after 125 ms in the mean.
    assert!(delays[delays.len() / 2] < Duration::from_millis(50), "{delays:?}");
}

fn a_waker_ends_the_wait(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let (waker, reader) = (recorder.probe.waker(), rustix::thread::gettid());
    for _ in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until_asleep(reader);
                waker.wake();
            });
            let begin = Instant::now();
            assert_eq!(recorder.probe.poll(wait::WAIT_TIMEOUT, &mut |_| ()).expect("the ring"), 0);
            assert!(begin.elapsed() < wait::WAIT_TIMEOUT, "the wait went on");
        });
    }
    // Before the wait begins, too.
    waker.wake();
    let begin = Instant::now();
    recorder.probe.poll(wait::WAIT_TIMEOUT, &mut |_| ()).expect("the ring");
    assert!(begin.elapsed() < wait::WAIT_TIMEOUT, "the wait began");
}
