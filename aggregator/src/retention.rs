//! Letting go of what is kept long enough, every few seconds.

use std::{sync::Arc, time::Duration};

use chainscope_hygiene::warn_limited;
use chainscope_store::Store;

use crate::{Error, catalog::Catalog, clock::now_ns, periodic::PeriodicTask};

/// Starts the thread that evicts.
pub(crate) fn start(store: Store, catalog: Option<Arc<Catalog>>, pause: Duration) -> Result<PeriodicTask, Error> {
    PeriodicTask::start("retention", pause, move || {
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
    })
}
