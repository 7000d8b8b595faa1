//! Throughput of a sender that writes as fast as it can.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::peers::{line_of, role, thread_cpu_time};
use crate::statistics::{least, median, ratios};
use crate::variants::Variant;

pub(crate) const SIZES: [usize; 4] = [256, 4 << 10, 64 << 10, 1 << 20];

/// Samples of one variant, one a round.
pub(crate) struct Samples {
    pub(crate) variant: Variant,
    /// Bytes per second.
    pub(crate) rates: Vec<f64>,
    /// The sender's CPU time per write, ns.
    pub(crate) costs: Vec<f64>,
    captured: u64,
    lost: u64,
}

/// Prints throughput and processor time of each variant, as ratios to nothing attached and to the copy floor.
pub(crate) fn compare(variants: &[Variant], rounds: u64, run: Duration) {
    println!("{rounds} rounds of {} ms in rotated order, only the sender is watched", run.as_millis());
    println!(
        "{:>8} {:>13} {:>9} {:>14} {:>14} {:>9} {:>14} {:>14} {:>14} {:>10}",
        "write", "capture", "MB/s", "of off", "of floor", "ns/write", "CPU of off", "CPU of floor", "captured", "lost"
    );
    for size in SIZES {
        let all = measure(variants, size, rounds, run);
        let of = |variant: Variant| all.iter().find(|samples| samples.variant == variant);
        let shown = |ratios: Vec<f64>| format!("{:.2} ({:.2})", median(&ratios), least(&ratios));
        let ratio = |samples: &[f64], to: Option<&[f64]>| to.map_or(String::new(), |to| shown(ratios(samples, to)));
        for samples in &all {
            let (off, floor) = (of(Variant::Off), of(Variant::Floor));
            let ratio_of_costs =
                |to: Option<&Samples>| to.map_or(String::new(), |to| shown(ratios(&to.costs, &samples.costs)));
            let of_floor = floor.filter(|_| matches!(samples.variant, Variant::Sock | Variant::Syscall));
            println!(
                "{size:>8} {:>13} {:>9.1} {:>14} {:>14} {:>9.0} {:>14} {:>14} {:>14} {:>10}",
                samples.variant.name(),
                median(&samples.rates) / 1e6,
                ratio(&samples.rates, off.map(|off| &*off.rates)),
                ratio(&samples.rates, of_floor.map(|floor| &*floor.rates)),
                median(&samples.costs),
                ratio_of_costs(off),
                ratio_of_costs(of_floor),
                samples.captured,
                samples.lost,
            );
        }
    }
}

/// Measures each variant once a round. Each round begins with another variant, so that none profits from its place.
pub(crate) fn measure(variants: &[Variant], size: usize, rounds: u64, run: Duration) -> Vec<Samples> {
    let samples = |variant| Samples { variant, rates: Vec::new(), costs: Vec::new(), captured: 0, lost: 0 };
    let mut all: Vec<Samples> = variants.iter().map(|variant| samples(*variant)).collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    for _ in 0..rounds {
        for place in &order {
            let samples = &mut all[*place];
            let mut receiver = role(&["receive", "1"]);
            let address = line_of(&mut receiver);
            let mut sender = role(&["send", &address, &size.to_string(), &run.as_millis().to_string()]);
            let capture = samples.variant.start(sender.id(), size);
            sender.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the sender");
            let result = line_of(&mut sender);
            sender.wait().expect("the sender ends");
            receiver.wait().expect("the receiver ends");
            let numbers: Vec<f64> = result.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [sent, seconds, cost] = numbers[..] else { panic!("unexpected sender output {result:?}") };
            let captured = capture.finish(sent as u64);
            samples.rates.push(sent / seconds);
            samples.costs.push(cost);
            samples.captured += captured.bytes;
            samples.lost += captured.lost;
        }
        order.rotate_left(1);
    }
    all
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
