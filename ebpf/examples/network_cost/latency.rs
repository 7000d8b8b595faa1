//! Latency of the sender's own system call, at the rate of a busy node.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chainscope_ebpf::network::CaptureMode;

use crate::load;
use crate::peers::{line_of, role};
use crate::statistics::percentile;

const WRITE: usize = 4 << 10;
/// Time between the end of a write and the start of the next: some 60 MB/s, which fill the ring in half a second.
const PAUSE: Duration = Duration::from_micros(10);

/// What the reader of the ring does meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Nothing is attached.
    Absent,
    Running,
    /// Drains the ring less often than it becomes full.
    Overloaded,
    /// Never drains the ring, like a process that is stopped.
    Stopped,
}

const READERS: [(&str, Reader); 4] = [
    ("no capture", Reader::Absent),
    ("running", Reader::Running),
    ("overloaded", Reader::Overloaded),
    ("stopped", Reader::Stopped),
];

/// Prints percentiles of the latency for each state of the reader, of rounds that alternate.
pub(crate) fn compare(mode: CaptureMode, rounds: u64, run: Duration) {
    let mut samples = READERS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((_, reader), samples) in READERS.into_iter().zip(&mut samples) {
            samples.extend(measure(reader, mode, run));
        }
    }
    println!("latency of a write of {WRITE} B in the watched process, us");
    println!("{:>12} {:>9} {:>9} {:>9} {:>9} {:>10}", "reader", "p50", "p99", "p99.9", "greatest", "writes");
    for ((name, _), samples) in READERS.into_iter().zip(&mut samples) {
        samples.sort_unstable();
        let at = |share: f64| percentile(samples, share) / 1e3;
        let (p50, p99, p999, greatest) = (at(0.5), at(0.99), at(0.999), at(1.0));
        println!("{name:>12} {p50:>9.1} {p99:>9.1} {p999:>9.1} {greatest:>9.0} {:>10}", samples.len());
    }
}

/// Nanoseconds of each write.
fn measure(reader: Reader, mode: CaptureMode, run: Duration) -> Vec<u32> {
    let mut receiver = role(&["receive", "1"]);
    let address = line_of(&mut receiver);
    let mut sender = role(&["send-paced", &address, &run.as_millis().to_string()]);
    let mut probe = (reader != Reader::Absent).then(|| load(Some(mode)));
    if let Some(probe) = &mut probe {
        probe.add_process(sender.id()).expect("an entry in the map");
    }
    let done = AtomicBool::new(false);
    let samples = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let Some(probe) = &mut probe else { return };
            while !done.load(Ordering::Relaxed) {
                match reader {
                    Reader::Absent | Reader::Stopped => std::thread::park(),
                    Reader::Overloaded => std::thread::park_timeout(Duration::from_secs(1)),
                    Reader::Running => {}
                }
                probe.poll(Duration::from_millis(10), &mut |_| {}).expect("the ring");
            }
        });
        sender.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the sender");
        let line = line_of(&mut sender);
        done.store(true, Ordering::Relaxed);
        reading.thread().unpark();
        line
    });
    sender.wait().expect("the sender ends");
    receiver.wait().expect("the receiver ends");
    samples.split(' ').map(|word| word.parse().expect("nanoseconds")).collect()
}

/// The sender: prints the nanoseconds of each write.
pub(crate) fn send(arguments: &[String]) {
    let run = Duration::from_millis(arguments[3].parse().expect("milliseconds"));
    std::io::stdin().read_line(&mut String::new()).expect("go");
    let mut stream = TcpStream::connect(&arguments[2]).expect("the receiver");
    let bytes = vec![7; WRITE];
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < run {
        let before = Instant::now();
        stream.write_all(&bytes).expect("the receiver");
        samples.push(before.elapsed().as_nanos().to_string());
        std::thread::sleep(PAUSE);
    }
    println!("{}", samples.join(" "));
}
