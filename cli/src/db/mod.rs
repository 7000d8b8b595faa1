//! `chainscope db`: maintenance of the database of a stopped server.

#[cfg(feature = "rocksdb")]
mod maintenance;
#[cfg(feature = "rocksdb")]
mod progress;

#[cfg(feature = "rocksdb")]
pub(crate) use self::maintenance::run;

/// Fails: this program has no databases on disk.
#[cfg(not(feature = "rocksdb"))]
pub(crate) fn run(_: crate::args::DbArgs) -> anyhow::Result<()> {
    let missing =
        crate::failure::Failure::refused("this binary is built without RocksDB, so it has no database on disk");
    Err(missing.hint("use one that is built with the feature `rocksdb`, as `make build` does").into())
}
