//! Compares the ratios of benchmarks with committed ones.
//!
//! `ratio_gate DIRECTORY [--slack=1.25] -- COMMAND…`
//!
//! The directory has a file for each kind of machine (processor, number of cores, kernel). The command prints lines of ratios
//! (`chainscope_testing::ratios`); with names of parts as further arguments, those of these parts only. A part that is worse than
//! committed is measured again, and only what is worse each time fails. `UPDATE_RATIOS=1` adds the run to the file of this machine,
//! `UPDATE_RATIOS=new` begins the file anew; both need an idle machine.
//!
//! Without a file of this machine the first one is compared with. Ratios of another machine are not the same, and those of a busy
//! one scatter: there a ratio fails if it is twice as bad.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use chainscope_testing::ratios::{Committed, Run, Verdict};

/// How often a part that is worse is measured again.
const REPEATS: usize = 2;
/// Factor on what is allowed on another machine, and on one that does something else.
const OTHER_MACHINE: f64 = 2.0;
/// Share of the processors that others may use.
const MAX_BUSY: f64 = 0.15;
/// Parts whose ratios are costs.
const COSTS: [&str; 2] = ["memory/", "tree/"];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ratio_gate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, String> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("the first argument is the directory of committed ratios")?;
    let directory = Path::new(&directory);
    let (mut slack, mut command) = (1.0, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.split_once('=') {
            Some(("--slack", number)) => {
                let is_factor = |number: &f64| number.is_finite() && *number >= 1.0;
                slack = number.parse().ok().filter(is_factor).ok_or(format!("--slack={number}: no factor"))?;
            }
            _ if argument == "--" => command.extend(arguments.by_ref()),
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    let machine = machine();
    let file = file_of(directory, &machine);
    let update = std::env::var("UPDATE_RATIOS").unwrap_or_default();
    if update.is_empty() {
        let file = if file.exists() { file } else { first_file(directory)? };
        return compare(&file, slack, &command, &machine);
    }
    let run = measure(&command, &BTreeSet::new())?;
    let is_new = update == "new" || !file.exists();
    let mut committed = if is_new { Committed::default() } else { read(&file)? };
    committed.machine = machine;
    committed.add(&run, |name| COSTS.iter().any(|part| name.starts_with(part)));
    fs::write(&file, committed.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(true)
}

/// The file of a machine: its name in lower case, with hyphens for what is not alphanumeric.
fn file_of(directory: &Path, machine: &str) -> PathBuf {
    let lower = machine.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    directory.join(format!("{}.tsv", words.join("-")))
}

/// The first file by name.
fn first_file(directory: &Path) -> Result<PathBuf, String> {
    let fail = |error| format!("{}: {error}", directory.display());
    let entries =
        fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|e| fail(e.to_string()))?;
    let paths = entries.into_iter().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "tsv"));
    files.min().ok_or_else(|| fail("no .tsv file".to_owned()))
}

fn read(file: &Path) -> Result<Committed, String> {
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    fs::read_to_string(file).map_err(|error| fail(&error))?.parse().map_err(|error| fail(&error))
}

fn compare(file: &Path, slack: f64, command: &[String], machine: &str) -> Result<bool, String> {
    let committed = read(file)?;
    let mut failed: BTreeSet<String> = BTreeSet::new();
    for attempt in 0..=REPEATS {
        let busy = wait_until_idle();
        let slack = if committed.machine != machine {
            println!("The committed ratios are of another machine ({}): twice as bad fails.", committed.machine);
            slack.max(OTHER_MACHINE)
        } else if busy > MAX_BUSY {
            println!("Others use {:.0} % of the processors: twice as bad fails.", busy * 100.0);
            slack.max(OTHER_MACHINE)
        } else {
            slack
        };
        let parts: BTreeSet<&str> = failed.iter().map(|name| part_of(name)).collect();
        let run = measure(command, &parts)?;
        let verdicts = committed.compare(&run, slack);
        let concerned = |name: &String| attempt == 0 || failed.contains(name);
        let mut again = BTreeSet::new();
        for (name, verdict) in verdicts.iter().filter(|(name, _)| concerned(name)) {
            let ratio = run.0.get(name).map_or(String::new(), |measured| format!("{:.3}", measured.ln.exp()));
            let before =
                committed.references.get(name).map_or(String::new(), |before| format!("{:.3}", before.ln.exp()));
            println!("{name:<28} {ratio:>8} {before:>8}  {verdict}");
            if *verdict != Verdict::Passed {
                again.insert(name.clone());
            }
        }
        failed = again;
        if failed.is_empty() {
            return Ok(true);
        }
        if verdicts.iter().any(|(name, verdict)| failed.contains(name) && !matches!(verdict, Verdict::Worse { .. })) {
            break;
        }
    }
    println!("Worse than {}: {}", file.display(), failed.into_iter().collect::<Vec<_>>().join(", "));
    println!("If it has to be: UPDATE_RATIOS=new make bench-quick, then UPDATE_RATIOS=1 make bench-quick a few times.");
    Ok(false)
}

fn part_of(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

/// Runs the benchmarks of these parts; of all if there are none.
fn measure(command: &[String], parts: &BTreeSet<&str>) -> Result<Run, String> {
    let (program, arguments) = command.split_first().ok_or("a command follows --")?;
    let output = Command::new(program)
        .args(arguments)
        .args(parts)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.parse().map_err(|error| format!("{program}: {error}"))
}

/// The processor, their number, and the kernel.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpus.lines().find(|line| line.split(':').next().is_some_and(|field| field.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
    };
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut version = release.split('.');
    let (major, minor) = (version.next().unwrap_or_default(), version.next().unwrap_or_default());
    let (model, family, stepping) = (field("model name"), field("cpu family"), field("model"));
    format!("{model} (family {family}, model {stepping}), {count} cores, Linux {major}.{minor}")
}

/// Waits, at most some seconds, until nothing else runs; returns the share of the processors that is used then.
fn wait_until_idle() -> f64 {
    let mut busy = 1.0;
    for _ in 0..10 {
        let before = cpu_times();
        // A rate needs a time span.
        thread::sleep(Duration::from_secs(1));
        let after = cpu_times();
        let all = after.1.saturating_sub(before.1).max(1);
        busy = 1.0 - after.0.saturating_sub(before.0) as f64 / all as f64;
        if busy <= MAX_BUSY {
            break;
        }
    }
    busy
}

/// Idle time and all time of all processors, in ticks.
fn cpu_times() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let times: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    (times.iter().skip(3).take(2).sum(), times.iter().sum())
}
