//! The fake node: programs with the tracepoints of well-known nodes, which fire what commands ask for and say what they fired.
//!
//! The sources are in `testing/fakenode`. A program reads commands from its standard input, a line each, and replies with
//! lines of JSON, of which the last is `done` or `error`:
//!
//! ```text
//! fire net:inbound_message peer_id=7 message_type=block size=3999999 seed=42 address=@length:68
//! fire coin_selection:change_info#2        the second location
//! repeat 5000 mempool:removed txid=# reason=block threads=2 rate=1000 quiet=1
//! pause MS             returns that long after its start
//! semaphores           their values
//! fork COMMAND         in a child, which then ends
//! exec                 replaces the program by itself
//! transaction kind=payment|offer txid= result= preflight_us= apply_us= throws=0|1 applied=0|1      (rippled)
//! ```
//!
//! The names of arguments are those of the contracts, and all have defaults; `values.h` has the forms of values. `repeat`
//! is at full speed without `rate` (per second, all threads together), and only counts with `quiet=1`. It ends at the end of
//! its input.

pub mod blocks;
mod build;
pub mod relay;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

pub use build::{Flavour, build, build_with};
use serde::Deserialize;
use serde_json::Value;

/// One firing of a tracepoint.
#[derive(Clone, Debug, Deserialize)]
pub struct Fired {
    /// `provider:name`
    pub tracepoint: String,
    /// Number of its location, from 1.
    pub location: u32,
    /// Number of the firing in its command, from 0.
    pub number: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The semaphore just before; 0: nobody traces it, so nothing was fired. 1 without a semaphore.
    pub active: u16,
    /// `CLOCK_MONOTONIC` just before.
    pub before_ns: u64,
    /// `CLOCK_MONOTONIC` just after.
    pub after_ns: u64,
    /// Values by name: numbers, booleans, text (`{"hex"}` if it is not printable ASCII), hashes as displayed, `null`,
    /// `{"unreadable"}`, `{"readable"}` of what memory cut off, and of a payload `{"length", "sha256"}`.
    pub arguments: BTreeMap<String, Value>,
}

impl Fired {
    /// A number, a boolean or a text as scripts print it.
    ///
    /// # Panics
    /// If the argument has no such form.
    #[must_use]
    #[track_caller]
    pub fn show(&self, name: &str) -> String {
        match &self.arguments[name] {
            Value::String(text) => text.clone(),
            value @ (Value::Number(_) | Value::Bool(_)) => value.to_string(),
            other => panic!("{name} of {} is {other}", self.tracepoint),
        }
    }

    /// A number that fits.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    #[track_caller]
    pub fn number_of(&self, name: &str) -> i64 {
        self.arguments[name].as_i64().expect("a number of 63 bits")
    }

    /// The digest of a payload, of the part that can be read.
    ///
    /// # Panics
    /// If nothing can be read.
    #[must_use]
    #[track_caller]
    pub fn sha256(&self) -> &str {
        self.arguments["payload"]["sha256"].as_str().expect("a digest")
    }
}

/// A line of a fake node.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Ready,
    Fired(Fired),
    Called(Called),
    Semaphores { values: BTreeMap<String, u16> },
    Done { before_ns: u64, after_ns: u64 },
    Error { message: String },
}

/// A call of a function of rippled's flavour.
#[derive(Clone, Debug, Deserialize)]
pub struct Called {
    /// `preflight` or `operator()`
    pub function: String,
    /// Thread.
    pub tid: u32,
    /// `CLOCK_MONOTONIC` just before.
    pub before_ns: u64,
    /// `CLOCK_MONOTONIC` just after, also if it threw.
    pub after_ns: u64,
}

/// What a command did.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The firings, by thread and time.
    pub fired: Vec<Fired>,
    /// The calls.
    pub called: Vec<Called>,
    /// Semaphores by tracepoint.
    pub semaphores: BTreeMap<String, u16>,
    /// `CLOCK_MONOTONIC` at its begin.
    pub before_ns: u64,
    /// `CLOCK_MONOTONIC` at its end.
    pub after_ns: u64,
}

/// A running fake node; killed when dropped.
#[derive(Debug)]
pub struct FakeNode {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl FakeNode {
    /// Starts a program of [`build`].
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(program: &Path) -> Self {
        Self::start_command(&mut Command::new(program))
    }

    /// Starts a program of [`build`] by a command of one's own, for its environment.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_command(command: &mut Command) -> Self {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut node = Self { child, input, output };
        node.expect_ready();
        node
    }

    /// Builds and starts one.
    ///
    /// # Panics
    /// Like [`build`] and [`FakeNode::start`].
    #[must_use]
    pub fn run(folder: &Path, flavour: Flavour) -> Self {
        Self::start(&build(folder, flavour))
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Executes a command.
    ///
    /// # Panics
    /// If the node refuses it or has ended.
    #[track_caller]
    pub fn execute(&mut self, command: &str) -> Reply {
        self.send(command);
        let mut reply = Reply::default();
        loop {
            match self.line() {
                Line::Fired(fired) => reply.fired.push(fired),
                Line::Called(called) => reply.called.push(called),
                Line::Semaphores { values } => reply.semaphores = values,
                Line::Done { before_ns, after_ns } => return Reply { before_ns, after_ns, ..reply },
                Line::Error { message } => panic!("{message} ({command})"),
                Line::Ready => panic!("the node started again ({command})"),
            }
        }
    }

    /// Fires once: `provider:name` and settings.
    ///
    /// # Panics
    /// Like [`FakeNode::execute`].
    #[track_caller]
    pub fn fire(&mut self, what: &str) -> Fired {
        self.execute(&format!("fire {what}")).fired.pop().expect("one firing")
    }

    /// Semaphores by tracepoint; empty if it has none.
    ///
    /// # Panics
    /// Like [`FakeNode::execute`].
    #[track_caller]
    pub fn semaphores(&mut self) -> BTreeMap<String, u16> {
        self.execute("semaphores").semaphores
    }

    /// Waits until all these semaphores have a value.
    ///
    /// # Panics
    /// After [`crate::wait::WAIT_TIMEOUT`].
    #[track_caller]
    pub fn wait_for_semaphores(&mut self, tracepoints: &[&str], value: u16) {
        crate::wait::until_true(&format!("semaphores of {tracepoints:?} at {value}"), || {
            let values = self.semaphores();
            tracepoints.iter().all(|name| values.get(*name).is_some_and(|at| *at == value))
        });
    }

    /// Replaces the program by itself, in the same process.
    ///
    /// # Panics
    /// If it does not start again.
    #[track_caller]
    pub fn exec(&mut self) {
        self.send("exec");
        self.expect_ready();
    }

    /// Ends the input and waits for the end of the program.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[track_caller]
    pub fn finish(mut self) -> ExitStatus {
        self.input = None;
        self.child.wait().expect("a child")
    }

    #[track_caller]
    fn send(&mut self, command: &str) {
        assert!(!command.contains('\n'), "one command: {command}");
        let input = self.input.as_mut().expect("open until the end");
        input.write_all(format!("{command}\n").as_bytes()).expect("the node reads");
    }

    #[track_caller]
    fn expect_ready(&mut self) {
        assert!(matches!(self.line(), Line::Ready));
    }

    #[track_caller]
    fn line(&mut self) -> Line {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "the node has ended: {:?}", self.child.wait());
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
