//! Letting go of what is kept long enough, every few seconds.

use std::{sync::Arc, thread, time::Duration};

use chainscope_quiet::warn_limited;
use chainscope_store::Store;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::{Error, catalog::Catalog, clock::now_ns};

/// The thread that evicts; it ends with this.
#[derive(Debug)]
pub(crate) struct Retention {
    end: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Retention {
    pub(crate) fn start(store: Store, catalog: Option<Arc<Catalog>>, pause: Duration) -> Result<Self, Error> {
        let (end, ended) = bounded::<()>(0);
        let name = "retention".to_owned();
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                loop {
                    if let Some(catalog) = &catalog {
                        catalog.tick(now_ns());
                    }
                    match store.evict(now_ns()) {
                        Ok(evicted) if evicted.segments > 0 => {
                            tracing::info!(evicted.rows, evicted.bytes, "old records were let go");
                        }
                        Ok(_) => {}
                        Err(error) => warn_limited!(%error, "old records could not be let go"),
                    }
                    if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Thread { name, source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }

    /// Ends the thread, and waits until it has. Blocks.
    pub(crate) fn stop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the hook said so.
            let _ = thread.join();
        }
    }
}
