//! Files of runs: SQLite databases.
//!
//! One file holds any number of runs; `schema.sql` is its schema. Each block is written in one SQL transaction as soon as it ends, so
//! a recorder that is killed loses the block at hand and nothing else; readers see whole blocks while it runs. The file is marked by
//! `application_id`, and `user_version` is the version of the schema.

mod error;
mod read;
mod sample;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, named_params, params};

pub use error::Error;
pub use read::TransactionFilter;
pub use sample::Imported;

use crate::model::{Block, Function, Resolution, Run, RunId, RunInfo, Time, Transaction};

/// `CSLT`.
const APPLICATION_ID: i32 = 0x4353_4c54;

/// Version of the schema.
const VERSION: i32 = 1;

/// How long to wait for another program that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A file of runs.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
}

impl Database {
    /// Open a file to read.
    ///
    /// # Errors
    /// There is no such file, or it is another one, damaged, or of a newer version.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        database.verify()?;
        Ok(database)
    }

    /// Open a file to read and write; create it if there is none.
    ///
    /// # Errors
    /// As [`Self::open`], or it cannot be written.
    pub fn create_or_open(path: &Path) -> Result<Self, Error> {
        let mut database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        if database.is_empty()? {
            database.create(path)?;
        }
        database.verify()?;
        Ok(database)
    }

    fn create(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::sqlite(path, error);
        let transaction =
            self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
        let tables: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
        // Another program may have created it meanwhile.
        if tables == 0 {
            transaction.execute_batch(include_str!("schema.sql")).map_err(failed)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
            transaction.pragma_update(None, "user_version", VERSION).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Self, Error> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| Error::sqlite(path, error))?;
        let database = Self { connection, path: path.to_owned() };
        database.connection.busy_timeout(BUSY_TIMEOUT).map_err(|error| database.failed(error))?;
        // Expressions in the schema of a foreign file call no functions with side effects.
        database.connection.pragma_update(None, "trusted_schema", false).map_err(|error| database.failed(error))?;
        Ok(database)
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    fn is_empty(&self) -> Result<bool, Error> {
        let tables: i64 = self.value("SELECT count(*) FROM sqlite_schema")?;
        Ok(tables == 0)
    }

    fn value<T: rusqlite::types::FromSql>(&self, sql: &str) -> Result<T, Error> {
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.failed(error))
    }

    /// Refuse what is not a file of runs of this version.
    fn verify(&self) -> Result<(), Error> {
        let application: i32 = self.value("PRAGMA application_id")?;
        if application != APPLICATION_ID {
            let path = self.path.clone();
            return Err(if sample::is_sample(&self.connection).map_err(|error| self.failed(error))? {
                Error::Sample { path }
            } else {
                Error::Foreign { path }
            });
        }
        let found: i32 = self.value("PRAGMA user_version")?;
        if found != VERSION {
            return Err(Error::Version { path: self.path.clone(), found, supported: VERSION });
        }
        // The tables are those of the schema, not views or virtual tables in their place.
        let expected = include_str!("schema.sql").matches("CREATE TABLE").count();
        let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('runs', 'tags', 'functions',
            'blocks', 'buckets', 'returns', 'losses', 'transactions') AND sql NOT LIKE 'CREATE VIRTUAL%'";
        let found: i64 = self.value(tables)?;
        if usize::try_from(found).ok() != Some(expected) {
            return Err(self.damaged(format!("{found} of {expected} tables")));
        }
        Ok(())
    }

    fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// Begin a run.
    ///
    /// # Errors
    /// The run exists already, or the file cannot be written.
    pub fn begin_run(&mut self, info: &RunInfo, functions: &[Function]) -> Result<(), Error> {
        let path = self.path.clone();
        let transaction = self.connection.transaction().map_err(|error| Error::sqlite(&path, error))?;
        insert_run(&transaction, info, functions).map_err(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::ConstraintViolation) => Error::Exists { path: path.clone(), run: info.id },
            _ => Error::sqlite(&path, error),
        })?;
        transaction.commit().map_err(|error| Error::sqlite(&path, error))
    }

    /// Add blocks and transactions to a run: all of them, or none.
    ///
    /// # Errors
    /// There is no such run or function, or the file cannot be written.
    pub fn append(&mut self, run: RunId, blocks: &[Block], transactions: &[Transaction]) -> Result<(), Error> {
        let path = self.path.clone();
        let failed = |error| Error::sqlite(&path, error);
        let transaction = self.connection.transaction().map_err(failed)?;
        insert_facts(&transaction, run, blocks, transactions).map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    /// Mark a run as ended.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end_run(&mut self, run: RunId, end: Time) -> Result<(), Error> {
        self.connection
            .execute("UPDATE runs SET end_ns = ?2 WHERE id = ?1", params![run.to_string(), end.0])
            .map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Add a whole run.
    ///
    /// # Errors
    /// As [`Self::begin_run`] and [`Self::append`].
    pub fn insert(&mut self, run: &Run) -> Result<(), Error> {
        self.begin_run(&run.info, &run.functions)?;
        self.append(run.info.id, &run.blocks, &run.transactions)
    }
}

impl Resolution {
    const fn as_str(self) -> &'static str {
        match self {
            Self::LogLinear => "log_linear",
            Self::PowersOfTwo => "powers_of_two",
        }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn insert_run(connection: &Connection, info: &RunInfo, functions: &[Function]) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO runs (id, node, pid, executable, build_id, version, git_commit, host, kernel, start_ns, end_ns, block_ns,
           resolution)
         VALUES (:id, :node, :pid, :executable, :build_id, :version, :commit, :host, :kernel, :start, :end, :block, :resolution)",
        named_params! {
            ":id": info.id.to_string(), ":node": info.node, ":pid": info.pid, ":executable": info.executable,
            ":build_id": info.build_id, ":version": info.version, ":commit": info.commit, ":host": info.host,
            ":kernel": info.kernel, ":start": info.start.0, ":end": info.end.map(|end| end.0),
            ":block": nanoseconds(info.block), ":resolution": info.resolution.as_str(),
        },
    )?;
    let run = connection.last_insert_rowid();
    for tag in &info.tags {
        connection.execute("INSERT INTO tags VALUES (?1, ?2)", params![run, tag])?;
    }
    for (position, function) in functions.iter().enumerate() {
        let symbols = |names: &[String]| serde_json::Value::from(names).to_string();
        connection.execute(
            "INSERT INTO functions (run, position, name, entry_pattern, entry_symbols, exit_pattern, exit_symbols)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                run,
                position,
                function.name,
                function.entry.pattern,
                symbols(&function.entry.symbols),
                function.exit.pattern,
                symbols(&function.exit.symbols)
            ],
        )?;
    }
    Ok(())
}

fn insert_facts(
    connection: &Connection,
    run: RunId,
    blocks: &[Block],
    transactions: &[Transaction],
) -> rusqlite::Result<()> {
    let number: i64 =
        connection.query_row("SELECT number FROM runs WHERE id = ?1", [run.to_string()], |row| row.get(0))?;
    let mut function = connection.prepare("SELECT id FROM functions WHERE run = ?1 AND position = ?2")?;
    let mut insert = connection.prepare(
        "INSERT INTO blocks (function, start_ns, length_ns, count, sum_ns, min_ns, max_ns, unended)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let mut bucket = connection.prepare("INSERT INTO buckets VALUES (?1, ?2, ?3, ?4)")?;
    let mut code = connection.prepare("INSERT INTO returns VALUES (?1, ?2, ?3)")?;
    let mut lost = connection.prepare("INSERT INTO losses VALUES (?1, ?2, ?3)")?;
    for block in blocks {
        let function: i64 = function.query_row(params![number, block.function], |row| row.get(0))?;
        let histogram = &block.histogram;
        insert.execute(params![
            function,
            block.start.0,
            nanoseconds(block.length),
            histogram.count(),
            histogram.sum(),
            histogram.min(),
            histogram.max(),
            block.unended
        ])?;
        let id = connection.last_insert_rowid();
        for held in histogram.buckets() {
            bucket.execute(params![id, held.index, held.least, held.count])?;
        }
        for (value, count) in &block.returns {
            code.execute(params![id, value, count])?;
        }
        for (reason, count) in &block.lost {
            lost.execute(params![id, reason.as_str(), count])?;
        }
    }
    let mut insert = connection.prepare("INSERT INTO transactions VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for fact in transactions {
        insert.execute(params![number, fact.id.to_string(), fact.kind, fact.result, fact.duration_ns, fact.time.0])?;
    }
    Ok(())
}
