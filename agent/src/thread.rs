//! Threads of the agent: named, and with a heartbeat that shows whether each one still makes progress.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::{oneshot, watch};

use crate::Error;

/// Starts a named thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|source| Error::Thread { name, source })
}

/// Waits for a thread and returns its result; a panic of the thread is resumed in the caller.
pub(crate) fn join(thread: Option<JoinHandle<Result<(), Error>>>) -> Result<(), Error> {
    match thread.map(JoinHandle::join) {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

/// A thread that runs one future on an async runtime of its own, until the future ends or the thread is cancelled.
#[derive(Debug)]
pub(crate) struct AsyncThread {
    cancel: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// True once the thread has ended.
    ended: watch::Receiver<bool>,
}

impl AsyncThread {
    pub(crate) fn spawn<F: Future<Output = ()>>(
        name: &'static str,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::Thread { name, source })?;
        let (cancel, is_cancelled) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        let thread = spawn(name, move || {
            runtime.block_on(async {
                tokio::select! {
                    () = make() => {}
                    _ = is_cancelled => {}
                }
            });
            let _ = end.send(true);
        })?;
        Ok(Self { cancel: Some(cancel), thread: Some(thread), ended })
    }

    /// Waits until the future ends by itself, but no longer than `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        if let Ok(runtime) = runtime {
            let ended = self.ended.wait_for(|has_ended| *has_ended);
            runtime.block_on(async {
                // The result of an unfinished or ended future is not needed here.
                let _ = tokio::time::timeout(timeout, ended).await;
            });
        }
    }

    /// Cancels the future and waits for the thread.
    pub(crate) fn end(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            // It may have ended already.
            let _ = cancel.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}

impl Drop for AsyncThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// The moment of a thread's last iteration. The thread calls [`Heartbeat::beat`]; metrics read the age.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    /// Name of the stage, as the label of the metric.
    pub(crate) stage: &'static str,
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    last_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new(stage: &'static str) -> Self {
        Self { stage, started: Instant::now(), last_ms: Arc::default() }
    }

    /// Records that the thread makes progress.
    pub(crate) fn beat(&self) {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed, Ordering::Relaxed);
    }

    /// Time since the last beat.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_counted_from_the_last_beat() {
        let heartbeat = Heartbeat { started: Instant::now() - Duration::from_secs(10), ..Heartbeat::new("test") };
        assert!(heartbeat.age() >= Duration::from_secs(10));
        heartbeat.beat();
        assert!(heartbeat.age() < Duration::from_secs(5));
    }
}
