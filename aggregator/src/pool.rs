//! Threads that read the store for requests.
//!
//! The store blocks, so it is never called on an async worker; and the queue of the runtime's own blocking pool is not
//! bounded. Here a full queue is a 503.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Error;

type Job = Box<dyn FnOnce() + Send>;

/// Set when the caller has dropped its future.
pub(crate) type Cancel = Arc<AtomicBool>;

/// Why a job has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PoolError {
    /// As many requests wait as may.
    #[error("too many requests wait for the store")]
    Full,
    /// The pool ended, or the job panicked.
    #[error("the request could not be finished")]
    Gone,
}

/// A bounded set of threads with a bounded queue.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Sets the flag when the asking future is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Pool {
    pub(crate) fn start(name: &str, threads: usize, queue: usize) -> Result<Self, Error> {
        let (sender, receiver) = bounded::<Job>(queue);
        let threads = (0..threads)
            .map(|index| {
                let receiver = receiver.clone();
                let name = format!("{name}-{index}");
                thread::Builder::new()
                    .name(name.clone())
                    .spawn(move || work(&receiver))
                    .map_err(|source| Error::Thread { name, source })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { jobs: Mutex::new(Some(sender)), threads: Mutex::new(threads) })
    }

    /// Jobs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.jobs.lock().as_ref().map_or(0, Sender::len)
    }

    /// Runs `job` on one of the threads. Dropping the future cancels it: a job that has not begun is not run, one that
    /// runs sees its flag set.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Cancel) -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (answer, wait) = oneshot::channel();
        let guard = CancelOnDrop(Cancel::default());
        let cancel = Arc::clone(&guard.0);
        self.submit(Box::new(move || {
            if !cancel.load(Ordering::Relaxed) {
                // Fails if the caller has gone.
                let _ = answer.send(job(&cancel));
            }
        }))?;
        let answer = wait.await.map_err(|_| PoolError::Gone);
        drop(guard);
        answer
    }

    /// Hands a job over without waiting for its end.
    pub(crate) fn submit(&self, job: Box<dyn FnOnce() + Send>) -> Result<(), PoolError> {
        let Some(jobs) = self.jobs.lock().clone() else { return Err(PoolError::Gone) };
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => PoolError::Full,
            TrySendError::Disconnected(_) => PoolError::Gone,
        })
    }

    /// Runs the waiting jobs and joins the threads. Blocks.
    pub(crate) fn stop(&self) {
        self.jobs.lock().take();
        for thread in self.threads.lock().drain(..) {
            // Panics of jobs are caught, so the thread returned.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<Job>) {
    for job in jobs {
        // The panic hook has printed the message; the caller sees a closed channel.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::Ordering};

    use tokio::sync::oneshot;

    use super::{Pool, PoolError};

    #[tokio::test]
    async fn a_full_queue_refuses_jobs_a_panic_is_caught_and_a_dropped_future_cancels_its_job() {
        let pool = Arc::new(Pool::start("test", 1, 1).unwrap());
        let (began, begins) = oneshot::channel();
        let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
        let (saw, sees) = oneshot::channel();
        let first = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move {
                pool.run(move |cancel| {
                    began.send(()).unwrap();
                    released.recv().unwrap();
                    saw.send(cancel.load(Ordering::Relaxed)).unwrap();
                })
                .await
            }
        });
        begins.await.unwrap();
        pool.submit(Box::new(|| panic!("meant"))).unwrap();
        assert_eq!(pool.waiting(), 1);
        assert_eq!(pool.run(|_| 1).await, Err(PoolError::Full));
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        release.send(()).unwrap();
        assert!(sees.await.unwrap(), "the running job sees that its caller has gone");
        loop {
            match pool.run(|_| 7).await {
                Ok(seven) => break assert_eq!(seven, 7),
                Err(error) => assert_eq!(error, PoolError::Full),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(|_| -> u8 { panic!("meant") }).await, Err(PoolError::Gone));
        pool.stop();
        assert_eq!(pool.run(|_| 1).await, Err(PoolError::Gone));
    }
}
