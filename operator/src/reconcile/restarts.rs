//! Detection of restart loops of a node's process.
//!
//! tezos-k8s starts `octez-node` from a shell loop that restarts it seven times and then sleeps. The container keeps
//! running and its `restartCount` does not change, so the number of starts that the agent counts is used instead.

use std::collections::VecDeque;

/// Restarts within [`WINDOW_NS`] that make a loop.
const LOOP_THRESHOLD: u32 = 3;
/// Maximum number of entries kept.
const MAX_ENTRIES: usize = 16;
/// Window in which restarts are counted.
const WINDOW_NS: i64 = 600_000_000_000;
/// Uptime after which a process is considered stable.
const STABLE_AFTER_NS: i64 = 300_000_000_000;

/// Restarts of the process of one pod.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// The number of starts in the last report.
    last: Option<u32>,
    /// Times at which restarts were observed, with the number of restarts.
    entries: VecDeque<(i64, u32)>,
}

impl Restarts {
    /// Takes the reported number of starts and the start time of the running process, if any. Returns whether the
    /// process is in a restart loop.
    ///
    /// Entries do not expire while no process is running: a shell loop that gave up does not recover by itself.
    pub(super) fn update(&mut self, starts: u32, up_since_ns: Option<i64>, now_ns: i64) -> bool {
        match self.last {
            // The first start is not a restart.
            Some(last) if starts > last.max(1) => self.entries.push_back((now_ns, starts - last.max(1))),
            // All starts of a process that exited before the first report count.
            None if up_since_ns.is_none() => self.entries.push_back((now_ns, starts)),
            // Unchanged, or reset by a restart of the agent.
            _ => {}
        }
        self.last = Some(starts);
        let is_expired = |at: i64| up_since_ns.is_some() && now_ns.saturating_sub(at) > WINDOW_NS;
        while self.entries.front().is_some_and(|(at, _)| is_expired(*at)) || self.entries.len() > MAX_ENTRIES {
            self.entries.pop_front();
        }
        let recent = self.entries.iter().fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
        recent >= LOOP_THRESHOLD && up_since_ns.is_none_or(|since| now_ns.saturating_sub(since) < STABLE_AFTER_NS)
    }
}
