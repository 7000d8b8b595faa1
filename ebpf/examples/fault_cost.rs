//! What a watched process notices of the memory probe: nanoseconds a page (allocate, touch, free) off and on, in
//! alternating pairs in the same process; and what other processes notice. `fault_cost [PAIRS]`, as root.
#![allow(clippy::print_stdout, missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use chainscope_ebpf::memory::{MemoryOptions, MemoryProbe, Scope};

struct Fault {
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Fault {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let orders = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut fault = Self { child, orders, replies };
        fault.reply();
        fault
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("it replies");
        line.trim().to_owned()
    }

    fn run(&mut self) -> f64 {
        writeln!(self.orders, "run").expect("it lives");
        self.orders.flush().expect("it lives");
        self.reply().parse().expect("a number")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let pairs: usize = std::env::args().nth(1).map_or(7, |text| text.parse().expect("a number of pairs"));
    let folder = std::env::temp_dir().join(format!("chainscope-fault-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("room");
    let program = folder.join("fault");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fault.c");
    let built = Command::new("gcc").args(["-O2", "-fomit-frame-pointer", "-o"]).arg(&program).arg(&source).status();
    assert!(built.is_ok_and(|status| status.success()), "gcc");

    let began = Instant::now();
    drop(MemoryProbe::load(&MemoryOptions::default()).expect("root"));
    println!("load and unload: {:?}", began.elapsed());
    println!(
        "| frames | every frame varies | off, ns | on, ns | ratio, median (least) | frames unwound anew | others, ratio |"
    );
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for (depth, vary) in [("2", false), ("12", false), ("12", true), ("27", false), ("75", false)] {
        let arguments: Vec<&str> = if vary { vec![depth, "vary"] } else { vec![depth] };
        let mut fault = Fault::start(&program, &arguments);
        let mut other = Fault::start(&program, &arguments);
        let (mut off, mut on, mut ratios, mut others) = (vec![], vec![], vec![], vec![]);
        let mut fresh = 0.0;
        for _ in 0..pairs {
            let (without, other_without) = (fault.run(), other.run());
            let mut probe = MemoryProbe::load(&MemoryOptions::default()).expect("root");
            probe.watch(fault.child.id()).expect("it lives");
            let (with, other_with) = (fault.run(), other.run());
            probe.poll(Duration::ZERO).expect("it is polled");
            let health = probe.read(Scope::Changed).expect("a reading").health;
            fresh = health.fresh_frames as f64 / health.stacks.max(1) as f64;
            off.push(without);
            on.push(with);
            ratios.push(with / without);
            others.push(other_with / other_without);
        }
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "| {} | {vary} | {:.0} | {:.0} | {:.2} ({least:.2}) | {fresh:.2} | {:.2} |",
            depth.parse::<u32>().expect("a depth") + 6,
            median(off),
            median(on),
            median(ratios),
            median(others),
        );
        let _ = fault.child.kill();
        let _ = other.child.kill();
        let _ = (fault.child.wait(), other.child.wait());
    }
    std::fs::remove_dir_all(folder).expect("it is ours");
}
