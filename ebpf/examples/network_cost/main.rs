//! Measures the overhead of capture: the sender's throughput with and without capture for several write sizes, lost bytes,
//! the latency of the sender's own system calls while the reader runs, is overloaded or stopped, and the latency of system
//! calls unrelated to sockets.
//!
//! ```text
//! cargo run --release -p chainscope-ebpf --example network_cost -- [sock|syscall] [pairs] [run milliseconds]
//! ```
//!
//! Sender and receiver are two processes on loopback; only the sender is watched. Runs with and without capture
//! alternate, so that other load affects both. The output has the median and the minimum of the ratios.
#![expect(clippy::print_stdout, unsafe_code, reason = "prints its results; calls getppid directly")]

mod latency;
mod peers;
mod throughput;
mod unrelated;

use std::time::Duration;

use chainscope_ebpf::network::{CaptureMode, NetworkOptions, NetworkProbe};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mode = match arguments.get(1).map(String::as_str) {
        Some("send") => return throughput::send(&arguments),
        Some("send-paced") => return latency::send(&arguments),
        Some("receive") => return peers::receive(),
        Some("syscall") => CaptureMode::Syscall,
        _ => CaptureMode::Sock,
    };
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (pairs, run) = (number(2, 7), Duration::from_millis(number(3, 1000)));
    throughput::compare(mode, pairs, run);
    println!();
    latency::compare(mode, pairs, run);
    println!();
    unrelated::compare(pairs);
}

fn load(mode: Option<CaptureMode>) -> NetworkProbe {
    NetworkProbe::load(&NetworkOptions { mode, ..NetworkOptions::default() }).unwrap_or_else(|error| panic!("{error}"))
}
