//! What a process uses, from `/proc`.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Processor time that the threads of a process have used; those that ended are not included.
///
/// # Panics
/// If the process does not run.
#[must_use]
pub fn processor_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let of_thread = |thread: &Path| -> Option<u64> {
        let text = fs::read_to_string(thread.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    // A thread may end meanwhile.
    Duration::from_nanos(threads.filter_map(|thread| of_thread(&thread.ok()?.path())).sum())
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
