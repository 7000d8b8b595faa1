//! A child process that allocates memory on command, observed by Chainscope.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::api::Api;
use super::program::Program;
use super::wait;

/// The workload program (`testing/programs/memory_workload.c`) and the memory that Chainscope reports for it.
pub struct MemoryProcess {
    program: Program,
    commands: usize,
}

/// The memory of a process as Chainscope reports it, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Anonymous memory attributed to stacks.
    pub anon: i64,
    /// Anonymous memory from before the attach.
    pub before: i64,
    /// Page cache attributed to stacks.
    pub cache: i64,
    /// Time of the report, in milliseconds since 1970.
    pub updated: i64,
}

impl MemoryProcess {
    /// Starts the process and waits until its memory is observed.
    ///
    /// # Panics
    /// If it is not observed in time.
    #[must_use]
    pub fn start(exe: &Path, api: &Api) -> Self {
        let process = Self::unobserved(exe);
        wait::until("the process to be observed", || process.reported(api));
        process
    }

    /// Starts the process without waiting.
    #[must_use]
    pub fn unobserved(exe: &Path) -> Self {
        Self { program: Program::start("memory_workload", &mut Command::new(exe)), commands: 0 }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sends a command without waiting for its result.
    pub fn send(&mut self, command: &str) {
        self.program.write_line(command);
        self.commands += 1;
    }

    /// Whether it has finished every command.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.program.out().len() >= self.commands
    }

    /// Sends a command and returns its result.
    ///
    /// # Panics
    /// If there is none, or it is not a number.
    pub fn request(&mut self, command: &str) -> i64 {
        self.send(command);
        let at = self.commands - 1;
        let line = self.program.wait_stdout(command, |lines| lines.get(at).cloned());
        line.parse().unwrap_or_else(|error| panic!("{command}: {error}: {line:?}"))
    }

    /// The memory that Chainscope reports; `None` before the process is observed.
    ///
    /// # Panics
    /// If the response has another shape.
    #[must_use]
    pub fn reported(&self, api: &Api) -> Option<Reported> {
        let targets = api.get("/v1/targets");
        let target = targets.as_array()?.iter().find(|target| target["pid"] == self.pid())?;
        let number = |at: &Value| at.as_i64().unwrap_or_else(|| panic!("not a number in {target}"));
        Some(Reported {
            anon: number(&target["anon"]["attributed"]),
            before: number(&target["anon"]["beforeAttach"]),
            cache: number(&target["cache"]["attributed"]),
            updated: target["updated"].as_i64()?,
        })
    }

    /// Anonymous memory as counted by the kernel, in KiB.
    ///
    /// # Panics
    /// If the process does not run.
    #[must_use]
    pub fn anonymous(&self) -> i64 {
        rollup(self.pid(), "Anonymous")
    }

    /// Closes its standard input and waits for its successful exit.
    pub fn finish(self) {
        self.program.finish().expect_success("memory_workload");
    }
}

/// A field of a process's `smaps_rollup`, in KiB.
///
/// # Panics
/// If the process does not run, or the field does not exist.
#[must_use]
pub fn rollup(pid: u32, name: &str) -> i64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the field");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
