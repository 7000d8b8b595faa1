//! A process whose memory is observed: it does with it what it is told.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::api::Api;
use super::program::Program;
use super::wait;

/// The program `life`, and what Chainscope says of it.
pub struct Life {
    program: Program,
    answers: usize,
}

/// What is known of a process's memory at one moment, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Anonymous memory of stacks.
    pub anon: i64,
    /// Anonymous memory from before the attach.
    pub before: i64,
    /// Page cache of stacks.
    pub cache: i64,
    /// When it was read: milliseconds since 1970.
    pub updated: i64,
}

impl Life {
    /// Starts it and waits until its memory is observed.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn start(exe: &Path, api: &Api) -> Self {
        let life = Self::unobserved(exe);
        wait::until("the process to be observed", || life.shown(api));
        life
    }

    /// Starts it only.
    #[must_use]
    pub fn unobserved(exe: &Path) -> Self {
        Self { program: Program::start("life", &mut Command::new(exe)), answers: 0 }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Tells it something, without waiting for its answer.
    pub fn order(&mut self, order: &str) {
        self.program.tell(order);
        self.answers += 1;
    }

    /// Whether it has done what it was told.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.program.out().len() >= self.answers
    }

    /// Tells it something; its answer.
    ///
    /// # Panics
    /// If there is none, or it is no number.
    pub fn tell(&mut self, order: &str) -> i64 {
        self.order(order);
        let at = self.answers - 1;
        let line = self.program.wait_out(order, |lines| lines.get(at).cloned());
        line.parse().unwrap_or_else(|error| panic!("{order}: {error}: {line:?}"))
    }

    /// What is shown of it now; nothing before it is.
    ///
    /// # Panics
    /// If the answer has another shape.
    #[must_use]
    pub fn shown(&self, api: &Api) -> Option<Shown> {
        let targets = api.get("/v1/targets");
        let found = targets.as_array()?.iter().find(|target| target["pid"] == self.pid())?;
        let number = |at: &Value| at.as_i64().unwrap_or_else(|| panic!("no number in {found}"));
        Some(Shown {
            anon: number(&found["anon"]["attributed"]),
            before: number(&found["anon"]["beforeAttach"]),
            cache: number(&found["cache"]["attributed"]),
            updated: found["updated"].as_i64()?,
        })
    }

    /// Anonymous memory as the kernel counts it page by page, in KiB.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn anonymous(&self) -> i64 {
        rollup(self.pid(), "Anonymous")
    }

    /// Ends it.
    pub fn end(self) {
        self.program.finish().expect_success("life");
    }
}

/// A number of a process's `smaps_rollup`, in KiB.
///
/// # Panics
/// If it does not run, or there is no such number.
#[must_use]
pub fn rollup(pid: u32, name: &str) -> i64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("such a line");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
