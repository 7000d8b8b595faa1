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
    heartbeat: Heartbeat,
}

impl AsyncThread {
    /// `stage` is the name of its heartbeat, which shows whether the runtime's thread is blocked.
    pub(crate) fn spawn<F: Future<Output = ()>>(
        name: &'static str,
        stage: &'static str,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::Thread { name, source })?;
        let (cancel, is_cancelled) = oneshot::channel();
        let (end, ended) = watch::channel(false);
        let heartbeat = Heartbeat::new(stage);
        let beating = heartbeat.clone();
        let thread = spawn(name, move || {
            runtime.block_on(async {
                tokio::select! {
                    () = make() => {}
                    _ = is_cancelled => {}
                    () = keep_beating(&beating) => {}
                }
            });
            beating.rest();
            let _ = end.send(true);
        })?;
        Ok(Self { cancel: Some(cancel), thread: Some(thread), ended, heartbeat })
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
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

async fn keep_beating(heartbeat: &Heartbeat) {
    let mut interval = tokio::time::interval(BEAT_INTERVAL);
    loop {
        interval.tick().await;
        heartbeat.beat();
    }
}

impl Drop for AsyncThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// Age of a heartbeat from which on its stage is stuck.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the heartbeats of async runtimes.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Value of `last_ms` of a stage that has nothing to do.
const IDLE: u64 = u64::MAX;

/// The moment of a stage's last progress. Its thread calls [`Heartbeat::beat`]; metrics read the age.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    /// Name of the stage, as the label of the metric.
    pub(crate) stage: &'static str,
    /// A restart of the agent helps if the stage is stuck. False where other processes can cause it.
    is_vital: bool,
    started: Instant,
    /// Milliseconds from `started` to the last beat, or [`IDLE`].
    last_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new(stage: &'static str) -> Self {
        Self { stage, is_vital: true, started: Instant::now(), last_ms: Arc::default() }
    }

    /// The heartbeat of a stage that waits for other processes: its age is a metric and does not fail `/livez`.
    pub(crate) fn of_foreign_calls(stage: &'static str) -> Self {
        let heartbeat = Self { is_vital: false, ..Self::new(stage) };
        heartbeat.rest();
        heartbeat
    }

    /// Records that the stage makes progress.
    pub(crate) fn beat(&self) {
        self.set(Some(Instant::now()));
    }

    /// Notes that the stage waits for work: its age is 0 until the next beat.
    pub(crate) fn rest(&self) {
        self.set(None);
    }

    /// Sets the moment of the last progress; none if there is nothing to do.
    pub(crate) fn set(&self, last: Option<Instant>) {
        let elapsed = last.map(|last| last.saturating_duration_since(self.started).as_millis());
        self.last_ms.store(elapsed.map_or(IDLE, |ms| u64::try_from(ms).unwrap_or(IDLE)), Ordering::Relaxed);
    }

    /// Time since the last progress.
    pub(crate) fn age(&self) -> Duration {
        match self.last_ms.load(Ordering::Relaxed) {
            IDLE => Duration::ZERO,
            last => self.started.elapsed().saturating_sub(Duration::from_millis(last)),
        }
    }

    /// Whether the stage is stuck and only a restart of the agent can help.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_vital && self.age() > STALL_TIMEOUT
    }

    /// With its last progress this long ago.
    #[cfg(test)]
    pub(crate) fn aged(self, age: Duration) -> Self {
        Self { started: Instant::now() - age, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_counted_from_the_last_beat() {
        let heartbeat = Heartbeat::new("test").aged(Duration::from_secs(100));
        assert!(heartbeat.age() >= Duration::from_secs(100) && heartbeat.is_stuck());
        heartbeat.beat();
        assert!(heartbeat.age() < Duration::from_secs(50) && !heartbeat.is_stuck());
        heartbeat.rest();
        assert_eq!(heartbeat.age(), Duration::ZERO);
    }
}
