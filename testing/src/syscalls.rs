//! System calls of a running program, seen and made to fail from outside by strace.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// What a system call did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Bytes were written.
    Write,
    /// Everything written is on the disk.
    Sync,
}

/// A system call that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it did.
    pub effect: Effect,
    /// The file that it was about, by its path at that time.
    pub path: PathBuf,
}

/// strace, attached until [`Trace::stop`] or the end of what it traces.
#[derive(Debug)]
pub struct Trace {
    strace: Child,
    output: PathBuf,
    // Open, because strace also reports its end here.
    _messages: BufReader<ChildStderr>,
}

impl Trace {
    /// Attaches to the calling thread. `options`, such as `inject=…`, are those of strace's `-e`.
    ///
    /// # Panics
    /// If strace is missing, or may not trace this program.
    #[must_use]
    pub fn of_this_thread(output: &Path, options: &[&str]) -> Self {
        Self::attach(output, &["-p", &rustix::thread::gettid().to_string()], options)
    }

    /// Attaches to all threads of a process.
    ///
    /// # Panics
    /// As [`Trace::of_this_thread`].
    #[must_use]
    pub fn of_process(output: &Path, pid: u32, options: &[&str]) -> Self {
        Self::attach(output, &["-f", "-p", &pid.to_string()], options)
    }

    fn attach(output: &Path, target: &[&str], options: &[&str]) -> Self {
        let options = options.iter().flat_map(|option| ["-e", option]);
        let mut strace = Command::new("strace")
            .args(["-y", "-s0", "-e", "signal=none", "-e", "trace=/write|sync", "-o"])
            .arg(output)
            .args(options)
            .args(target)
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace, which scripts/setup installs");
        let mut messages = BufReader::new(strace.stderr.take().expect("a pipe"));
        let mut message = String::new();
        messages.read_line(&mut message).expect("text");
        assert!(message.contains(" attached"), "{message}");
        Self { strace, output: output.to_owned(), _messages: messages }
    }

    /// Detaches. Returns the writes and syncs, in their order, of a trace of one thread.
    ///
    /// # Panics
    /// If strace has ended already.
    #[must_use]
    pub fn stop(mut self) -> Vec<Call> {
        kill_process(Pid::from_child(&self.strace), Signal::TERM).expect("it runs");
        self.strace.wait().expect("a child");
        fs::read_to_string(&self.output).expect("its output").lines().filter_map(call).collect()
    }
}

/// Parses `fdatasync(7</tmp/000004.log>) = 0`.
fn call(line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (_, rest) = rest.split_once('<')?;
    let (path, result) = rest.split_once('>')?;
    let effect = match name {
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => Effect::Write,
        "fsync" | "fdatasync" => Effect::Sync,
        // Neither `sync_file_range` nor `msync` on its own makes a file durable.
        _ => return None,
    };
    (!result.contains(" = -1 ")).then(|| Call { effect, path: path.into() })
}

/// Checks that whenever `acknowledgement` was written, every file that `is_data` selects was synced after it was last
/// written, and that at least one was written since the acknowledgement before. Returns the number of acknowledgements.
///
/// # Panics
/// If it was not so.
#[must_use]
pub fn acknowledged_after_sync(calls: &[Call], acknowledgement: &Path, is_data: impl Fn(&Path) -> bool) -> usize {
    let (mut unsynced, mut has_written, mut acknowledged) = (BTreeSet::new(), false, 0);
    for Call { effect, path } in calls {
        match effect {
            Effect::Write if path == acknowledgement => {
                assert!(unsynced.is_empty(), "acknowledged before a sync of {unsynced:?}: {calls:#?}");
                assert!(has_written, "acknowledged before anything was written: {calls:#?}");
                (has_written, acknowledged) = (false, acknowledged + 1);
            }
            Effect::Write if is_data(path) => {
                unsynced.insert(path);
                has_written = true;
            }
            Effect::Write => {}
            Effect::Sync => drop(unsynced.remove(path)),
        }
    }
    acknowledged
}

#[cfg(test)]
mod tests {
    use super::{Effect, acknowledged_after_sync, call};

    #[test]
    fn calls_are_parsed_and_an_acknowledgement_without_a_sync_is_found() {
        let calls = |lines: &[&str]| lines.iter().filter_map(|line| call(line)).collect::<Vec<_>>();
        let good = calls(&[
            "write(7</d/a.log>, \"\"..., 10) = 10",
            "fdatasync(7</d/a.log>)   = -1 EIO (Input/output error) (INJECTED)",
            "write(9</d/other>, \"\"..., 10) = 10",
            "fdatasync(7</d/a.log>)   = 0",
            "write(8</d/ack>, \"\"..., 1) = 1",
        ]);
        assert_eq!(good.iter().map(|call| call.effect).collect::<Vec<_>>().len(), 4, "{good:?}");
        assert_eq!(good[2].effect, Effect::Sync);
        let is_log = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "log");
        assert_eq!(acknowledged_after_sync(&good, "/d/ack".as_ref(), is_log), 1);
        for missing in [0, 2] {
            let mut bad = good.clone();
            bad.remove(missing);
            let found = std::panic::catch_unwind(|| acknowledged_after_sync(&bad, "/d/ack".as_ref(), is_log));
            assert!(found.is_err(), "without {:?}", good[missing]);
        }
    }
}
