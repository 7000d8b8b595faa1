//! Throughput of a sender that writes as fast as it can.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chainscope_ebpf::network::{CaptureMode, Event, KernelAccount, Verdict};

use crate::load;
use crate::peers::{line_of, role};

const SIZES: [usize; 4] = [256, 4 << 10, 64 << 10, 1 << 20];

/// Prints throughput with and without capture.
pub(crate) fn compare(mode: CaptureMode, pairs: u64, run: Duration) {
    println!("capture mode {mode}, {pairs} pairs of {} ms, only the sender is watched", run.as_millis());
    println!(
        "{:>9} {:>10} {:>10} {:>7} {:>7} {:>10} {:>10} {:>7} {:>14} {:>10}",
        "write", "off MB/s", "on MB/s", "median", "least", "off ns/wr", "on ns/wr", "off/on", "recorded B", "lost B"
    );
    for size in SIZES {
        let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut cost_off, mut cost_on, mut cost_ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut captured, mut lost) = (0, 0);
        for _ in 0..pairs {
            let without = measure(size, run, None);
            let with = measure(size, run, Some(mode));
            ratios.push(with.rate / without.rate);
            cost_ratios.push(without.cost / with.cost);
            off.push(without.rate);
            on.push(with.rate);
            cost_off.push(without.cost);
            cost_on.push(with.cost);
            captured += with.captured;
            lost += with.lost;
        }
        let (ratio, cost_ratio) = (median(&mut ratios), median(&mut cost_ratios));
        println!(
            "{size:>9} {:>10.1} {:>10.1} {ratio:>7.2} {:>7.2} {:>10.0} {:>10.0} {cost_ratio:>7.2} {captured:>14} {lost:>10}",
            median(&mut off) / 1e6,
            median(&mut on) / 1e6,
            ratios[0],
            median(&mut cost_off),
            median(&mut cost_on),
        );
    }
}

struct Measured {
    /// Bytes per second.
    rate: f64,
    /// The sender's CPU time per write, ns.
    cost: f64,
    captured: u64,
    lost: u64,
}

fn measure(size: usize, run: Duration, mode: Option<CaptureMode>) -> Measured {
    let mut receiver = role(&["receive"]);
    let address = line_of(&mut receiver);
    let mut sender = role(&["send", &address, &size.to_string(), &run.as_millis().to_string()]);
    let pid = sender.id();
    let stop = Arc::new(AtomicBool::new(false));
    let reader = mode.map(|mode| {
        let mut probe = load(Some(mode));
        probe.add_process(pid).expect("map update");
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            // Copies every byte, as a consumer reads each byte once.
            let (mut copy, mut captured, mut opened) = (Vec::new(), 0_u64, None);
            loop {
                let last = stop.load(Ordering::Relaxed);
                let events = probe.poll(Duration::from_millis(10), &mut |event| match event {
                    Event::Data(data) => {
                        copy.clear();
                        copy.extend_from_slice(data.bytes);
                        captured += copy.len() as u64;
                    }
                    Event::Opened(event) => opened = Some(event.socket),
                    _ => {}
                });
                // A consumer sets the verdict after the first bytes.
                if let Some(socket) = opened.take() {
                    probe.set_verdict(socket, Verdict::Keep).expect("map update");
                }
                if last && events.expect("the ring") == 0 {
                    break;
                }
            }
            let account = probe.account(pid).expect("watched");
            assert_eq!(account.captured, captured, "every captured byte was delivered");
            assert_eq!(account.seen, account.captured + account.dropped_bytes());
            account
        })
    });
    sender.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the sender");
    let result = line_of(&mut sender);
    sender.wait().expect("the sender ends");
    receiver.wait().expect("the receiver ends");
    stop.store(true, Ordering::Relaxed);
    let account = reader.map(|thread| thread.join().expect("the reader"));
    let numbers: Vec<f64> = result.split(' ').map(|word| word.parse().expect("a number")).collect();
    let [sent, seconds, cost] = numbers[..] else { panic!("unexpected sender output {result:?}") };
    if let Some(account) = &account {
        assert_eq!(account.seen, sent as u64, "the kernel saw every sent byte");
    }
    Measured {
        rate: sent / seconds,
        cost,
        captured: account.as_ref().map_or(0, |account| account.captured),
        lost: account.as_ref().map_or(0, KernelAccount::dropped_bytes),
    }
}

/// The sender.
pub(crate) fn send(arguments: &[String]) {
    let size: usize = arguments[3].parse().expect("a size");
    let run = Duration::from_millis(arguments[4].parse().expect("milliseconds"));
    std::io::stdin().read_line(&mut String::new()).expect("go");
    let mut stream = TcpStream::connect(&arguments[2]).expect("the receiver");
    let bytes = vec![7; size];
    let (start, busy, mut sent) = (Instant::now(), thread_cpu_time(), 0_u64);
    // Reads the clock at most once every 16 KiB to keep it out of the measurement.
    let writes = (16_usize << 10).div_ceil(size);
    while start.elapsed() < run {
        for _ in 0..writes {
            stream.write_all(&bytes).expect("the receiver");
            sent += size as u64;
        }
    }
    let cost = (thread_cpu_time() - busy) / (sent / size as u64) as f64;
    println!("{sent} {} {cost}", start.elapsed().as_secs_f64());
}

/// CPU time of this thread, ns.
fn thread_cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
