//! How far what is shown of a process's memory is from what the kernel counts, through a life of every kind: against
//! `smaps_rollup` for anonymous pages, against `fincore` for a file's pages in the page cache. Compared while the process
//! pauses, by the API of a whole Chainscope.
//!
//! ```text
//! cargo run -p chainscope-e2e --example memory_accuracy -- [seconds of churn]
//! ```
#![allow(clippy::print_stdout)] // the table

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
/// How long it churns between two comparisons, in milliseconds.
const WORK: u64 = 5_000;

fn main() {
    let churn = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(600);
    let mut machine = Machine::new("auto");
    let exe = program::memory_workload(machine.directory());
    machine.observe_memory("life", &exe);
    let chainscope = machine.start();
    let bench = Bench { api: &chainscope.api };
    let file = machine.path("read");
    let path = file.display();

    println!("| after | kernel's count, kB | shown − counted, kB | % |");
    println!("| --- | ---: | ---: | ---: |");
    let mut life = MemoryProcess::start(&exe, bench.api);
    bench.anonymous("start", &life);
    life.request("one 0 50000");
    life.request("heap 100 400000");
    bench.anonymous("growth: 200 MB by mmap, 40 MB by malloc", &life);
    life.request("drop 0 1000 20000");
    bench.anonymous("a part is given back", &life);
    life.request("huge 1 8192");
    bench.anonymous("huge pages", &life);
    life.request("drop 1 100 300");
    life.request("drop 1 1024 512");
    bench.anonymous("parts of huge pages are given back", &life);
    life.request("one 2 20000");
    life.request("collapse 2");
    bench.anonymous("small pages are collapsed into huge ones", &life);
    life.request("one 3 50000");
    life.request("thin 3");
    for _ in 0..3 {
        std::fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
    }
    bench.anonymous("compaction of all memory", &life);
    bench.fork(&mut life);
    std::fs::write(&file, vec![7; FILE * 4096]).expect("room");
    run(Command::new("sync").arg(&file));
    run(Command::new("dd")
        .args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"])
        .arg(format!("of={path}")));
    let cold = in_cache(&file);
    life.request(&format!("read {path}"));
    bench.cache(&life, &file, cold);
    bench.churn(&mut life, &file, churn);
    life.request("settle");
    bench.anonymous("what churned is given back", &life);
    life.finish();
    bench.wait();
    let left = bench.api.get("/v1/tree?kind=anon&threshold=0")["value"].as_i64().expect("a value");
    row("exit", 0, left);
}

struct Bench<'a> {
    api: &'a Api,
}

impl Bench<'_> {
    /// Waits until what is shown is from after this moment: it is read once a second.
    fn wait(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() + 1_000;
        wait::until("the next reading", || {
            let targets = self.api.get("/v1/targets");
            let updated = targets.as_array()?.iter().filter_map(|target| target["updated"].as_i64()).max()?;
            let is_over = targets.as_array()?.iter().all(|target| target["state"] == "ended");
            (is_over || u128::try_from(updated).is_ok_and(|updated| updated > now)).then_some(())
        });
    }

    fn difference(&self, life: &MemoryProcess) -> (i64, i64) {
        self.wait();
        let (shown, counted) = (life.reported(self.api).expect("it is observed"), life.anonymous());
        (counted, shown.anon + shown.before - counted)
    }

    fn anonymous(&self, what: &str, life: &MemoryProcess) {
        let (counted, off) = self.difference(life);
        row(what, counted, off);
    }

    /// The pages of both processes, each shared one once: by their proportional shares.
    fn fork(&self, life: &mut MemoryProcess) {
        let child = life.request("fork 0 10000");
        self.wait();
        let child = u32::try_from(child).expect("a process");
        let counted = rollup(life.pid(), "Pss_Anon") + rollup(child, "Pss_Anon");
        let targets = self.api.get("/v1/targets");
        let running = targets.as_array().expect("a list").iter().filter(|target| target["state"] == "running");
        let of = |target: &Value, field: &str| target["anon"][field].as_i64().expect("a number");
        let shown: i64 = running.map(|target| of(target, "attributed") + of(target, "beforeAttach")).sum();
        row("fork, both write to shared pages (sum of both, by Pss)", counted, shown - counted);
        life.request("reap");
        self.anonymous("the child's end", life);
    }

    /// What the function that reads the file holds in the page cache.
    fn cache(&self, life: &MemoryProcess, file: &Path, cold: i64) {
        self.wait();
        let tree = self.api.get(&format!("/v1/tree?kind=cache&threshold=0&reverse=true&pid={}", life.pid()));
        let counted = in_cache(file) - cold;
        row(
            &format!("reading a cold file of {} MB (page cache, by fincore)", FILE >> 8),
            counted,
            held(&tree, "read_file") - counted,
        );
    }

    fn churn(&self, life: &mut MemoryProcess, file: &Path, seconds: u64) {
        let began = Instant::now();
        let (mut rounds, mut most, mut worst) = (0, 0, (0, 0_i64));
        while began.elapsed() < Duration::from_secs(seconds) {
            life.request(&format!("churn {WORK} {rounds} 0 {}", file.display()));
            let (counted, off) = self.difference(life);
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

/// A file's pages in the page cache, in kB.
fn in_cache(file: &Path) -> i64 {
    let pages: i64 =
        run(Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(file)).trim().parse().expect("a number");
    pages * 4
}

/// KiB of the stacks that a function is in.
fn held(node: &Value, function: &str) -> i64 {
    if node["name"]["functionName"] == function {
        return node["value"].as_i64().expect("a value");
    }
    node["frames"].as_array().into_iter().flatten().map(|child| held(child, function)).sum()
}
