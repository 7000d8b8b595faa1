//! Reads the ring of a probe on a thread of its own: events that take long to show, such as payloads of megabytes in hexadecimal,
//! do not keep others in the ring meanwhile.
//!
//! Hits wait in a queue of bounded size. While it is full the ring is not read, so what is lost then is lost in the kernel, which
//! counts each hit. The bound is exceeded by what one reading of the ring takes: at most the ring and the events that wait for
//! their order.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use chainscope_ebpf::{
    Error as ProbeError,
    trace::{Event as Hit, TraceProbe},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Error, thread};

/// Longest wait for events. The probe is locked meanwhile.
const POLL_TIMEOUT: Duration = Duration::from_millis(40);

/// A thread that reads the ring, and what it has read. Dropping it ends the thread.
pub(super) struct Reader {
    probe: Arc<Mutex<TraceProbe>>,
    shared: Arc<Shared>,
    batches: Receiver<Vec<Hit>>,
    thread: Option<JoinHandle<Result<(), ProbeError>>>,
}

/// What is next.
pub(super) enum Next {
    /// Hits in the order of time.
    Hits(Vec<Hit>),
    /// There is none, and none before this time will follow.
    Idle(u64),
    /// After it was detached: there will be none.
    End,
}

#[derive(Default)]
struct Shared {
    max_bytes: u64,
    /// Bytes of the hits that were read and are not done with.
    queued: Mutex<u64>,
    /// Signalled when there is room.
    room: Condvar,
    /// Hits before this time have been sent.
    complete: AtomicU64,
    is_detached: AtomicBool,
    is_abandoned: AtomicBool,
}

impl Reader {
    /// Starts the thread. It stops reading while `max_bytes` of hits wait.
    pub(super) fn start(probe: Arc<Mutex<TraceProbe>>, max_bytes: u64) -> Result<Self, Error> {
        #[expect(clippy::disallowed_methods, reason = "the bytes of its hits are bounded by `Shared::queued`")]
        let (send, batches) = unbounded();
        let shared = Arc::new(Shared { max_bytes: max_bytes.max(1), ..Shared::default() });
        let (of_thread, read) = (Arc::clone(&shared), Arc::clone(&probe));
        let thread = thread::spawn("chainscope-ring", move || run(&read, &of_thread, &send))?;
        Ok(Self { probe, shared, batches, thread: Some(thread) })
    }

    /// The probe. Its lock may be held by the thread for [`POLL_TIMEOUT`].
    pub(super) fn probe(&self) -> &Mutex<TraceProbe> {
        &self.probe
    }

    /// Waits for hits at most for this long.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Next, ProbeError> {
        match self.batches.recv_timeout(timeout) {
            Ok(hits) => return Ok(Next::Hits(hits)),
            Err(RecvTimeoutError::Disconnected) => return self.end(),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let complete = self.shared.complete.load(Ordering::Acquire);
        // What was sent before that time was stored is there now.
        match self.batches.try_recv() {
            Ok(hits) => Ok(Next::Hits(hits)),
            Err(TryRecvError::Disconnected) => self.end(),
            Err(TryRecvError::Empty) => Ok(Next::Idle(complete)),
        }
    }

    /// A hit of this size is done with.
    pub(super) fn release(&self, bytes: u64) {
        let mut queued = self.shared.queued.lock();
        let was_full = *queued >= self.shared.max_bytes;
        *queued = queued.saturating_sub(bytes);
        if was_full && *queued < self.shared.max_bytes {
            self.shared.room.notify_one();
        }
    }

    /// Detaches. What was captured by then is still read.
    pub(super) fn detach(&self) {
        self.probe.lock().detach_all();
        self.shared.is_detached.store(true, Ordering::Release);
    }

    fn end(&mut self) -> Result<Next, ProbeError> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(Next::End),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

fn run(probe: &Mutex<TraceProbe>, shared: &Shared, batches: &Sender<Vec<Hit>>) -> Result<(), ProbeError> {
    loop {
        {
            let mut queued = shared.queued.lock();
            let is_full =
                |queued: &mut u64| *queued >= shared.max_bytes && !shared.is_abandoned.load(Ordering::Relaxed);
            shared.room.wait_while(&mut queued, is_full);
        }
        if shared.is_abandoned.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut hits = Vec::new();
        let mut probe = probe.lock();
        // Before the ring is read: what comes later is not on its way any more.
        let is_ending = shared.is_detached.load(Ordering::Acquire) && !probe.has_events_waiting();
        let timeout = if is_ending { Duration::ZERO } else { POLL_TIMEOUT };
        probe.poll(timeout, &mut |hit| hits.push(hit))?;
        let (complete, is_waiting) = (probe.complete_until_ns(), probe.has_events_waiting());
        // Handed over to a waiting thread: an unfair lock would be taken again here.
        MutexGuard::unlock_fair(probe);
        if hits.is_empty() {
            if is_ending && !is_waiting {
                return Ok(());
            }
        } else {
            *shared.queued.lock() += hits.iter().map(Hit::bytes).sum::<u64>();
            if batches.send(hits).is_err() {
                return Ok(());
            }
        }
        shared.complete.store(complete, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        {
            // Under the lock: the thread looks at it before it waits.
            let _queued = self.shared.queued.lock();
            self.shared.is_abandoned.store(true, Ordering::Relaxed);
        }
        self.shared.room.notify_one();
        if let Some(thread) = self.thread.take() {
            // The source is dropped: no caller is left that an error could be returned to.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("queued", &*self.shared.queued.lock()).finish_non_exhaustive()
    }
}
