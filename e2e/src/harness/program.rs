//! A child process: its output line by line, its exit status, signals to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::wait::WAIT_TIMEOUT;

/// Lines that a process has written to one of its outputs.
#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    ended: bool,
}

type Shared = Arc<(Mutex<Lines>, Condvar)>;

/// A running process. It is killed on drop; if the test is failing, its output is printed.
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    out: Shared,
    err: Shared,
}

/// Exit status and output of a process.
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Lines of its standard output.
    pub out: Vec<String>,
    /// Lines of its standard error.
    pub err: Vec<String>,
}

impl Program {
    /// Starts a process with pipes for its three standard streams.
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

    /// Whether its standard error is still open.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.err.0.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// If standard input is closed.
    pub fn write_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .unwrap_or_else(|e| panic!("{} does not read standard input: {e}", self.name));
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process does not exist.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|e| panic!("{} (pid {}): {e}", self.name, self.pid()));
    }

    /// Waits until `probe` finds something in its standard output so far.
    ///
    /// # Panics
    /// If the process exits before, or after [`WAIT_TIMEOUT`].
    pub fn wait_stdout<T>(&self, what: &str, probe: impl FnMut(&[String]) -> Option<T>) -> T {
        self.wait(&self.out, what, probe)
    }

    /// As [`wait_stdout`](Self::wait_stdout), for standard error.
    ///
    /// # Panics
    /// As [`wait_stdout`](Self::wait_stdout).
    pub fn wait_stderr<T>(&self, what: &str, probe: impl FnMut(&[String]) -> Option<T>) -> T {
        self.wait(&self.err, what, probe)
    }

    fn wait<T>(&self, stream: &Shared, what: &str, mut probe: impl FnMut(&[String]) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let (lock, changed) = &**stream;
        let mut lines = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = probe(&lines.lines) {
                return answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let why = if lines.ended { "the process exited" } else { "timeout" };
            if lines.ended || left.is_zero() {
                drop(lines);
                panic!("{}: no {what}: {why}", self.name);
            }
            lines = changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The events (JSON lines) with that name so far.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        let (lock, _) = &*self.out;
        events(&lock.lock().unwrap_or_else(PoisonError::into_inner).lines, name)
    }

    /// Waits for `count` events with that name.
    ///
    /// # Panics
    /// As [`wait_stdout`](Self::wait_stdout).
    pub fn wait_events(&self, name: &str, count: usize) -> Vec<Value> {
        // Each line is parsed once: thousands of events are waited for.
        let (mut found, mut parsed) = (Vec::new(), 0);
        self.wait_stdout(&format!("{count} events {name:?}"), |lines| {
            found.extend(events(&lines[parsed..], name));
            parsed = lines.len();
            (found.len() >= count).then(|| std::mem::take(&mut found))
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

    /// Closes its standard input and waits for its exit.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn finish(mut self) -> Finished {
        self.stdin = None;
        self.wait_exit(WAIT_TIMEOUT)
    }

    /// Sends SIGTERM and waits for its exit.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn terminate(mut self) -> Finished {
        self.signal(Signal::TERM);
        self.wait_exit(WAIT_TIMEOUT)
    }

    /// Waits for its exit.
    ///
    /// # Panics
    /// After `timeout`.
    pub fn join(mut self, timeout: Duration) -> Finished {
        self.wait_exit(timeout)
    }

    /// Sends SIGKILL and waits for its exit.
    pub fn kill(mut self) -> Finished {
        let _ = self.child.kill();
        self.wait_exit(WAIT_TIMEOUT)
    }

    fn wait_exit(&mut self, timeout: Duration) -> Finished {
        // A process that has exited has closed its outputs.
        let deadline = Instant::now() + timeout;
        let end = |stream: &Shared| {
            let (lock, changed) = &**stream;
            let lines = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let left = deadline.saturating_duration_since(Instant::now());
            let (lines, result) =
                changed.wait_timeout_while(lines, left, |l| !l.ended).unwrap_or_else(PoisonError::into_inner);
            (lines.lines.clone(), result.timed_out())
        };
        let ((out, late), (err, later)) = (end(&self.out), end(&self.err));
        assert!(!late && !later, "{} does not exit", self.name);
        let status = self.child.wait().expect("wait(2) of a child");
        Finished { status, out, err }
    }
}

impl Finished {
    /// The events with that name.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        events(&self.out, name)
    }

    /// Fails unless the exit status is 0.
    ///
    /// # Panics
    /// If it is not; with the output.
    pub fn expect_success(self, name: &str) -> Self {
        let output = [self.out.as_slice(), self.err.as_slice()].concat().join("\n");
        assert!(self.status.success(), "{name}: {}\n{output}", self.status);
        self
    }
}

fn events(lines: &[String], name: &str) -> Vec<Value> {
    let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|event| event.get("event").and_then(Value::as_str) == Some(name)).collect()
}

fn follow(stream: impl Read + Send + 'static) -> Shared {
    let shared = Shared::default();
    let writer = shared.clone();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        let (lock, changed) = &*writer;
        // Bytes, not text: output that contains invalid UTF-8 from a peer must not end the capture.
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
            eprintln!(
                "--- output of {} ({} + {} lines):\n{}\n{}",
                self.name,
                out.len(),
                err.len(),
                last(&out),
                last(&err)
            );
        }
    }
}
