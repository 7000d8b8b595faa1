//! A child program: its lines as they come, its end, its death.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::wait::PATIENCE;

/// Lines that a program wrote to one of its outputs.
#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    ended: bool,
}

type Shared = Arc<(Mutex<Lines>, Condvar)>;

/// A running program. Dropped, it is killed; if the test is failing, what it said is printed.
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    out: Shared,
    err: Shared,
}

/// What a program left.
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Lines on standard output.
    pub out: Vec<String>,
    /// Lines on standard error.
    pub err: Vec<String>,
}

impl Program {
    /// Starts it, with pipes for all three streams.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(name: &str, command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let out = follow(child.stdout.take().expect("piped"));
        let err = follow(child.stderr.take().expect("piped"));
        Self { name: name.to_owned(), stdin: child.stdin.take(), child, out, err }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still has its outputs open.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.err.0.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// If it does not read any more.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .unwrap_or_else(|e| panic!("{} does not listen: {e}", self.name));
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|e| panic!("{} (pid {}): {e}", self.name, self.pid()));
    }

    /// Waits for the first answer of `look` to its output so far.
    ///
    /// # Panics
    /// If the program ends before, or [`PATIENCE`] does.
    pub fn wait_out<T>(&self, what: &str, look: impl FnMut(&[String]) -> Option<T>) -> T {
        self.wait(&self.out, what, look)
    }

    /// As [`wait_out`](Self::wait_out), for standard error.
    ///
    /// # Panics
    /// As there.
    pub fn wait_err<T>(&self, what: &str, look: impl FnMut(&[String]) -> Option<T>) -> T {
        self.wait(&self.err, what, look)
    }

    fn wait<T>(&self, stream: &Shared, what: &str, mut look: impl FnMut(&[String]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let (lock, changed) = &**stream;
        let mut lines = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = look(&lines.lines) {
                return answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let why = if lines.ended { "it ended" } else { "it takes too long" };
            if lines.ended || left.is_zero() {
                drop(lines);
                panic!("{}: no {what}: {why}", self.name);
            }
            lines = changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The events (JSON lines) of that name so far.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        let (lock, _) = &*self.out;
        events(&lock.lock().unwrap_or_else(PoisonError::into_inner).lines, name)
    }

    /// Waits until there are `count` events of that name.
    ///
    /// # Panics
    /// As [`wait_out`](Self::wait_out).
    pub fn wait_events(&self, name: &str, count: usize) -> Vec<Value> {
        self.wait_out(&format!("{count} events {name:?}"), |lines| {
            Some(events(lines, name)).filter(|e| e.len() >= count)
        })
    }

    /// Lines on standard output so far.
    #[must_use]
    pub fn out(&self) -> Vec<String> {
        self.out.0.lock().unwrap_or_else(PoisonError::into_inner).lines.clone()
    }

    /// Lines on standard error so far.
    #[must_use]
    pub fn err(&self) -> Vec<String> {
        self.err.0.lock().unwrap_or_else(PoisonError::into_inner).lines.clone()
    }

    /// Closes its standard input and waits for its end.
    ///
    /// # Panics
    /// If it takes more than [`PATIENCE`].
    pub fn finish(mut self) -> Finished {
        self.stdin = None;
        self.await_end(PATIENCE)
    }

    /// SIGTERM, then its end.
    ///
    /// # Panics
    /// If it takes more than [`PATIENCE`].
    pub fn terminate(mut self) -> Finished {
        self.signal(Signal::TERM);
        self.await_end(PATIENCE)
    }

    /// Waits for it to end by itself.
    ///
    /// # Panics
    /// If it takes longer than `patience`.
    pub fn join(mut self, patience: Duration) -> Finished {
        self.await_end(patience)
    }

    /// SIGKILL, and reaps it.
    pub fn kill(mut self) -> Finished {
        let _ = self.child.kill();
        self.await_end(PATIENCE)
    }

    fn await_end(&mut self, patience: Duration) -> Finished {
        // A process that has ended has closed its outputs.
        let deadline = Instant::now() + patience;
        let end = |stream: &Shared| {
            let (lock, changed) = &**stream;
            let lines = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let left = deadline.saturating_duration_since(Instant::now());
            let (lines, timeout) =
                changed.wait_timeout_while(lines, left, |l| !l.ended).unwrap_or_else(PoisonError::into_inner);
            (lines.lines.clone(), timeout.timed_out())
        };
        let ((out, late), (err, later)) = (end(&self.out), end(&self.err));
        assert!(!late && !later, "{} does not end", self.name);
        let status = self.child.wait().expect("a child can be waited for");
        Finished { status, out, err }
    }
}

impl Finished {
    /// The events of that name.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        events(&self.out, name)
    }

    /// Fails unless it exited with 0.
    ///
    /// # Panics
    /// If it did not; with what it said.
    pub fn expect_success(self, name: &str) -> Self {
        let said = [self.out.as_slice(), self.err.as_slice()].concat().join("\n");
        assert!(self.status.success(), "{name}: {}\n{said}", self.status);
        self
    }
}

fn events(lines: &[String], name: &str) -> Vec<Value> {
    let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|event| event.get("event").and_then(Value::as_str) == Some(name)).collect()
}

fn follow(stream: impl Read + Send + 'static) -> Shared {
    let shared = Shared::default();
    let ours = shared.clone();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        let (lock, changed) = &*ours;
        // Bytes, not text: a program that prints what a peer sent must not end its own capture.
        while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            lock.lock().unwrap_or_else(PoisonError::into_inner).lines.push(text);
            changed.notify_all();
            line.clear();
        }
        lock.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        changed.notify_all();
    });
    shared
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let (lock, _) = &*self.out;
            let out = lock.lock().unwrap_or_else(PoisonError::into_inner).lines.clone();
            let err = self.err();
            let last = |lines: &[String]| lines.iter().rev().take(40).rev().cloned().collect::<Vec<_>>().join("\n");
            eprintln!("--- {} said ({} + {} lines):\n{}\n{}", self.name, out.len(), err.len(), last(&out), last(&err));
        }
    }
}
