//! Stores of the tests of kinds of facts.

use std::path::Path;

use chainscope_store::{Store, StoreOptions};

/// Opens a store in a directory, or in memory: with small buffers and stages, so that few records fill several segments.
pub(crate) fn open(dir: Option<&Path>, segment_rows: u64) -> Store {
    let options = StoreOptions {
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 256 << 10,
        stage_bytes: 20_000,
        ballast_bytes: 0,
        min_free_bytes: 0,
        segment_rows,
        ..StoreOptions::default()
    };
    match dir {
        Some(dir) => Store::open(dir, options),
        None => Store::in_memory(options),
    }
    .expect("a store")
}
