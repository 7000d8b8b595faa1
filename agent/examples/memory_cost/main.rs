//! What profiling memory costs the one who is profiled: the processor time of a page that is asked for, touched and given back, with
//! the profiler to without, by depth of the stack, without frame pointers; beside it other tools where they are installed.
//!
//! ```text
//! cargo run --release -p chainscope-agent --example memory_cost -- [pairs] [pages] [rounds]
//! ```
//!
//! Runs with and without alternate, so that whatever else the machine does falls on both; printed is the median of the
//! ratios of the best rounds (and the least). Needs root and g++. heaptrack follows `malloc`, not pages: it is compared
//! on a program that calls `malloc` for each page. bpftrace counts allocated pages by stack, as its users do: by frame
//! pointers, which are not there, and without the pages that are given back.
#![allow(clippy::print_stdout)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use chainscope_ebpf::memory::{MemoryOptions, MemoryProbe, Scope, StackEnd};

const DEPTHS: [u32; 3] = [5, 15, 30];

/// Who looks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watcher {
    Nobody,
    /// The profiler, at another process.
    Elsewhere,
    Profiler,
    Heaptrack,
    Bpftrace,
}

/// What is run.
#[derive(Debug, Clone, Copy)]
struct Run {
    depth: u32,
    pattern: &'static str,
    by: &'static str,
}

struct Bench {
    program: PathBuf,
    folder: tempfile::TempDir,
    pages: u64,
    rounds: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (pairs, pages, rounds) = (number(1, 7), number(2, 8192), number(3, 15));
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("faults");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/memory_cost/faults.cc");
    let status = Command::new("g++").args(["-O2", "-fomit-frame-pointer", "-o"]).arg(&program).arg(source).status()?;
    ensure!(status.success(), "g++ {status}");
    let bench = Bench { program, folder, pages, rounds };

    println!("Time of a page with the profiler to without, {pairs} pairs, median (least):\n");
    println!("| frames | calls | without, ns | profiled | another process is | complete stacks |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    for pattern in ["same", "vary"] {
        for depth in DEPTHS {
            let run = Run { depth, pattern, by: "mmap" };
            let table = bench.compare(run, &[Watcher::Profiler, Watcher::Elsewhere], pairs)?;
            let complete = table.complete.map_or("-".to_owned(), |share| format!("{share:.3} %"));
            let [profiled, elsewhere] = &table.ratios[..] else { continue };
            println!("| {depth} | {pattern} | {:.0} | {profiled} | {elsewhere} | {complete} |", table.without);
        }
    }
    let others = [("heaptrack", Watcher::Heaptrack, "malloc"), ("bpftrace", Watcher::Bpftrace, "mmap")];
    for (name, watcher, by) in others {
        if !is_installed(name) {
            println!("\n{name} is not installed: not compared.");
            continue;
        }
        println!("\nThe same with {name} ({by}):\n");
        println!("| frames | calls | without, ns | {name} | profiled |");
        println!("| ---: | --- | ---: | ---: | ---: |");
        for depth in DEPTHS {
            let run = Run { depth, pattern: "same", by };
            let table = bench.compare(run, &[watcher, Watcher::Profiler], pairs.min(5))?;
            let [other, profiled] = &table.ratios[..] else { continue };
            println!("| {depth} | same | {:.0} | {other} | {profiled} |", table.without);
        }
    }
    Ok(())
}

/// One row.
struct Row {
    /// Median of the best rounds without anybody, nanoseconds a page.
    without: f64,
    ratios: Vec<String>,
    /// Percent.
    complete: Option<f64>,
}

impl Bench {
    fn compare(&self, run: Run, watchers: &[Watcher], pairs: u64) -> anyhow::Result<Row> {
        let mut without = Vec::new();
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); watchers.len()];
        let mut stacks = (0, 0);
        for _ in 0..pairs {
            let (bare, _) = self.measure(run, Watcher::Nobody)?;
            without.push(bare);
            for (watcher, ratios) in watchers.iter().zip(&mut ratios) {
                let (cost, ends) = self.measure(run, *watcher)?;
                ratios.push(cost / bare);
                if *watcher == Watcher::Profiler {
                    stacks = (stacks.0 + ends.0, stacks.1 + ends.1);
                }
            }
        }
        let shown = |ratios: &mut Vec<f64>| {
            let middle = median(ratios);
            format!("{middle:.2} ({:.2})", ratios.first().copied().unwrap_or(f64::NAN))
        };
        let complete = (stacks.1 > 0).then(|| stacks.0 as f64 * 100.0 / stacks.1 as f64);
        Ok(Row { without: median(&mut without), ratios: ratios.iter_mut().map(shown).collect(), complete })
    }

    /// Nanoseconds a page in the best round, and how many stacks were complete of how many.
    fn measure(&self, run: Run, watcher: Watcher) -> anyhow::Result<(f64, (u64, u64))> {
        let program = match watcher {
            Watcher::Heaptrack => {
                let mut command = Command::new("heaptrack");
                command.arg("-o").arg(self.folder.path().join("trace")).arg(&self.program);
                command
            }
            _ => Command::new(&self.program),
        };
        let mut faults = self.start(program, run)?;
        let beside = match watcher {
            Watcher::Elsewhere => Some(Command::new("sleep").arg("600").spawn()?),
            _ => None,
        };
        let profiler = match (watcher, &beside) {
            (Watcher::Profiler, _) => Some(Profiler::start(faults.child.id())?),
            (_, Some(other)) => Some(Profiler::start(other.id())?),
            _ => None,
        };
        let bpftrace = match watcher {
            Watcher::Bpftrace => Some(bpftrace(faults.child.id())?),
            _ => None,
        };
        let cost = faults.go()?;
        let stacks = profiler.map_or(Ok((0, 0)), Profiler::end)?;
        for mut child in [beside, bpftrace].into_iter().flatten() {
            child.kill()?;
            child.wait()?;
        }
        Ok((cost, stacks))
    }

    fn start(&self, mut program: Command, run: Run) -> anyhow::Result<Faults> {
        let Run { depth, pattern, by } = run;
        program.args([&depth.to_string(), pattern, by, &self.pages.to_string(), &self.rounds.to_string()]);
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        let mut faults = Faults { child, output };
        // heaptrack says things of its own before.
        while faults.line()? != "ready" {}
        Ok(faults)
    }
}

/// The program that asks for pages.
struct Faults {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Faults {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the program ended");
        Ok(line.trim_end().to_owned())
    }

    fn go(&mut self) -> anyhow::Result<f64> {
        self.child.stdin.take().context("piped")?.write_all(b"\n")?;
        let line = self.line()?;
        let best = line.split(' ').next().unwrap_or_default().parse().with_context(|| format!("it said {line:?}"))?;
        let _ = self.output.read_to_end(&mut Vec::new());
        self.child.wait()?;
        Ok(best)
    }
}

/// The profiler as an agent runs it.
struct Profiler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<(u64, u64)>>,
}

impl Profiler {
    fn start(pid: u32) -> anyhow::Result<Self> {
        let mut probe = MemoryProbe::load(&MemoryOptions::default())?;
        probe.watch(pid)?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut read = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                probe.poll(Duration::from_millis(50))?;
                if read.elapsed() >= Duration::from_secs(1) {
                    probe.read(Scope::Changed)?;
                    read = Instant::now();
                }
            }
            let reading = probe.read(Scope::Changed)?;
            let stacks = reading.targets.iter().flat_map(|target| &target.stacks);
            Ok(stacks.fold((0, 0), |(complete, all), (end, count)| {
                (complete + if *end == StackEnd::Complete { *count } else { 0 }, all + count)
            }))
        });
        Ok(Self { stop, thread })
    }

    /// Complete stacks, and all.
    fn end(self) -> anyhow::Result<(u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the profiler panicked"))?
    }
}

/// Waits until it is attached.
fn bpftrace(pid: u32) -> anyhow::Result<Child> {
    let script = format!(
        "BEGIN {{ printf(\"attached\\n\"); }} tracepoint:kmem:mm_page_alloc /pid == {pid}/ {{ @[ustack] = count(); }}"
    );
    let mut child =
        Command::new("bpftrace").args(["-e", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("piped")?);
    let mut line = String::new();
    while !line.contains("attached") {
        line.clear();
        ensure!(output.read_line(&mut line)? > 0, "bpftrace ended");
    }
    // What it prints at its end is not of interest, and must not hold it up.
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    Ok(child)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
