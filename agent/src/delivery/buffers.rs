//! The buffers of an agent's record streams as its threads share them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{queue::MemoryQueue, spool::Spool, stream::StreamBuffer};

/// The queue in memory and the spool behind it, if there is one.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) queue: Mutex<MemoryQueue>,
    pub(super) spool: Option<Mutex<Spool>>,
    /// Notified when the queue may have something for the spool, and at closing.
    pub(super) queued: Condvar,
    /// Notified when there may be something to send, and at closing.
    pub(super) sendable: Notify,
    closing: AtomicBool,
}

impl Buffers {
    pub(super) fn new(queue: MemoryQueue, spool: Option<Spool>) -> Self {
        Self {
            queue: Mutex::new(queue),
            spool: spool.map(Mutex::new),
            queued: Condvar::new(),
            sendable: Notify::new(),
            closing: AtomicBool::new(false),
        }
    }

    /// The buffer that batches for the aggregator are taken from, locked.
    pub(super) fn outgoing(&self) -> MappedMutexGuard<'_, dyn StreamBuffer> {
        match &self.spool {
            Some(spool) => MutexGuard::map(spool.lock(), |spool| spool as &mut dyn StreamBuffer),
            None => MutexGuard::map(self.queue.lock(), |queue| queue as &mut dyn StreamBuffer),
        }
    }

    /// Wakes the thread that takes records from the queue next.
    pub(super) fn notify_queued(&self) {
        match self.spool {
            Some(_) => {
                self.queued.notify_one();
            }
            None => self.sendable.notify_one(),
        }
    }

    /// No records will be pushed any more.
    pub(super) fn close(&self) {
        {
            // Under the lock: the spool writer must not miss it between its check and its wait.
            let _queue = self.queue.lock();
            self.closing.store(true, Ordering::Release);
        }
        self.queued.notify_one();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
