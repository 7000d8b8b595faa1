//! A line on standard error that says what is being waited for.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::terminal;

/// Time before the line is shown: what takes less needs none.
const DELAY: Duration = Duration::from_millis(300);
/// Interval between two updates.
const INTERVAL: Duration = Duration::from_millis(200);

/// A wait that is shown on a terminal, with the time that it has taken; nothing is shown elsewhere, nor among the details of
/// --verbose.
pub(crate) struct Progress {
    what: String,
    start: Instant,
    /// When the line was written.
    shown: Option<Instant>,
    is_enabled: bool,
}

impl Progress {
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let is_enabled = io::stderr().is_terminal() && !terminal::is_quiet() && !terminal::is_verbose();
        Self { what: what.into(), start: Instant::now(), shown: None, is_enabled }
    }

    /// Shows the line while `work` is done, by a thread of its own.
    pub(crate) fn during<T>(what: impl Into<String>, work: impl FnOnce() -> T) -> T {
        let mut progress = Self::start(what);
        if !progress.is_enabled {
            return work();
        }
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let shown = scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    thread::park_timeout(INTERVAL);
                    progress.tick();
                }
            });
            // Also after a panic.
            let _end = End { is_done: &is_done, shown: shown.thread().clone() };
            work()
        })
    }

    /// Updates the line.
    pub(crate) fn tick(&mut self) {
        let is_due = self.shown.map_or(self.start.elapsed() >= DELAY, |shown| shown.elapsed() >= INTERVAL);
        if self.is_enabled && is_due {
            self.shown = Some(Instant::now());
            // Standard error may be closed.
            let _ = write!(io::stderr(), "\r{}… {} s\u{1b}[K", self.what, self.start.elapsed().as_secs());
        }
    }
}

/// Ends the thread that shows a line.
struct End<'a> {
    is_done: &'a AtomicBool,
    shown: thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        self.shown.unpark();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
