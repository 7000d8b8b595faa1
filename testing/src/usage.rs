//! What a process uses, from `/proc`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::time::Duration;

/// Processor time that the threads of a process have used, in nanoseconds by thread.
pub struct ProcessorTime(BTreeMap<OsString, u64>);

impl ProcessorTime {
    /// Of a process until now.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
        let of_thread = |thread: DirEntry| -> Option<(OsString, u64)> {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            Some((thread.file_name(), text.split_whitespace().next()?.parse().ok()?))
        };
        // A thread may end meanwhile.
        Self(threads.filter_map(|thread| of_thread(thread.ok()?)).collect())
    }

    /// What the process has used since then; threads that ended are not included.
    #[must_use]
    pub fn since(&self, before: &Self) -> Duration {
        let used = |(thread, now): (&OsString, &u64)| now - before.0.get(thread).copied().unwrap_or(0).min(*now);
        Duration::from_nanos(self.0.iter().map(used).sum())
    }
}

/// A field of `/proc/PID/status` that counts memory, such as `VmRSS` or `RssAnon`, in bytes.
///
/// # Panics
/// If the process does not run, or the field does not exist.
#[must_use]
pub fn memory(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("the field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}
