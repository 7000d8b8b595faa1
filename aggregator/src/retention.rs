//! The periodic eviction of records beyond their retention.

use std::{sync::Arc, time::Duration};

use chainscope_hygiene::warn_limited;
use chainscope_store::Store;

use crate::{Error, catalog::Catalog, clock::now_ns, periodic::PeriodicTask};

/// Starts the thread that evicts at each interval.
pub(crate) fn start(store: Store, catalog: Option<Arc<Catalog>>, interval: Duration) -> Result<PeriodicTask, Error> {
    PeriodicTask::start("retention", interval, move || {
        if let Some(catalog) = &catalog {
            catalog.expire_deleted(now_ns());
        }
        match store.evict(now_ns()) {
            Ok(evicted) if evicted.segments > 0 => {
                tracing::info!(evicted.rows, evicted.bytes, "old records were evicted");
            }
            Ok(_) => {}
            Err(error) => warn_limited!(%error, "old records could not be evicted"),
        }
    })
}
