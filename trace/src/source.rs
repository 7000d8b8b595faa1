//! Where events come from.

use std::{io, sync::Arc, time::Duration};

use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// A source of events: a probe in the kernel, a recording, or another interface of a node.
pub trait Source {
    /// When it was attached.
    fn start(&self) -> Timestamp;

    /// Every tracepoint location that is, or was, attached. Processes that start later may add some.
    fn attachments(&self) -> Vec<Arc<Attachment>>;

    /// Waits for the next event, in the order of time, at most for this long.
    ///
    /// # Errors
    /// The source cannot be read any more; what was delivered so far is right.
    fn poll(&mut self, timeout: Duration) -> io::Result<Polled>;

    /// Detaches. Events that were captured by then can still be polled, and after them [`Polled::End`].
    fn stop(&mut self);

    /// What the user has to know since the last time, each a sentence, such as a part that cannot be attached.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What was hit, delivered and lost so far. After [`Polled::End`] nothing is on its way any more.
    fn accounting(&mut self) -> Accounting;
}

/// A process that hits tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id, as events have it.
    pub pid: u32,
    /// When it was started: `CLOCK_MONOTONIC` nanoseconds.
    pub start_ns: u64,
}

/// What a source returns when it is polled.
#[derive(Clone, Debug, PartialEq)]
pub enum Polled {
    /// An event.
    Event(Event),
    /// When the process of the next event was started, if it is known; once for a process.
    Process(Process),
    /// The time is up. Events up to this time (`CLOCK_MONOTONIC`, in nanoseconds) have all been delivered.
    Idle {
        /// The time.
        monotonic_ns: u64,
    },
    /// There will be no more events: the source was stopped, every observed process has ended, or the recording ends here.
    End,
}
