//! Errors of files of runs.

use std::path::{Path, PathBuf};

use crate::RunId;

/// Why a file of runs cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused, or the file is no database.
    #[error("{path}: {source}", path = path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: rusqlite::Error,
    },
    /// A database of another program.
    #[error("{} is a database, but not a file of runs", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A database of the sample of rippled.
    #[error("{} is a database of the rippled sample: import it first (`chainscope latency import`)", .path.display())]
    Sample {
        /// The file.
        path: PathBuf,
    },
    /// Not a database of the sample of rippled.
    #[error("{} is not a database of the rippled sample: {what}", .path.display())]
    NotSample {
        /// The file.
        path: PathBuf,
        /// What is missing or different.
        what: String,
    },
    /// Written by another version of this program.
    #[error("{}: version {found} of the schema, this program reads version {supported}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// The version that this program reads and writes.
        supported: i32,
    },
    /// A table or value that cannot be.
    #[error("{} is damaged: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Table, row and value.
        what: String,
    },
    /// The run is in the file already.
    #[error("{} has run {run} already", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// The run.
        run: RunId,
    },
    /// The target of an export exists.
    #[error("{} exists; an export does not overwrite", .path.display())]
    Target {
        /// The file.
        path: PathBuf,
    },
    /// No run has this tag, commit or id.
    #[error("no run with tag, commit or id {selector:?}; there are: {}", if .known.is_empty() { "none".to_owned() } else { .known.join(", ") })]
    NoRun {
        /// What was asked for.
        selector: String,
        /// Tags and ids of the file.
        known: Vec<String>,
    },
}

impl Error {
    pub(super) fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match source.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => Self::Damaged { path: path.to_owned(), what: source.to_string() },
            _ => Self::Sqlite { path: path.to_owned(), source },
        }
    }
}
