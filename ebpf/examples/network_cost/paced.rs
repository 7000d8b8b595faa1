//! A node at the rate of real ones: its processor time per megabyte, and how long its system calls take.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::peers::{line_of, process_cpu_time, role};
use crate::statistics::{least, median, percentile, ratios};
use crate::variants::Variant;

const SENDERS: u64 = 4;
const WRITE: usize = 4 << 10;
/// Megabytes per second of all senders together.
const RATES: [u64; 3] = [1, 10, 100];
const VARIANTS: [Variant; 3] = [Variant::Off, Variant::Floor, Variant::Sock];

/// Prints processor time and latency for each rate and variant, of rounds that alternate.
pub(crate) fn compare(rounds: u64, run: Duration) {
    println!("a node with {SENDERS} senders that write {WRITE} B each, processor time of the node and us of a write");
    println!(
        "{:>8} {:>8} {:>10} {:>14} {:>8} {:>8} {:>8} {:>10} {:>10}",
        "MB/s", "capture", "us/MB", "of off", "p50", "p99", "p99.9", "writes", "lost B"
    );
    for rate in RATES {
        let mut costs = VARIANTS.map(|_| Vec::new());
        let mut samples = VARIANTS.map(|_| Vec::new());
        let mut lost = VARIANTS.map(|_| 0);
        let mut order = [0, 1, 2];
        for _ in 0..rounds {
            for place in order {
                let measured = measure(VARIANTS[place], rate, run);
                costs[place].push(measured.cost);
                samples[place].extend(measured.latencies);
                lost[place] += measured.lost;
            }
            order.rotate_left(1);
        }
        for (place, variant) in VARIANTS.into_iter().enumerate() {
            let ratios = ratios(&costs[place], &costs[0]);
            let samples = &mut samples[place];
            samples.sort_unstable();
            let at = |share: f64| percentile(samples, share) / 1e3;
            println!(
                "{rate:>8} {:>8} {:>10.0} {:>14} {:>8.1} {:>8.1} {:>8.1} {:>10} {:>10}",
                variant.name(),
                median(&costs[place]),
                format!("{:.2} ({:.2})", median(&ratios), least(&ratios)),
                at(0.5),
                at(0.99),
                at(0.999),
                samples.len(),
                lost[place],
            );
        }
    }
}

struct Measured {
    /// The node's processor time per megabyte, us.
    cost: f64,
    /// Nanoseconds of each write.
    latencies: Vec<u32>,
    lost: u64,
}

fn measure(variant: Variant, rate: u64, run: Duration) -> Measured {
    let mut receiver = role(&["receive", &SENDERS.to_string()]);
    let address = line_of(&mut receiver);
    let mut node = role(&["send-at-rate", &address, &rate.to_string(), &run.as_millis().to_string()]);
    let capture = variant.start(node.id(), WRITE);
    node.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the node");
    let line = line_of(&mut node);
    node.wait().expect("the node ends");
    receiver.wait().expect("the receiver ends");
    let mut words = line.split(' ');
    let cpu_ns: f64 = words.next().and_then(|word| word.parse().ok()).expect("processor time");
    let latencies: Vec<u32> = words.map(|word| word.parse().expect("nanoseconds")).collect();
    let sent = (latencies.len() * WRITE) as u64;
    let lost = capture.finish(sent).lost;
    Measured { cost: cpu_ns / 1e3 / (sent as f64 / 1e6), latencies, lost }
}

/// The node: prints its processor time and the nanoseconds of each write.
pub(crate) fn send(arguments: &[String]) {
    let rate: u64 = arguments[3].parse().expect("MB/s");
    let run = Duration::from_millis(arguments[4].parse().expect("milliseconds"));
    std::io::stdin().read_line(&mut String::new()).expect("go");
    let streams: Vec<TcpStream> =
        (0..SENDERS).map(|_| TcpStream::connect(&arguments[2]).expect("the receiver")).collect();
    let interval = Duration::from_nanos(1_000 * WRITE as u64 * SENDERS / rate);
    let busy = process_cpu_time();
    let senders = (0..).zip(streams).map(|(number, stream)| {
        // The senders write one after the other.
        let first = interval * number / SENDERS as u32;
        std::thread::spawn(move || send_one(stream, first, interval, run))
    });
    let senders: Vec<_> = senders.collect();
    let samples: Vec<u32> = senders.into_iter().flat_map(|sender| sender.join().expect("a sender")).collect();
    let busy = process_cpu_time() - busy;
    let samples: Vec<String> = samples.iter().map(u32::to_string).collect();
    println!("{busy} {}", samples.join(" "));
}

/// Writes at fixed times; at once if one has passed.
fn send_one(mut stream: TcpStream, first: Duration, interval: Duration, run: Duration) -> Vec<u32> {
    let bytes = vec![7; WRITE];
    let start = Instant::now();
    let mut samples = Vec::with_capacity((run.as_nanos() / interval.as_nanos()) as usize + 1);
    let mut due = first;
    while due < run {
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let before = Instant::now();
        stream.write_all(&bytes).expect("the receiver");
        samples.push(u32::try_from(before.elapsed().as_nanos()).unwrap_or(u32::MAX));
        due += interval;
    }
    samples
}
