//! Calls that have been entered, and not ended yet.

use std::collections::BTreeMap;

/// An entry: the stack pointer, and the time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    frame: u64,
    start_ns: u64,
}

/// Calls in progress by thread, the innermost last. Stacks grow downwards: a call at an address has left all that were entered at or
/// below it, by an exception for example.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    threads: BTreeMap<u32, Vec<Entry>>,
    left: u64,
}

impl OpenCalls {
    /// A call begins.
    pub(super) fn enter(&mut self, thread: u32, frame: u64, start_ns: u64) {
        let open = self.threads.entry(thread).or_default();
        let before = open.len();
        open.retain(|entry| entry.frame > frame);
        self.left += (before - open.len()) as u64;
        open.push(Entry { frame, start_ns });
    }

    /// The innermost call ends, at a place where the stack pointer is this. Returns when it began.
    pub(super) fn leave(&mut self, thread: u32, stack_pointer: u64) -> Option<u64> {
        let open = self.threads.get_mut(&thread)?;
        let before = open.len();
        open.retain(|entry| entry.frame >= stack_pointer);
        self.left += (before - open.len()) as u64;
        let ended = open.pop();
        if open.is_empty() {
            self.threads.remove(&thread);
        }
        ended.map(|entry| entry.start_ns)
    }

    /// Calls that were left without an end since the last time.
    pub(super) fn take_left(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// Calls in progress.
    pub(super) fn count(&self) -> u64 {
        self.threads.values().map(|open| open.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_in_their_thread_and_frame() {
        let mut open = OpenCalls::default();
        open.enter(1, 1000, 10);
        open.enter(2, 1000, 11);
        open.enter(1, 800, 12);
        assert_eq!((open.leave(1, 700), open.leave(1, 900), open.leave(1, 900)), (Some(12), Some(10), None));
        assert_eq!((open.leave(2, 1000), open.leave(3, 5), open.take_left(), open.count()), (Some(11), None, 0, 0));
    }

    #[test]
    fn calls_that_were_left_are_counted() {
        let mut open = OpenCalls::default();
        open.enter(1, 1000, 10);
        // Left by an exception: the frame is used again.
        open.enter(1, 1000, 20);
        open.enter(1, 800, 30);
        // The inner one was left, the outer one ends.
        assert_eq!((open.leave(1, 900), open.take_left()), (Some(20), 2));
        open.enter(1, 500, 40);
        open.enter(1, 900, 50);
        assert_eq!((open.take_left(), open.take_left(), open.count()), (1, 0, 1));
    }
}
