//! Compares `chainscope trace p2p` with bpftrace and bcc doing the same, and measures `chainscope trace raw` with payloads of 4 MB.
//!
//! ```text
//! cargo run --example trace_tools -- CHAINSCOPE [seconds] [messages of 4 MB]
//! ```
//!
//! Each tool prints a line for each message of a fake Bitcoin Core to a pipe. Start-up is the time until its first lines; processor
//! time, that of the tool and what the node needs more than without one, is measured at 20,000 messages/s. The tools
//! alternate, three times; the output has the medians.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chainscope_testing::fakenode::{FakeNode, Flavour, build};
use rustix::process::{Pid, Signal, kill_process};

const ROUNDS: usize = 3;
/// Messages in a second.
const RATE: u64 = 20_000;
const MESSAGE: &str = "net:inbound_message";
/// Part of a line about a message of [`traffic`].
const MEASURED: &str = "'inv'";
/// Bytes of a line that are looked at: one with a payload has megabytes, and looking at all of it takes longer than the tool.
const START: usize = 200;
/// What precedes a payload.
const PAYLOAD: &str = " bytes: ";
/// Length of the payloads of [`payloads`]; in a line it has twice as many digits.
const LARGE: usize = 4_000_000;
/// Longest wait for a tool.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let chainscope = arguments.get(1).expect("the path of chainscope");
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, large) = (number(2, 10), number(3, 50));
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path(), Flavour::Core(31));
    let mut node = FakeNode::start(&program);
    let (pid, path) = (node.pid().to_string(), program.display().to_string());
    let line = r#"printf("%sbound '%s' msg peer %d (%s, %s) with %d bytes\n","#;
    let probe = |name: &str, direction: &str| {
        format!("usdt:{path}:net:{name} {{ {line} \"{direction}\", str(arg3), arg0, str(arg2), str(arg1), arg4); }}")
    };
    let script = [probe("inbound_message", "in"), probe("outbound_message", "out")].join(" ");
    let bcc = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/trace_tools/p2p.py");
    let tools: [(&str, Vec<&str>); 3] = [
        ("chainscope trace p2p", vec![chainscope, "trace", "p2p", "--pid", &pid]),
        ("bpftrace", vec!["bpftrace", "-p", &pid, "-e", &script]),
        ("bcc", vec!["/usr/bin/python3", bcc, &pid]),
    ];

    let mut alone = Vec::new();
    let mut measured: Vec<Vec<Measured>> = tools.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        let began = processor_seconds(node.pid());
        traffic(&mut node, seconds);
        alone.push((processor_seconds(node.pid()) - began) / seconds as f64);
        for ((_, command), of_tool) in tools.iter().zip(&mut measured) {
            of_tool.push(measure(command, &mut node, seconds));
        }
    }
    let (alone, fired) = (median(alone), RATE * seconds);
    println!(
        "{MESSAGE} {RATE} times a second for {seconds} s, median of {ROUNDS} rounds; node alone: {:.1} % of a processor\n",
        100.0 * alone
    );
    println!(
        "| | start-up, s | processor, % | node, % more | lines of {fired} messages |\n| --- | --- | --- | --- | --- |"
    );
    for ((name, _), of_tool) in tools.iter().zip(&measured) {
        let of = |value: fn(&Measured) -> f64| median(of_tool.iter().map(value).collect());
        let (startup, tool) = (of(|one| one.startup), 100.0 * of(|one| one.tool));
        let (more, lines) = (100.0 * (of(|one| one.node) - alone), of_tool.iter().map(|one| one.lines).min());
        println!("| {name} | {startup:.2} | {tool:.1} | {more:.1} | {} |", lines.unwrap_or_default());
    }
    payloads(chainscope, &mut node, large);
}

/// What a run of a tool cost.
struct Measured {
    /// Seconds.
    startup: f64,
    /// Processors.
    tool: f64,
    node: f64,
    lines: u64,
}

/// A running tool whose lines about messages are counted.
struct Tool {
    child: Child,
    /// Of all messages.
    lines: Arc<AtomicU64>,
    /// Of those of the measurement.
    measured: Arc<AtomicU64>,
    /// Of whole payloads of the greatest length.
    whole: Arc<AtomicU64>,
    reader: JoinHandle<String>,
}

impl Tool {
    fn start(command: &[&str]) -> Self {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", command[0]));
        let mut output = BufReader::with_capacity(1 << 20, child.stdout.take().expect("a pipe"));
        let [lines, measured, whole] = [(); 3].map(|()| Arc::<AtomicU64>::default());
        let counts = [&lines, &measured, &whole].map(Arc::clone);
        let reader = std::thread::spawn(move || {
            let (mut line, mut last) = (Vec::new(), Vec::new());
            while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let start = first_of(&line);
                let digits = start.find(PAYLOAD).map(|at| line.trim_ascii_end().len() - at - PAYLOAD.len());
                let found = [start.contains("bound "), start.contains(MEASURED), digits == Some(2 * LARGE)];
                for (count, _) in counts.iter().zip(found).filter(|(_, is_found)| *is_found) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                std::mem::swap(&mut line, &mut last);
                line.clear();
            }
            first_of(&last).trim_end().to_owned()
        });
        Self { child, lines, measured, whole, reader }
    }

    /// Waits until no further line comes for a second, or there are `expected`.
    fn settle(&self, expected: u64) -> u64 {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let lines = self.lines.load(Ordering::Relaxed);
            if lines != last {
                (last, since) = (lines, Instant::now());
            }
            if lines >= expected || since.elapsed() > Duration::from_secs(1) {
                return lines;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Ends it; returns its last line.
    fn end(mut self) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("it runs");
        self.child.wait().expect("it runs");
        self.reader.join().expect("the reader")
    }
}

/// The beginning of a line.
fn first_of(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(START)]).into_owned()
}

fn measure(command: &[&str], node: &mut FakeNode, seconds: u64) -> Measured {
    let began = Instant::now();
    let tool = Tool::start(command);
    while tool.lines.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < LIMIT, "{} prints nothing", command[0]);
        // As many lines as fill the buffer of its output.
        node.execute(&format!("repeat 200 {MESSAGE} message_type=ping size=8 quiet=1"));
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let startup = began.elapsed().as_secs_f64();
    tool.settle(u64::MAX);
    let pid = tool.child.id();
    let (of_tool, of_node) = (processor_seconds(pid), processor_seconds(node.pid()));
    traffic(node, seconds);
    tool.settle(u64::MAX);
    let (of_tool, of_node) = (processor_seconds(pid) - of_tool, processor_seconds(node.pid()) - of_node);
    let counted = Arc::clone(&tool.measured);
    tool.end();
    let lines = counted.load(Ordering::Relaxed);
    // The next one has to raise them itself.
    node.wait_for_semaphores(&[MESSAGE], 0);
    Measured { startup, tool: of_tool / seconds as f64, node: of_node / seconds as f64, lines }
}

fn traffic(node: &mut FakeNode, seconds: u64) {
    node.execute(&format!("repeat {} {MESSAGE} message_type=inv size=37 rate={RATE} quiet=1", RATE * seconds));
}

/// Payloads of the greatest length, as fast as the node fires.
fn payloads(chainscope: &str, node: &mut FakeNode, messages: u64) {
    let pid = node.pid().to_string();
    let tool = Tool::start(&[chainscope, "trace", "raw", "--pid", &pid]);
    node.wait_for_semaphores(&[MESSAGE], 1);
    let began = Instant::now();
    let reply = node.execute(&format!("repeat {messages} {MESSAGE} message_type=block size={LARGE} quiet=1"));
    let fired = Duration::from_nanos(reply.after_ns - reply.before_ns);
    let lines = tool.settle(messages);
    let read = began.elapsed();
    let whole = Arc::clone(&tool.whole);
    let last = tool.end();
    let whole = whole.load(Ordering::Relaxed);
    assert_eq!(
        (lines, whole),
        (messages, messages),
        "lines, and those with a whole payload, of {messages} messages: {last}"
    );
    assert!(last.ends_with(" + 0 dropped"), "{last}");
    let each = |of: Duration| of.as_secs_f64() * 1000.0 / messages as f64;
    println!(
        "\n{messages} payloads of 4,000,000 bytes by `chainscope trace raw`: {:.2} ms each in the node, {:.2} ms each until printed in \
         hexadecimal; {whole} printed whole; {last}",
        each(fired),
        each(read)
    );
}

/// Processor time of a process, all threads.
fn processor_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
