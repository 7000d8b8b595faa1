//! Messages of one node from the socket until they are served, at rising rates up to the first loss, and as a burst. A load generator
//! plays both sides over loopback: it shares the processors with the recorder.
//!
//! message_intake [SECONDS] [CONFIGURATION]    (default: 3 for each rate, and the defaults of chainscope.toml; needs root)

#![expect(clippy::print_stdout, reason = "prints the tables")]

use std::time::{Duration, Instant};

use chainscope_e2e::harness::demo_node::{DemoNode, number};
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::usage::ProcessorTime;
use chainscope_e2e::harness::{free_port, wait};

const NODE: &str = "node";
/// Connections to one peer, each with traffic in both directions.
const CONNECTIONS: u64 = 4;
const STREAMS: u64 = 2 * CONNECTIONS;
/// Messages a second, all streams together, of 1 KiB.
const RATES: [u64; 7] = [1_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000];
/// MB/s, all streams together, of messages of 65,000 bytes.
const LARGE: u64 = 65_000;
const LARGE_RATES: [u64; 7] = [5, 10, 25, 50, 100, 200, 400];
/// A burst of 200 MB in 2 s.
const BURST: (u64, u64) = (200, 2);
/// How long messages may take to be served.
const TIMEOUT: Duration = Duration::from_secs(300);

/// One measurement.
struct Intake {
    /// Time of the traffic.
    seconds: f64,
    /// Time from its end until the last message is served.
    behind: f64,
    /// Processor time of the recorder for each message.
    cost: Duration,
    account: Account,
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(3, |seconds| seconds.parse().expect("a number of seconds"));
    let configuration = std::env::args().nth(2).unwrap_or_default();
    let measure = |rate, size, seconds| measure(&configuration, rate, size, seconds);
    println!(
        "| messages of | offered | messages/s | MB/s | processor time of a message, µs | served after, s | bytes lost in the ring \
         | messages dropped |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for rate in RATES {
        if !show("1 KiB", &format!("{rate}/s"), &measure(rate, 1024, seconds)) {
            break;
        }
    }
    for rate in LARGE_RATES {
        if !show("65,000 B", &format!("{rate} MB/s"), &measure(rate * 1_000_000 / LARGE, LARGE, seconds)) {
            break;
        }
    }
    let (rate, seconds) = (BURST.0 / BURST.1, BURST.1);
    show("65,000 B", &format!("{} MB in {seconds} s", BURST.0), &measure(rate * 1_000_000 / LARGE, LARGE, seconds));
}

/// Prints a row; returns whether nothing was lost.
fn show(size: &str, offered: &str, intake: &Intake) -> bool {
    let Intake { seconds, behind, cost, account } = intake;
    let (messages, bytes) = (account.messages as f64 / seconds, account.bytes_seen as f64 / seconds / 1e6);
    let (ring, queue) = (account.bytes_dropped, account.messages_dropped);
    let cost = cost.as_secs_f64() * 1e6;
    println!("| {size} | {offered} | {messages:.0} | {bytes:.1} | {cost:.1} | {behind:.1} | {ring} | {queue} |");
    ring == 0 && queue == 0
}

/// Sends `rate` messages a second of `size` bytes.
fn measure(configuration: &str, rate: u64, size: u64, seconds: u64) -> Intake {
    let mut machine = Machine::new("auto");
    machine.options = configuration.to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe(NODE, port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let messages = (rate * seconds / STREAMS).max(1);
    let options = format!("--no-verify --size {size} --messages {messages} --rate {}", rate as f64 / STREAMS as f64);
    let side = |seed: u64| DemoNode::new("load").with(&options).with(&format!("--seed {seed}"));
    let remote = side(1).listen(peer).with(&format!("--exit-after {CONNECTIONS}")).start();
    let local = side(2).listen(port).peer(peer).identity(&machine.identity(NODE));
    let local = local.with(&format!("--connections {CONNECTIONS}")).start_observed(api, NODE);
    let pid = chainscope.program.pid();
    let (begin, cpu) = (Instant::now(), ProcessorTime::of(pid));
    let local = local.join(TIMEOUT).expect_success("local side");
    let taken = begin.elapsed();
    remote.join(TIMEOUT).expect_success("remote side");
    let closed = local.events("closed");
    let bytes: u64 = closed.iter().map(|event| number(event, "sent.bytes") + number(event, "received.bytes")).sum();
    // The account is reported every second; how many messages are served is known at once.
    let (mut served, mut last) = (0, begin.elapsed());
    let account = wait::until_within(TIMEOUT, "all messages to be served", || {
        let now = api.count(NODE);
        if now > served {
            (served, last) = (now, begin.elapsed());
        }
        let account = Account::read(api, NODE);
        let is_settled = account.connections_open == 0 && account.bytes_in_ring == 0 && account.bytes_seen == bytes;
        (is_settled && account.messages_sent == served).then_some(account)
    });
    account.assert_conserved();
    let cost = ProcessorTime::of(pid).since(&cpu).div_f64(account.messages.max(1) as f64);
    Intake { seconds: taken.as_secs_f64(), behind: last.saturating_sub(taken).as_secs_f64(), cost, account }
}
