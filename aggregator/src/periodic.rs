//! Tasks that run periodically, each on its own thread.

use std::{thread, time::Duration};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::Error;

/// A thread that runs a task at once and after every interval. Dropping this ends the thread and waits for it.
#[derive(Debug)]
pub(crate) struct PeriodicTask {
    end: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PeriodicTask {
    /// Starts the thread.
    pub(crate) fn start(
        name: &'static str,
        interval: Duration,
        mut task: impl FnMut() + Send + 'static,
    ) -> Result<Self, Error> {
        let (end, ended) = bounded::<()>(0);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                loop {
                    task();
                    if ended.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Thread { name: name.to_owned(), source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for PeriodicTask {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the task, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}
