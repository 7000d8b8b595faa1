//! Log messages from a file and by UDP until they are stored and searchable, against rsyslog, which writes the same lines to a
//! file. Both run in turn on this machine.
//!
//! log_intake [LINES]    (default: 500000; needs root, and rsyslogd for the comparison)

#![expect(clippy::print_stdout, reason = "prints the table")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use chainscope_e2e::harness::free_port;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::usage::ProcessorTime;

const NODE: &str = "octez";
/// Part of the last line alone.
const LAST: &str = "needle";
/// How long the last line may take to arrive. Datagrams may be lost, the last one too.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between looks at what has arrived.
const INTERVAL: Duration = Duration::from_millis(20);
/// Datagrams between pauses of a millisecond: about 100,000 a second.
const BURST: usize = 100;

/// One measurement.
struct Intake {
    lines: u64,
    seconds: f64,
    cpu_seconds: f64,
}

fn main() {
    let lines: usize = std::env::args().nth(1).map_or(500_000, |lines| lines.parse().expect("a number of lines"));
    println!("{lines} lines of Octez, one after the other, until the last one is found\n");
    println!("| intake | program | lines that arrived | lines/s | processor time a line, µs |");
    println!("| --- | --- | ---: | ---: | ---: |");
    for (name, is_udp) in [("file", false), ("UDP", true)] {
        let ours = chainscope(lines, is_udp);
        show(name, "Chainscope", &ours);
        if let Some(theirs) = rsyslog(lines, is_udp) {
            show(name, "rsyslog", &theirs);
            let ratio = |of: fn(&Intake) -> f64| of(&ours) / of(&theirs);
            let (speed, cpu) = (ratio(Intake::speed), ratio(Intake::cpu_micros));
            println!("| {name} | ratio | | {speed:.2} | {cpu:.2} |");
        } else {
            println!("| {name} | rsyslog is not installed: not compared | | | |");
        }
    }
}

impl Intake {
    fn speed(&self) -> f64 {
        self.lines as f64 / self.seconds
    }

    fn cpu_micros(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.lines as f64
    }
}

fn show(intake: &str, program: &str, measured: &Intake) {
    println!("| {intake} | {program} | {} | {:.0} | {:.1} |", measured.lines, measured.speed(), measured.cpu_micros());
}

fn line(number: usize, lines: usize) -> String {
    let word = if number + 1 == lines { LAST } else { "block" };
    let (minute, second, millisecond) = (number / 60_000 % 60, number / 1000 % 60, number % 1000);
    format!(
        "Nov 24 13:{minute:02}:{second:02}.{millisecond:03} NOTICE │ head is now BLm{number:048} ({word} at level {number})"
    )
}

fn write_file(path: &Path, lines: usize) {
    let mut file = BufWriter::new(File::options().append(true).create(true).open(path).expect("a log file"));
    for number in 0..lines {
        writeln!(file, "{}", line(number, lines)).expect("the log is written");
    }
    file.flush().expect("the log is written");
}

fn send(port: u16, lines: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in 0..lines {
        let message = format!("<30>1 2026-11-24T13:00:00Z host octez-node 1 - - {}", line(number, lines));
        socket.send_to(message.as_bytes(), ("127.0.0.1", port)).expect("sent");
        if number % BURST == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `produce`, and waits until `arrived` says that the last line has.
fn measure(pid: u32, produce: impl FnOnce() + Send, arrived: impl Fn() -> bool, count: impl Fn() -> u64) -> Intake {
    let (begin, cpu) = (Instant::now(), ProcessorTime::of(pid));
    let seconds = std::thread::scope(|scope| {
        scope.spawn(produce);
        while !arrived() && begin.elapsed() < TIMEOUT {
            std::thread::sleep(INTERVAL);
        }
        begin.elapsed().as_secs_f64()
    });
    Intake { lines: count(), seconds, cpu_seconds: ProcessorTime::of(pid).since(&cpu).as_secs_f64() }
}

fn chainscope(lines: usize, is_udp: bool) -> Intake {
    let mut machine = Machine::new("auto");
    let (path, port) = (machine.path("node.log"), free_port());
    let source = if is_udp {
        format!("syslog = {{ listen = \"127.0.0.1:{port}\" }}")
    } else {
        format!("file = {:?}", path.display().to_string())
    };
    machine.observe_with(NODE, free_port(), &format!("logs = {{ {source} }}"));
    let running = machine.start();
    let rows = |query: &str| running.api.get(&format!("/v2/log?node_name={NODE}&limit=1&{query}"));
    let count = || rows("")[0]["id"].as_u64().map_or(0, |id| id + 1);
    let produce = || if is_udp { send(port, lines) } else { write_file(&path, lines) };
    measure(running.program.pid(), produce, || rows(&format!("query={LAST}"))[0].is_object(), count)
}

fn rsyslog(lines: usize, is_udp: bool) -> Option<Intake> {
    Command::new("rsyslogd").arg("-v").output().ok()?;
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let (path, port) = (at("node.log"), free_port());
    File::create(&path).expect("a log file");
    let source = if is_udp {
        format!(
            "module(load=\"imudp\")\ninput(type=\"imudp\" address=\"127.0.0.1\" port=\"{port}\" rcvbufSize=\"16m\")\n"
        )
    } else {
        format!("module(load=\"imfile\")\ninput(type=\"imfile\" File=\"{}\" Tag=\"octez\")\n", path.display())
    };
    let config = format!(
        "global(workDirectory=\"{}\")\n{source}action(type=\"omfile\" file=\"{}\")\n",
        directory.path().display(),
        at("out.log").display()
    );
    fs::write(at("rsyslog.conf"), config).expect("a configuration");
    let arguments =
        ["-n".into(), "-i".into(), at("pid").into_os_string(), "-f".into(), at("rsyslog.conf").into_os_string()];
    let program = Program::start("rsyslogd", Command::new("rsyslogd").args::<_, std::ffi::OsString>(arguments));
    // It writes its process id when it reads.
    let deadline = Instant::now() + TIMEOUT;
    while !at("pid").exists() && Instant::now() < deadline {
        std::thread::sleep(INTERVAL);
    }
    let output = || fs::read(at("out.log")).unwrap_or_default();
    let produce = || if is_udp { send(port, lines) } else { write_file(&path, lines) };
    // The end of the file is enough to find the last line.
    let arrived = || {
        let output = output();
        memchr::memmem::find(&output[output.len().saturating_sub(4096)..], LAST.as_bytes()).is_some()
    };
    Some(measure(program.pid(), produce, arrived, || memchr::memchr_iter(b'\n', &output()).count() as u64))
}
