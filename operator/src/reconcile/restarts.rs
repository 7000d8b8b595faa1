//! Whether a process keeps ending and starting.
//!
//! tezos-k8s starts `octez-node` from a shell loop: seven times, then the loop gives up and sleeps. The container goes
//! on running and its restart count stays as it is, so the agent's count of starts is what tells.

use std::collections::VecDeque;

/// Starts after the first within [`WINDOW_NS`] that make a loop.
const MANY: u32 = 3;
/// Entries that are kept; far more than make a loop.
const MOST: usize = 16;
/// How long a start counts.
const WINDOW_NS: i64 = 600_000_000_000;
/// A process that has been up this long has settled.
const SETTLED_NS: i64 = 300_000_000_000;

/// The starts of one pod's process.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// The count that was reported last.
    last: Option<u32>,
    /// When further starts were noticed, with how many at once.
    seen: VecDeque<(i64, u32)>,
}

impl Restarts {
    /// Takes the agent's count, and when the running process began, if one runs. Says whether it is a loop.
    ///
    /// While nothing runs no start is forgotten: whoever gave up is in trouble until somebody helps.
    pub(super) fn is_loop(&mut self, starts: u32, up_since_ns: Option<i64>, now_ns: i64) -> bool {
        match self.last {
            // The first start of all is no restart.
            Some(last) if starts > last.max(1) => self.seen.push_back((now_ns, starts - last.max(1))),
            // Whoever ended before this program began to look counts with all its starts.
            None if up_since_ns.is_none() => self.seen.push_back((now_ns, starts)),
            // The same count, or an agent that began to count anew.
            _ => {}
        }
        self.last = Some(starts);
        let is_old = |at: i64| up_since_ns.is_some() && now_ns.saturating_sub(at) > WINDOW_NS;
        while self.seen.front().is_some_and(|(at, _)| is_old(*at)) || self.seen.len() > MOST {
            self.seen.pop_front();
        }
        let recent = self.seen.iter().fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
        recent >= MANY && up_since_ns.is_none_or(|since| now_ns.saturating_sub(since) < SETTLED_NS)
    }
}
