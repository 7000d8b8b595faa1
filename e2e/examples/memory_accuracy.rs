//! Accuracy of the reported memory of a process against the kernel's own counters under every kind of allocation:
//! `smaps_rollup` for anonymous pages, `fincore` for the page cache of a file. Read from the API while the process pauses.
//!
//! ```text
//! cargo run -p chainscope-e2e --example memory_accuracy -- [seconds of churn]
//! ```
#![expect(clippy::print_stdout, reason = "prints the table")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::memory_process::{MemoryProcess, rollup};
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::{run, wait};
use chainscope_testing::program;
use serde_json::Value;

/// Pages of the file that is read.
const FILE: usize = 16_384;
/// Milliseconds of churn between two comparisons.
const WORK: u64 = 5_000;

fn main() {
    let churn = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(600);
    let mut machine = Machine::new("auto");
    let exe = program::memory_workload(machine.directory());
    machine.observe_memory("workload", &exe);
    let chainscope = machine.start();
    let bench = Bench { api: &chainscope.api };
    let file = machine.path("read");
    let path = file.display();

    println!("| after | kernel's count, kB | shown − counted, kB | % |");
    println!("| --- | ---: | ---: | ---: |");
    let mut process = MemoryProcess::start(&exe, bench.api);
    bench.anonymous("start", &process);
    process.request("one 0 50000");
    process.request("heap 100 400000");
    bench.anonymous("growth: 200 MB by mmap, 40 MB by malloc", &process);
    process.request("drop 0 1000 20000");
    bench.anonymous("a part is freed", &process);
    process.request("huge 1 8192");
    bench.anonymous("huge pages", &process);
    process.request("drop 1 100 300");
    process.request("drop 1 1024 512");
    bench.anonymous("parts of huge pages are freed", &process);
    process.request("one 2 20000");
    process.request("collapse 2");
    bench.anonymous("small pages are collapsed into huge ones", &process);
    process.request("one 3 50000");
    process.request("thin 3");
    for _ in 0..3 {
        std::fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
    }
    bench.anonymous("compaction of all memory", &process);
    bench.fork(&mut process);
    std::fs::write(&file, vec![7; FILE * 4096]).expect("write");
    run(Command::new("sync").arg(&file));
    run(Command::new("dd")
        .args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"])
        .arg(format!("of={path}")));
    let cold = in_cache(&file);
    process.request(&format!("read {path}"));
    bench.cache(&process, &file, cold);
    bench.churn(&mut process, &file, churn);
    process.request("settle");
    bench.anonymous("churned memory is freed", &process);
    process.finish();
    bench.wait();
    let left = bench.api.get("/v1/tree?kind=anon&threshold=0")["value"].as_i64().expect("a value");
    row("exit", 0, left);
}

struct Bench<'a> {
    api: &'a Api,
}

impl Bench<'_> {
    /// Waits for a report that was read after this moment; reports are read once a second.
    #[expect(clippy::disallowed_methods, reason = "compared with timestamps of reports")]
    fn wait(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() + 1_000;
        wait::until("the next report", || {
            let targets = self.api.get("/v1/targets");
            let updated = targets.as_array()?.iter().filter_map(|target| target["updated"].as_i64()).max()?;
            let is_over = targets.as_array()?.iter().all(|target| target["state"] == "ended");
            (is_over || u128::try_from(updated).is_ok_and(|updated| updated > now)).then_some(())
        });
    }

    fn difference(&self, process: &MemoryProcess) -> (i64, i64) {
        self.wait();
        let (shown, counted) = (process.reported(self.api).expect("observed"), process.anonymous());
        (counted, shown.anon + shown.before - counted)
    }

    fn anonymous(&self, what: &str, process: &MemoryProcess) {
        let (counted, off) = self.difference(process);
        row(what, counted, off);
    }

    /// The sum of both processes by proportional set size, which counts each shared page once.
    fn fork(&self, process: &mut MemoryProcess) {
        let child = process.request("fork 0 10000");
        self.wait();
        let child = u32::try_from(child).expect("a process");
        let counted = rollup(process.pid(), "Pss_Anon") + rollup(child, "Pss_Anon");
        let targets = self.api.get("/v1/targets");
        let running = targets.as_array().expect("a list").iter().filter(|target| target["state"] == "running");
        let of = |target: &Value, field: &str| target["anon"][field].as_i64().expect("a number");
        let shown: i64 = running.map(|target| of(target, "attributed") + of(target, "beforeAttach")).sum();
        row("fork, both write to shared pages (sum of both, by Pss)", counted, shown - counted);
        process.request("reap");
        self.anonymous("the child's end", process);
    }

    /// Page cache that is attributed to the function that reads the file.
    fn cache(&self, process: &MemoryProcess, file: &Path, cold: i64) {
        self.wait();
        let tree = self.api.get(&format!("/v1/tree?kind=cache&threshold=0&reverse=true&pid={}", process.pid()));
        let counted = in_cache(file) - cold;
        row(
            &format!("reading a cold file of {} MB (page cache, by fincore)", FILE >> 8),
            counted,
            held(&tree, "read_file") - counted,
        );
    }

    fn churn(&self, process: &mut MemoryProcess, file: &Path, seconds: u64) {
        let began = Instant::now();
        let (mut rounds, mut most, mut worst) = (0, 0, (0, 0_i64));
        while began.elapsed() < Duration::from_secs(seconds) {
            process.request(&format!("churn {WORK} {rounds} 0 {}", file.display()));
            let (counted, off) = self.difference(process);
            rounds += 1;
            most = most.max(counted);
            if off.abs() >= worst.1.abs() {
                worst = (counted, off);
            }
        }
        row(
            &format!("{seconds} s of random churn, the worst of {rounds} pauses (at most {most} kB)"),
            worst.0,
            worst.1,
        );
    }
}

fn row(what: &str, counted: i64, off: i64) {
    let share = if counted == 0 { "-".to_owned() } else { format!("{:.3}", off as f64 * 100.0 / counted as f64) };
    println!("| {what} | {counted} | {off} | {share} |");
}

/// Page cache of a file, in kB.
fn in_cache(file: &Path) -> i64 {
    let pages: i64 =
        run(Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(file)).trim().parse().expect("a number");
    pages * 4
}

/// KiB attributed to stacks that contain a function.
fn held(node: &Value, function: &str) -> i64 {
    if node["name"]["functionName"] == function {
        return node["value"].as_i64().expect("a value");
    }
    node["frames"].as_array().into_iter().flatten().map(|child| held(child, function)).sum()
}
