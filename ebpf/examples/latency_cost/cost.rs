//! What a call costs that is timed, by the probe and by other tracers, and how many spans end in a second.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use chainscope_ebpf::latency::{LatencyOptions, LatencyProbe, Pairing};

use crate::target::{Exits, Target, spans};

/// Minimum duration of a call that is traced, in nanoseconds: two exceptions.
const TRACED: f64 = 300.0;
/// Calls by which the start of a tracer is recognised, and how often in turn: other load may slow one down.
const TRIAL: (u64, usize) = (20_000, 3);
/// How long a tracer may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Cost of a call in nanoseconds, a number for each round.
#[derive(Debug, Default)]
struct Costs(Vec<f64>);

impl Costs {
    fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Prints the table of costs.
pub(crate) fn of_calls(program: &Path, rounds: u64, calls: u64) {
    let path = program.display().to_string();
    let bpftrace = format!(
        "uprobe:{path}:plain_hit {{ @start[tid] = nsecs; }} uretprobe:{path}:plain_hit /@start[tid]/ \
         {{ @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }}"
    );
    let bcc = format!("{path}:plain_hit");
    let (mut none, mut sessions, mut instructions) = (Costs::default(), Costs::default(), Costs::default());
    let (mut of_bpftrace, mut of_bcc) = (Costs::default(), Costs::default());
    let mut lost = 0;
    for _ in 0..rounds {
        none.0.push(Target::start(program).hits(calls, 1) / calls as f64);
        for (costs, exits) in [(&mut sessions, Exits::Returns), (&mut instructions, Exits::Instructions)] {
            let timed = with_probe(program, calls, 1, exits);
            costs.0.push(timed.ns / calls as f64);
            lost += timed.lost;
        }
        of_bpftrace.0.extend(with_tracer(program, calls, Command::new("bpftrace").args(["-e", &bpftrace])));
        of_bcc.0.extend(with_tracer(program, calls, Command::new("funclatency-bpfcc").arg(&bcc)));
    }
    let best = of_bpftrace.median().into_iter().chain(of_bcc.median()).reduce(f64::min);
    println!("ns per call, median of {rounds} rounds of {calls} calls; lost by the probe: {lost}\n");
    println!("| | ns per call | of the better other tracer |\n| --- | ---: | ---: |");
    for (name, costs) in [
        ("no tracer", &none),
        ("probe, sessions", &sessions),
        ("probe, exit instructions", &instructions),
        ("bpftrace", &of_bpftrace),
        ("bcc funclatency", &of_bcc),
    ] {
        let cost = costs.median();
        let ratio = cost.zip(best).map_or_else(|| "-".to_owned(), |(cost, best)| format!("{:.2}", cost / best));
        let cost = cost.map_or_else(|| "not installed".to_owned(), |cost| format!("{cost:.0}"));
        println!("| {name} | {cost} | {ratio} |");
    }
}

/// Prints how many spans all processors together end in a second, and how many of them are not in the histogram.
pub(crate) fn rates(program: &Path, rounds: u64, calls: u64) {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    println!("\n| {threads} threads | spans/s, median | least | lost of {} |", rounds * calls * threads);
    println!("| --- | ---: | ---: | ---: |");
    for (name, exits) in [("sessions", Exits::Returns), ("exit instructions", Exits::Instructions)] {
        let (mut rates, mut lost) = (Costs::default(), 0);
        for _ in 0..rounds {
            let timed = with_probe(program, calls, threads, exits);
            rates.0.push((calls * threads) as f64 * 1e9 / timed.ns);
            lost += timed.lost;
        }
        let least = rates.0.iter().copied().fold(f64::INFINITY, f64::min);
        println!("| {name} | {:.0} | {least:.0} | {lost} |", rates.median().unwrap_or_default());
    }
}

/// What calls took that the probe timed.
struct Timed {
    ns: f64,
    /// Calls that are not in the histogram.
    lost: u64,
}

fn with_probe(program: &Path, calls: u64, threads: u64, exits: Exits) -> Timed {
    let pairing = match exits {
        Exits::Returns => Pairing::Session,
        Exits::Instructions => Pairing::StackFrame,
    };
    let mut target = Target::start(program);
    let options = LatencyOptions { max_spans: 1, pairing: Some(pairing) };
    let mut probe = LatencyProbe::load(&options).unwrap_or_else(|error| panic!("{error}"));
    let file = File::open(program).expect("compiled");
    let attached = probe.attach(&file, Some(target.pid()), &spans(program, "plain_hit", exits));
    let (_, spans) = attached.unwrap_or_else(|error| panic!("{error}"));
    let ns = target.hits(calls, threads);
    let counted: u64 = probe.counts(spans[0]).buckets.iter().map(|(_, count)| count).sum();
    Timed { ns, lost: (calls * threads).saturating_sub(counted) }
}

/// Nanoseconds per call; `None` if the tracer is not installed, or does not trace.
fn with_tracer(program: &Path, calls: u64, tracer: &mut Command) -> Option<f64> {
    let mut target = Target::start(program);
    let mut tracer: Child = tracer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let start = Instant::now();
    let is_attached = loop {
        if (0..TRIAL.1).all(|_| target.hits(TRIAL.0, 1) / TRIAL.0 as f64 > TRACED) {
            break true;
        }
        if start.elapsed() > START_TIMEOUT || tracer.try_wait().is_ok_and(|ended| ended.is_some()) {
            break false;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    };
    let cost = is_attached.then(|| target.hits(calls, 1) / calls as f64);
    let _ = tracer.kill();
    let _ = tracer.wait();
    cost
}
