//! What can go wrong, with the value that was at fault.

use std::{io, path::PathBuf};

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the database open.
    #[error("the database in {} is in use by another process", path.display())]
    Locked {
        /// Its directory.
        path: PathBuf,
    },
    /// The database was written by a newer build.
    #[error(
        "the database in {} has schema version {found}, this build reads version {known}: use a newer build",
        path.display()
    )]
    NewerSchema {
        /// Its directory.
        path: PathBuf,
        /// Version of the database.
        found: u32,
        /// Version that this build reads.
        known: u32,
    },
    /// The database was written by an older build.
    #[error(
        "the database in {} has schema version {found}, this build reads version {known} only: move the directory away to \
         start with an empty database",
        path.display()
    )]
    OlderSchema {
        /// Its directory.
        path: PathBuf,
        /// Version of the database.
        found: u32,
        /// Version that this build reads.
        known: u32,
    },
    /// There is no database.
    #[error("there is no database in {}", path.display())]
    NoDatabase {
        /// The directory meant.
        path: PathBuf,
    },
    /// There is a RocksDB database, but it is not one of this store.
    #[error("the database in {} is not one of chainscope", path.display())]
    NotAStore {
        /// Its directory.
        path: PathBuf,
    },
    /// Stored data contradicts itself or cannot be read.
    #[error("the database is damaged: {0}")]
    Corrupt(String),
    /// Nothing more can be written; reads go on.
    #[error("the disk is full: {free_bytes} bytes left")]
    DiskFull {
        /// Bytes that an unprivileged writer may still use.
        free_bytes: u64,
    },
    /// Records of a stream are missing between what is stored and what was given.
    #[error("a hole in the stream of node {node}: expected sequence {expected}, found {found}")]
    Hole {
        /// The stream's node.
        node: String,
        /// The sequence that should have come next.
        expected: u64,
        /// The first sequence that was given.
        found: u64,
    },
    /// A name is longer than can be stored.
    #[error("{what} of {length} bytes: at most {most} are possible")]
    TooLong {
        /// What it is the name of.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The greatest possible length.
        most: usize,
    },
    /// A text query that is not one.
    #[error("the query cannot be read: at character {position}, {reason}")]
    TextQuery {
        /// Characters of the query before the place of the error.
        position: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The query's deadline passed before it was done.
    #[error("the query did not end in time: {examined} rows and index blocks examined")]
    Deadline {
        /// Rows and index blocks looked at until then.
        examined: u64,
    },
    /// The query looked at as much as its budget allows without being done.
    #[error("the query is too wide: its budget of {examined} rows and index blocks is used up")]
    Budget {
        /// Rows and index blocks looked at until then.
        examined: u64,
    },
    /// The query's caller no longer wants the answer.
    #[error("the query was cancelled")]
    Cancelled,
    /// A copy of the database, or its compaction, would not fit.
    #[error("{needed_bytes} bytes are needed in {}, and {free_bytes} are free", path.display())]
    NoSpace {
        /// The directory meant.
        path: PathBuf,
        /// Bytes that are needed.
        needed_bytes: u64,
        /// Bytes that an unprivileged writer may still use.
        free_bytes: u64,
    },
    /// A backup is restored only where nothing is.
    #[error("{} is not empty", path.display())]
    NotEmpty {
        /// The directory meant.
        path: PathBuf,
    },
    /// The engine has no files.
    #[error("a store in memory has no files to copy")]
    NoFiles,
    /// The build has no engine with files.
    #[error("{} cannot be opened: this build stores in memory only (cargo feature `rocksdb`)", path.display())]
    NoRocksDb {
        /// The directory meant.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory meant.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The engine refused.
    #[error("the storage engine failed: {0}")]
    Engine(String),
    /// The engine refused a write, and refuses all others until the database is opened again; reads go on.
    #[error("the storage engine failed and takes no more writes: {0}")]
    Failed(String),
}

impl Error {
    /// An error of the file system, with the path it is about.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
