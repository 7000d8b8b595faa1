//! Overhead of memory profiling: processor time to allocate, touch and free a page with the profiler relative to without,
//! by stack depth and without frame pointers. Other tools are measured too if they are installed.
//!
//! ```text
//! cargo run --release -p chainscope-ebpf --example memory_cost -- [pairs] [pages] [rounds]
//! memory_cost ratios
//! ```
//!
//! Runs with and without a tool alternate, so that other load affects both. The output is the median (and minimum) of the
//! ratios of the best rounds. Requires root, g++ and clang. heaptrack traces `malloc` instead of pages, so it is compared on a
//! program that calls `malloc` for each page. bpftrace counts allocated pages by stack: it unwinds by frame pointers,
//! which are absent here, and does not count freed pages. `ratios` prints samples for the regression gate.
//!
//! The floor is measured on the program built with frame pointers: empty programs at the tracepoints of allocations and frees, and
//! stacks counted by `bpf_get_stackid` at allocations alone.
#![expect(clippy::print_stdout, reason = "prints its results")]

mod floor;

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
use chainscope_testing::program;

const DEPTHS: [u32; 3] = [5, 15, 30];

/// The tool that observes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    None,
    /// The profiler, attached to another process.
    Elsewhere,
    Profiler,
    Heaptrack,
    Bpftrace,
    /// Empty programs at the tracepoints.
    Empty,
    /// Allocations counted by stack id, which the kernel finds by frame pointers.
    FramePointers,
}

/// A workload.
#[derive(Debug, Clone, Copy)]
struct Workload {
    depth: u32,
    pattern: &'static str,
    allocator: &'static str,
    has_frame_pointers: bool,
}

struct Bench {
    program: PathBuf,
    program_with_frame_pointers: PathBuf,
    /// Object with the programs of the floor.
    floor: Vec<u8>,
    directory: tempfile::TempDir,
    pages: u64,
    rounds: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (pairs, pages, rounds) = (number(1, 7), number(2, 8192), number(3, 15));
    let directory = tempfile::tempdir()?;
    let bench = Bench {
        program: compile(directory.path(), "faults", "-fomit-frame-pointer"),
        program_with_frame_pointers: compile(directory.path(), "faults-with-frame-pointers", "-fno-omit-frame-pointer"),
        floor: floor::compile(directory.path())?,
        directory,
        pages,
        rounds,
    };
    if arguments.get(1).is_some_and(|argument| argument == "ratios") {
        return Bench { pages: 8192, rounds: 5, ..bench }.print_ratios();
    }

    println!("Time of a page with the profiler to without, {pairs} pairs, median (least):\n");
    println!("| frames | calls | without, ns | profiled | another process is | complete stacks |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    for pattern in ["same", "vary"] {
        for depth in DEPTHS {
            let run = Workload { depth, pattern, allocator: "mmap", has_frame_pointers: false };
            let table = bench.compare(run, &[Tool::Profiler, Tool::Elsewhere], pairs)?;
            let complete = table.complete.map_or("-".to_owned(), |share| format!("{share:.3} %"));
            let [profiled, elsewhere] = &table.shown()[..] else { continue };
            println!("| {depth} | {pattern} | {:.0} | {profiled} | {elsewhere} | {complete} |", table.without);
        }
    }
    println!("\nThe floor:\n");
    println!("| frames | calls | without, ns | empty programs | stack ids by frame pointers |");
    println!("| ---: | --- | ---: | ---: | ---: |");
    for pattern in ["same", "vary"] {
        for depth in DEPTHS {
            let run = Workload { depth, pattern, allocator: "mmap", has_frame_pointers: true };
            let table = bench.compare(run, &[Tool::Empty, Tool::FramePointers], pairs)?;
            let [empty, frame_pointers] = &table.shown()[..] else { continue };
            println!("| {depth} | {pattern} | {:.0} | {empty} | {frame_pointers} |", table.without);
        }
    }
    let others = [("heaptrack", Tool::Heaptrack, "malloc"), ("bpftrace", Tool::Bpftrace, "mmap")];
    for (name, tool, allocator) in others {
        if !is_installed(name) {
            println!("\n{name} is not installed: not compared.");
            continue;
        }
        println!("\nThe same with {name} ({allocator}):\n");
        println!("| frames | calls | without, ns | {name} | profiled |");
        println!("| ---: | --- | ---: | ---: | ---: |");
        for depth in DEPTHS {
            let run = Workload { depth, pattern: "same", allocator, has_frame_pointers: false };
            let table = bench.compare(run, &[tool, Tool::Profiler], pairs.min(5))?;
            let [other, profiled] = &table.shown()[..] else { continue };
            println!("| {depth} | same | {:.0} | {other} | {profiled} |", table.without);
        }
    }
    Ok(())
}

/// Compiles the program to measure with this flag.
fn compile(directory: &Path, name: &str, flag: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/memory_cost/faults.cc");
    program::compile("g++", &source, directory, name, &["-O2", flag])
}

/// A table row.
struct Row {
    /// Median of the best rounds without a tool, in nanoseconds per page.
    without: f64,
    /// Of each tool and pair.
    ratios: Vec<Vec<f64>>,
    /// Share of complete stacks, in percent.
    complete: Option<f64>,
}

impl Row {
    /// Median and least ratio of each tool.
    fn shown(&self) -> Vec<String> {
        let shown = |ratios: &Vec<f64>| {
            let mut ratios = ratios.clone();
            let middle = median(&mut ratios);
            format!("{middle:.2} ({:.2})", ratios.first().copied().unwrap_or(f64::NAN))
        };
        self.ratios.iter().map(shown).collect()
    }
}

impl Bench {
    fn compare(&self, run: Workload, tools: &[Tool], pairs: u64) -> anyhow::Result<Row> {
        let mut without = Vec::new();
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); tools.len()];
        let mut stacks = (0, 0);
        for _ in 0..pairs {
            let (baseline, _) = self.measure(run, Tool::None)?;
            without.push(baseline);
            for (tool, ratios) in tools.iter().zip(&mut ratios) {
                let (cost, ends) = self.measure(run, *tool)?;
                ratios.push(cost / baseline);
                if *tool == Tool::Profiler {
                    stacks = (stacks.0 + ends.0, stacks.1 + ends.1);
                }
            }
        }
        let complete = (stacks.1 > 0).then(|| stacks.0 as f64 * 100.0 / stacks.1 as f64);
        Ok(Row { without: median(&mut without), ratios, complete })
    }

    /// Prints a line for each ratio: its name and its samples.
    fn print_ratios(&self) -> anyhow::Result<()> {
        const PAIRS: u64 = 7;
        for (pattern, tools) in [("same", &[Tool::Profiler, Tool::Elsewhere][..]), ("vary", &[Tool::Profiler])] {
            let run = Workload { depth: 15, pattern, allocator: "mmap", has_frame_pointers: false };
            let row = self.compare(run, tools, PAIRS)?;
            for (tool, ratios) in tools.iter().zip(row.ratios) {
                let name = if *tool == Tool::Elsewhere { "elsewhere" } else { pattern };
                let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.5}")).collect();
                println!("memory/{name} {}", samples.join(" "));
            }
        }
        Ok(())
    }

    /// Returns the nanoseconds per page of the best round, and the numbers of complete stacks and of all stacks.
    fn measure(&self, run: Workload, tool: Tool) -> anyhow::Result<(f64, (u64, u64))> {
        let own = if run.has_frame_pointers { &self.program_with_frame_pointers } else { &self.program };
        let program = match tool {
            Tool::Heaptrack => {
                let mut command = Command::new("heaptrack");
                command.arg("-o").arg(self.directory.path().join("trace")).arg(own);
                command
            }
            _ => Command::new(own),
        };
        let mut faults = self.start(program, run)?;
        let other_process = match tool {
            Tool::Elsewhere => Some(Command::new("sleep").arg("600").spawn()?),
            _ => None,
        };
        let profiler = match (tool, &other_process) {
            (Tool::Profiler, _) => Some(Profiler::start(faults.child.id())?),
            (_, Some(other)) => Some(Profiler::start(other.id())?),
            _ => None,
        };
        let bpftrace = match tool {
            Tool::Bpftrace => Some(bpftrace(faults.child.id())?),
            _ => None,
        };
        let floor = match tool {
            Tool::Empty => Some(floor::attach_empty(&self.floor)?),
            Tool::FramePointers => Some(floor::attach_frame_pointers(&self.floor, faults.child.id())?),
            _ => None,
        };
        let cost = faults.run_rounds()?;
        drop(floor);
        let stacks = profiler.map_or(Ok((0, 0)), Profiler::end)?;
        for mut child in [other_process, bpftrace].into_iter().flatten() {
            child.kill()?;
            child.wait()?;
        }
        Ok((cost, stacks))
    }

    fn start(&self, mut program: Command, run: Workload) -> anyhow::Result<Faults> {
        let Workload { depth, pattern, allocator, .. } = run;
        program.args([&depth.to_string(), pattern, allocator, &self.pages.to_string(), &self.rounds.to_string()]);
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        let mut faults = Faults { child, output };
        // heaptrack prints its own lines first.
        while faults.line()? != "ready" {}
        Ok(faults)
    }
}

/// The running benchmark program.
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

    fn run_rounds(&mut self) -> anyhow::Result<f64> {
        self.child.stdin.take().context("piped")?.write_all(b"\n")?;
        let line = self.line()?;
        let best = line
            .split(' ')
            .next()
            .unwrap_or_default()
            .parse()
            .with_context(|| format!("unexpected output {line:?}"))?;
        let _ = self.output.read_to_end(&mut Vec::new());
        self.child.wait()?;
        Ok(best)
    }
}

/// The profiler, driven as in the agent.
struct Profiler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<(u64, u64)>>,
}

impl Profiler {
    fn start(pid: u32) -> anyhow::Result<Self> {
        let mut probe = MemoryProbe::load(&MemoryOptions::default())?;
        probe.watch(pid)?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut read = Instant::now();
            while !is_stopped.load(Ordering::Relaxed) {
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

    /// Stops the profiler and returns the numbers of complete stacks and of all stacks.
    fn end(self) -> anyhow::Result<(u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the profiler panicked"))?
    }
}

/// Starts bpftrace and waits until it is attached.
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
    // Drains the final output, which is not used, so that bpftrace can exit.
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    Ok(child)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
