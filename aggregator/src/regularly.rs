//! Work that comes round every few seconds, on a thread of its own.

use std::{thread, time::Duration};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::Error;

/// A thread that does its work now and after every pause. It ends with this, which is waited for.
#[derive(Debug)]
pub(crate) struct Regular {
    end: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Regular {
    pub(crate) fn start(
        name: &'static str,
        pause: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> Result<Self, Error> {
        let (end, ended) = bounded::<()>(0);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                loop {
                    work();
                    if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Thread { name: name.to_owned(), source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Regular {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the hook said so.
            let _ = thread.join();
        }
    }
}
