//! Measures the overhead of capture for the process that is recorded, against nothing, against a program that does no more
//! than copy the bytes (the copy floor), and against tcpdump and dumpcap.
//!
//! ```text
//! network_cost [throughput] [paced] [latency] [unrelated] [rounds=7] [milliseconds=1000] [variants=off,floor,sock]
//! network_cost ratios
//! ```
//!
//! - `throughput`: a sender that writes as fast as it can, for several write sizes, and lost bytes;
//! - `paced`: a node with four senders at the rates of real ones, its processor time and the latency of its writes;
//! - `latency`: the latency of writes while the reader runs, is overloaded or stopped;
//! - `unrelated`: system calls of other processes that do not use sockets;
//! - `ratios`: for the regression gate, a line for each ratio with its samples.
//!
//! Sender and receiver are two processes on loopback; only the sender is watched. Variants alternate, so that other load
//! affects all of them. Needs root, clang, and for the tools what scripts/setup-bench installs.
#![expect(clippy::print_stdout, unsafe_code, reason = "prints its results; calls getppid directly")]

mod floor;
mod latency;
mod paced;
mod peers;
mod quick;
mod statistics;
mod throughput;
mod tools;
mod unrelated;
mod variants;

use std::time::Duration;

use chainscope_ebpf::network::{CaptureMode, NetworkOptions, NetworkProbe};
use variants::Variant;

const PARTS: [&str; 4] = ["throughput", "paced", "latency", "unrelated"];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("send") => return throughput::send(&arguments),
        Some("send-at-rate") => return paced::send(&arguments),
        Some("send-paced") => return latency::send(&arguments),
        Some("receive") => return peers::receive(&arguments),
        Some("ratios") => {
            quick::print();
            return floor::clean();
        }
        _ => {}
    }
    let (mut parts, mut rounds, mut run) = (Vec::new(), 7, Duration::from_secs(1));
    let mut variants: Vec<Variant> = Variant::ALL.into_iter().filter(|variant| is_installed(*variant)).collect();
    for argument in arguments.iter().skip(1) {
        match argument.split_once('=') {
            Some(("rounds", number)) => rounds = number.parse().expect("a number of rounds"),
            Some(("milliseconds", number)) => run = Duration::from_millis(number.parse().expect("milliseconds")),
            Some(("variants", names)) => {
                let variant = |name| Variant::from_name(name).unwrap_or_else(|| panic!("no variant {name}"));
                variants = names.split(',').map(variant).collect();
            }
            None if PARTS.contains(&argument.as_str()) => parts.push(argument.as_str()),
            _ => panic!("{argument} is none of {PARTS:?}, rounds=…, milliseconds=…, variants=…"),
        }
    }
    if parts.is_empty() {
        parts.extend(PARTS);
    }
    for part in parts {
        match part {
            "throughput" => throughput::compare(&variants, rounds, run),
            "paced" => paced::compare(rounds, run),
            "latency" => latency::compare(CaptureMode::Sock, rounds, run),
            _ => unrelated::compare(rounds),
        }
        println!();
    }
    floor::clean();
}

fn is_installed(variant: Variant) -> bool {
    match variant {
        Variant::Tool(tool) => {
            let found = tool.is_installed();
            if !found {
                println!("{} is not installed: scripts/setup-bench", variant.name());
            }
            found
        }
        _ => true,
    }
}

fn load(mode: Option<CaptureMode>) -> NetworkProbe {
    NetworkProbe::load(&NetworkOptions { mode, ..NetworkOptions::default() }).unwrap_or_else(|error| panic!("{error}"))
}
