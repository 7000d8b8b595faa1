//! Databases of the eBPF sample of rippled (`tx_latency.py --db probes.db`, 2019): import and export.
//!
//! ```text
//! collections  id, start, end (seconds), git_commit      one row a recording, written at its end
//! tags         collection_id, tag
//! probes       id, description                           0 transactor, 1 payment, 2 offer_create
//! timings      probe_id, timestamp, log_bin, counts      bin k: 2^(k-1) to 2^k µs; bin 1 has 0 µs, too
//! ters         probe_id, timestamp, ter, counts          return codes
//! transactions id (64 hexadecimal digits), type, timestamp, duration (ns), ter
//! ```
//!
//! Samples belong to a collection by their time only. What lies in several is taken for the first of them; what lies in none, as after
//! a kill, is a run of its own without an end, for which an export writes no collection. The time of a sample is the end of a block.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use sha2::{Digest, Sha256};

use super::{Database, Error};
use crate::Histogram;
use crate::model::{Block, Function, Location, Resolution, Run, RunId, RunInfo, Time, Transaction, TransactionId};

const TABLES: [&str; 6] = ["collections", "probes", "tags", "ters", "timings", "transactions"];

/// Names that the sample gives to its probes, by id.
const PROBES: [&str; 3] = ["transactor", "payment", "offer_create"];

/// Bins end at 2^40 µs, 12 days.
const MAX_BIN: i64 = 40;

/// Length of a block if a run has less than two: the sample's period unless another is chosen.
const PERIOD: Duration = Duration::from_secs(600);

const SCHEMA: &str = "
CREATE TABLE collections (id INTEGER PRIMARY KEY ASC, start INTEGER, end INTEGER, git_commit TEXT);
CREATE TABLE probes (id INTEGER PRIMARY KEY ASC, description TEXT);
CREATE TABLE timings (probe_id INTEGER, timestamp INTEGER, log_bin INTEGER, counts INTEGER);
CREATE TABLE ters (probe_id INTEGER, timestamp INTEGER, ter INTEGER, counts INTEGER);
CREATE TABLE tags (collection_id INTEGER, tag TEXT);
CREATE TABLE transactions (id CHARACTER(64), type INTEGER, timestamp INTEGER, duration INTEGER, ter INTEGER);
CREATE INDEX transactions_id ON transactions (id);
";

/// What an import added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The runs.
    pub runs: Vec<RunId>,
    /// Blocks of all runs.
    pub blocks: u64,
    /// Transactions of all runs.
    pub transactions: u64,
    /// Samples and transactions that lie in several collections; they are taken for the first.
    pub ambiguous: u64,
    /// Samples and transactions that lie in no collection; they are a run of their own.
    pub outside: u64,
}

pub(super) fn is_sample(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'";
    let mut statement = connection.prepare(sql)?;
    let tables: BTreeSet<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(TABLES.iter().all(|table| tables.contains(*table)))
}

/// A run while it is collected.
struct Collected {
    run: Run,
    /// By end and function.
    blocks: BTreeMap<(i64, usize), Block>,
}

struct Import {
    source: Database,
    collected: Vec<Collected>,
    /// Index of the run for what lies in no collection, once there is one.
    rest: Option<usize>,
    functions: BTreeMap<i64, usize>,
    report: Imported,
    digest: Sha256,
}

/// Middle of a bin, in nanoseconds.
fn bin_middle(bin: i64) -> u64 {
    1_500 << (bin - 1)
}

/// Bin of a duration, as `bpf_log2l` of bcc computes it for whole microseconds.
fn bin_of(nanoseconds: u64) -> i64 {
    let microseconds = (nanoseconds / 1_000).max(1);
    i64::from(microseconds.ilog2()) + 1
}

impl Import {
    fn damaged(&self, what: String) -> Error {
        self.source.damaged(what)
    }

    fn time(&self, seconds: i64, what: &str) -> Result<Time, Error> {
        Time::from_seconds(seconds).ok_or_else(|| self.damaged(format!("{what}: time {seconds} s")))
    }

    /// Index of the run that a time belongs to.
    fn run_at(&mut self, seconds: i64) -> Result<usize, Error> {
        let within = |index: &usize| {
            let info = &self.collected[*index].run.info;
            Some(*index) != self.rest
                && info.start.seconds() <= seconds
                && info.end.is_some_and(|end| seconds <= end.seconds())
        };
        let mut runs = (0..self.collected.len()).filter(within);
        if let Some(first) = runs.next() {
            self.report.ambiguous += u64::from(runs.next().is_some());
            return Ok(first);
        }
        self.report.outside += 1;
        if let Some(rest) = self.rest {
            return Ok(rest);
        }
        let start = self.time(seconds, "a sample")?;
        self.push(start, None, None, BTreeSet::new());
        self.rest = Some(self.collected.len() - 1);
        Ok(self.collected.len() - 1)
    }

    fn push(&mut self, start: Time, end: Option<Time>, commit: Option<String>, tags: BTreeSet<String>) {
        let info = RunInfo {
            id: RunId([0; 16]),
            node: None,
            pid: 0,
            executable: "rippled".into(),
            build_id: None,
            version: None,
            commit,
            tags,
            host: String::new(),
            kernel: String::new(),
            start,
            end,
            block: PERIOD,
            resolution: Resolution::PowersOfTwo,
        };
        let run = Run { info, functions: Vec::new(), blocks: Vec::new(), transactions: Vec::new() };
        self.collected.push(Collected { run, blocks: BTreeMap::new() });
    }

    fn collections(&mut self) -> Result<(), Error> {
        let mut tags = BTreeMap::<i64, BTreeSet<String>>::new();
        let sql = "SELECT collection_id, tag FROM tags";
        for (id, tag) in self.source.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?)))? {
            tags.entry(id).or_default().insert(tag);
        }
        let sql = "SELECT id, start, end, git_commit FROM collections ORDER BY id";
        let rows: Vec<(i64, i64, i64, Option<String>)> =
            self.source.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        for (id, start, end, commit) in rows {
            self.digest.update(format!("{id} {start} {end} {commit:?}\n"));
            let what = format!("collection {id}");
            if end < start {
                return Err(self.damaged(format!("{what} ends at {end}, before its start at {start}")));
            }
            let (start, end) = (self.time(start, &what)?, self.time(end, &what)?);
            self.push(start, Some(end), commit, tags.remove(&id).unwrap_or_default());
        }
        Ok(())
    }

    fn samples(&mut self, table: &str, column: &str) -> Result<(), Error> {
        let sql = format!("SELECT rowid, probe_id, timestamp, {column}, counts FROM {table} ORDER BY timestamp, rowid");
        let rows: Vec<[i64; 5]> =
            self.source.rows(&sql, &[], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]))?;
        for [row, probe, timestamp, key, count] in rows {
            self.digest.update(format!("{table} {probe} {timestamp} {key} {count}\n"));
            let what = format!("row {row} of {table}");
            let function =
                *self.functions.get(&probe).ok_or_else(|| self.damaged(format!("{what}: no probe {probe}")))?;
            let count = u64::try_from(count).map_err(|_| self.damaged(format!("{what}: count {count}")))?;
            let end = self.time(timestamp, &what)?;
            let run = self.run_at(timestamp)?;
            let block = self.collected[run].blocks.entry((timestamp, function)).or_insert_with(|| Block {
                function,
                start: end,
                ..Block::default()
            });
            if table == "ters" {
                let held = block.returns.entry(key).or_default();
                *held = held.saturating_add(count);
            } else if (1..=MAX_BIN).contains(&key) {
                let mut bin = Histogram::default();
                bin.record_many(bin_middle(key), count);
                block.histogram.merge(&bin);
            } else {
                return Err(self.damaged(format!("{what}: bin {key}")));
            }
        }
        Ok(())
    }

    fn transactions(&mut self) -> Result<(), Error> {
        let sql = "SELECT rowid, id, type, timestamp, duration, ter FROM transactions ORDER BY timestamp, rowid";
        let rows: Vec<(String, [i64; 5])> = self.source.rows(sql, &[], |row| {
            Ok((row.get(1)?, [row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?]))
        })?;
        for (id, [row, kind, timestamp, duration, result]) in rows {
            self.digest.update(format!("{id} {kind} {timestamp} {duration} {result}\n"));
            let what = format!("row {row} of transactions");
            let id: TransactionId = id.parse().map_err(|_| self.damaged(format!("{what}: id {id:?}")))?;
            let duration_ns =
                u64::try_from(duration).map_err(|_| self.damaged(format!("{what}: duration {duration}")))?;
            let time = self.time(timestamp, &what)?;
            let run = self.run_at(timestamp)?;
            self.collected[run].run.transactions.push(Transaction { id, kind, result, duration_ns, time });
        }
        Ok(())
    }

    /// Give blocks their starts and runs their ids.
    fn finish(self) -> (Vec<Run>, Imported) {
        let mut report = self.report;
        let digest = self.digest.finalize();
        let runs = self.collected.into_iter().enumerate().map(|(index, collected)| {
            let Collected { mut run, blocks } = collected;
            let mut previous = BTreeMap::<usize, Time>::new();
            let mut lengths = Vec::new();
            for mut block in blocks.into_values() {
                let end = block.start;
                let start = previous.insert(block.function, end).unwrap_or(run.info.start).min(end);
                block.start = start;
                block.length = Duration::from_nanos(end.0.abs_diff(start.0));
                lengths.push(block.length);
                run.blocks.push(block);
            }
            run.blocks.sort_by_key(|block| (block.start, block.function));
            lengths.sort_unstable();
            run.info.block = lengths.get(lengths.len() / 2).copied().unwrap_or(PERIOD);
            let id = Sha256::new().chain_update(digest).chain_update((index as u64).to_le_bytes()).finalize();
            run.info.id.0.copy_from_slice(&id[..16]);
            report.runs.push(run.info.id);
            report.blocks += run.blocks.len() as u64;
            report.transactions += run.transactions.len() as u64;
            run
        });
        let runs = runs.collect();
        (runs, report)
    }
}

/// Read a database of the sample.
fn read(path: &Path) -> Result<(Vec<Run>, Imported), Error> {
    let source = Database::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    if !is_sample(&source.connection).map_err(|error| source.failed(error))? {
        let what = format!("it needs the tables {}", TABLES.join(", "));
        return Err(Error::NotSample { path: path.to_owned(), what });
    }
    let check: String = source.value("PRAGMA quick_check(1)")?;
    if check != "ok" {
        return Err(source.damaged(check));
    }
    let mut import = Import {
        source,
        collected: Vec::new(),
        rest: None,
        functions: BTreeMap::new(),
        report: Imported::default(),
        digest: Sha256::new(),
    };
    let sql = "SELECT id, description FROM probes ORDER BY id";
    let probes: Vec<(i64, String)> = import.source.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?)))?;
    import.functions = (0..).zip(&probes).map(|(index, (id, _))| (*id, index)).collect();
    import.collections()?;
    import.samples("timings", "log_bin")?;
    import.samples("ters", "ter")?;
    import.transactions()?;
    let (mut runs, report) = import.finish();
    for run in &mut runs {
        run.functions = probes
            .iter()
            .map(|(_, name)| Function { name: name.clone(), entry: Location::default(), exit: Location::default() })
            .collect();
    }
    Ok((runs, report))
}

impl Database {
    /// Add the runs of a database of the sample: all of them, or none.
    ///
    /// # Errors
    /// The file is not one, is damaged, or was imported before.
    pub fn import(&mut self, path: &Path) -> Result<Imported, Error> {
        let (runs, report) = read(path)?;
        let known: BTreeSet<RunId> = self.runs()?.into_iter().map(|run| run.id).collect();
        if let Some(run) = runs.iter().find(|run| known.contains(&run.info.id)) {
            return Err(Error::Exists { path: self.path.clone(), run: run.info.id });
        }
        let target = self.path.clone();
        let failed = |error| Error::sqlite(&target, error);
        let transaction = self.connection.transaction().map_err(failed)?;
        for run in &runs {
            super::insert_run(&transaction, &run.info, &run.functions).map_err(failed)?;
            super::insert_facts(&transaction, run.info.id, &run.blocks, &run.transactions).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        Ok(report)
    }

    /// Write runs as a new database of the sample. A bucket is counted in the bin of its middle.
    ///
    /// # Errors
    /// The file exists or cannot be written, or this one is damaged.
    pub fn export(&self, runs: &[RunInfo], path: &Path) -> Result<(), Error> {
        if path.exists() {
            return Err(Error::Target { path: path.to_owned() });
        }
        let mut target = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        let failed = |error| Error::sqlite(path, error);
        let transaction = target.connection.transaction().map_err(failed)?;
        transaction.execute_batch(SCHEMA).map_err(failed)?;
        let mut probes: Vec<String> = PROBES.iter().map(ToString::to_string).collect();
        for info in runs {
            export_run(&transaction, &self.run(info)?, &mut probes).map_err(failed)?;
        }
        for (id, description) in probes.iter().enumerate() {
            transaction.execute("INSERT INTO probes VALUES (?1, ?2)", params![id, description]).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }
}

fn export_run(connection: &Connection, run: &Run, probes: &mut Vec<String>) -> rusqlite::Result<()> {
    if let Some(end) = run.info.end {
        connection.execute(
            "INSERT INTO collections (start, end, git_commit) VALUES (?1, ?2, ?3)",
            params![run.info.start.seconds(), end.seconds(), run.info.commit],
        )?;
        let collection = connection.last_insert_rowid();
        for tag in &run.info.tags {
            connection.execute("INSERT INTO tags VALUES (?1, ?2)", params![collection, tag])?;
        }
    }
    for block in &run.blocks {
        let name = &run.functions[block.function].name;
        let probe = probes.iter().position(|known| known == name).unwrap_or_else(|| {
            probes.push(name.clone());
            probes.len() - 1
        });
        let end = block.start.0.saturating_add(super::nanoseconds(block.length));
        let timestamp = Time(end).seconds();
        let mut bins = BTreeMap::<i64, u64>::new();
        for bucket in block.histogram.buckets() {
            *bins.entry(bin_of(bucket.middle())).or_default() += bucket.count;
        }
        for (bin, count) in bins {
            connection.execute("INSERT INTO timings VALUES (?1, ?2, ?3, ?4)", params![probe, timestamp, bin, count])?;
        }
        for (code, count) in &block.returns {
            connection.execute("INSERT INTO ters VALUES (?1, ?2, ?3, ?4)", params![probe, timestamp, code, count])?;
        }
    }
    for fact in &run.transactions {
        connection.execute(
            "INSERT INTO transactions VALUES (?1, ?2, ?3, ?4, ?5)",
            params![fact.id.to_string(), fact.kind, fact.time.seconds(), fact.duration_ns, fact.result],
        )?;
    }
    Ok(())
}
