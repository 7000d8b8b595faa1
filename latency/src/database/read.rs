//! Reading runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Row, ToSql, params_from_iter};

use super::{Database, Error};
use crate::Histogram;
use crate::model::{
    Block, Function, Location, LossReason, Resolution, Run, RunId, RunInfo, Time, Transaction, TransactionId,
};

/// Which transactions to find; what is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct TransactionFilter {
    /// Start of the id, in hexadecimal.
    pub id_prefix: Option<String>,
    /// Type.
    pub kind: Option<i64>,
    /// Result.
    pub result: Option<i64>,
    /// Ended at this time or later.
    pub from: Option<Time>,
    /// Ended at this time or earlier.
    pub to: Option<Time>,
    /// Of any of these runs; empty for all.
    pub runs: Vec<RunId>,
    /// Slowest first; else by time.
    pub slowest_first: bool,
    /// At most this many.
    pub limit: u32,
}

impl Database {
    /// Rows of a query, each converted.
    pub(super) fn rows<T>(
        &self,
        sql: &str,
        parameters: &[&dyn ToSql],
        mut convert: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let failed = |error| self.failed(error);
        let mut statement = self.connection.prepare(sql).map_err(failed)?;
        let rows = statement.query_map(parameters, |row| convert(row)).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// All runs, in order of recording or import.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn runs(&self) -> Result<Vec<RunInfo>, Error> {
        let mut tags = BTreeMap::<i64, BTreeSet<String>>::new();
        for (run, tag) in self.rows("SELECT run, tag FROM tags", &[], |row| Ok((row.get(0)?, row.get(1)?)))? {
            tags.entry(run).or_default().insert(tag);
        }
        let sql =
            "SELECT number, id, node, pid, executable, build_id, version, git_commit, host, kernel, start_ns, end_ns,
            block_ns, resolution FROM runs ORDER BY number";
        let rows = self.rows(sql, &[], |row| {
            let (id, resolution): (String, String) = (row.get(1)?, row.get(13)?);
            let info = RunInfo {
                id: RunId([0; 16]),
                node: row.get(2)?,
                pid: row.get(3)?,
                executable: row.get(4)?,
                build_id: row.get(5)?,
                version: row.get(6)?,
                commit: row.get(7)?,
                tags: tags.remove(&row.get(0)?).unwrap_or_default(),
                host: row.get(8)?,
                kernel: row.get(9)?,
                start: Time(row.get(10)?),
                end: row.get::<_, Option<i64>>(11)?.map(Time),
                block: Duration::from_nanos(row.get(12)?),
                resolution: Resolution::LogLinear,
            };
            Ok((info, id, resolution))
        })?;
        let parsed = rows.into_iter().map(|(info, id, resolution)| {
            let id = id.parse().map_err(|_| self.damaged(format!("id {id:?} of a run")))?;
            let resolution = [Resolution::LogLinear, Resolution::PowersOfTwo]
                .into_iter()
                .find(|known| known.as_str() == resolution)
                .ok_or_else(|| self.damaged(format!("resolution {resolution:?} of run {id}")))?;
            Ok(RunInfo { id, resolution, ..info })
        });
        parsed.collect()
    }

    /// The runs that a user means: all with this tag; else all whose commit, or the one whose id, starts with it. `latest` is the last
    /// run.
    ///
    /// # Errors
    /// There is none, or the file is damaged.
    pub fn select(&self, selector: &str) -> Result<Vec<RunInfo>, Error> {
        let runs = self.runs()?;
        crate::select(&runs, selector).map_err(|known| Error::NoRun { selector: selector.to_owned(), known })
    }

    /// One run with its blocks and transactions.
    ///
    /// # Errors
    /// The file is damaged, or has no such run.
    pub fn run(&self, info: &RunInfo) -> Result<Run, Error> {
        let id = info.id.to_string();
        let sql = "SELECT f.id, f.position, name, entry_pattern, entry_symbols, exit_pattern, exit_symbols
            FROM functions f JOIN runs ON run = number WHERE runs.id = ?1 ORDER BY position";
        let rows: Vec<(i64, usize, [String; 5])> = self.rows(sql, &[&id], |row| {
            let texts = [row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?];
            Ok((row.get(0)?, row.get(1)?, texts))
        })?;
        let mut functions = Vec::new();
        let mut blocks = Vec::new();
        for (key, position, [name, entry, entry_symbols, exit, exit_symbols]) in rows {
            if position != functions.len() {
                return Err(self.damaged(format!("function {key} is at position {position}")));
            }
            let location = |pattern, symbols: String| {
                let symbols = serde_json::from_str(&symbols)
                    .map_err(|error| self.damaged(format!("symbols of function {key}: {error}")))?;
                Ok::<_, Error>(Location { pattern, symbols })
            };
            functions.push(Function {
                name,
                entry: location(entry, entry_symbols)?,
                exit: location(exit, exit_symbols)?,
            });
            blocks.extend(self.blocks(key, position)?);
        }
        blocks.sort_by_key(|block| (block.start, block.function));
        let transactions = self.transactions(&TransactionFilter {
            runs: vec![info.id],
            limit: u32::MAX,
            ..TransactionFilter::default()
        })?;
        let transactions = transactions.into_iter().map(|(_, transaction)| transaction).collect();
        Ok(Run { info: info.clone(), functions, blocks, transactions })
    }

    /// Counts of a table by block.
    fn counts<K: rusqlite::types::FromSql + Ord>(
        &self,
        sql: &str,
        function: i64,
    ) -> Result<BTreeMap<i64, Vec<(K, u64)>>, Error> {
        let mut counts = BTreeMap::<i64, Vec<(K, u64)>>::new();
        for (block, key, count) in self.rows(sql, &[&function], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))? {
            counts.entry(block).or_default().push((key, count));
        }
        Ok(counts)
    }

    fn blocks(&self, function: i64, position: usize) -> Result<Vec<Block>, Error> {
        let of = |table: &str, key: &str| {
            format!("SELECT block, {key}, t.count FROM {table} t JOIN blocks b ON block = b.id WHERE function = ?1")
        };
        let mut buckets = self.counts::<u16>(&of("buckets", "bucket"), function)?;
        let mut returns = self.counts::<i64>(&of("returns", "code"), function)?;
        let mut losses = self.counts::<String>(&of("losses", "reason"), function)?;
        let sql =
            "SELECT id, start_ns, length_ns, count, sum_ns, min_ns, max_ns, unended FROM blocks WHERE function = ?1
            ORDER BY start_ns, id";
        let rows: Vec<(i64, i64, [u64; 6])> = self.rows(sql, &[&function], |row| {
            let zero = |column| row.get::<_, Option<u64>>(column).map(Option::unwrap_or_default);
            Ok((row.get(0)?, row.get(1)?, [row.get(2)?, row.get(3)?, row.get(4)?, zero(5)?, zero(6)?, row.get(7)?]))
        })?;
        let blocks = rows.into_iter().map(|(id, start, [length, count, sum, min, max, unended])| {
            let buckets = buckets.remove(&id).unwrap_or_default();
            let histogram = Histogram::from_parts(buckets, sum, min, max)
                .filter(|read| (read.count(), read.sum()) == (count, sum))
                .filter(|read| (read.min().unwrap_or(0), read.max().unwrap_or(0)) == (min, max))
                .ok_or_else(|| self.damaged(format!("the buckets of block {id} contradict its counts")))?;
            let lost = losses.remove(&id).unwrap_or_default().into_iter().map(|(reason, count)| {
                let known = LossReason::from_name(&reason);
                Ok((known.ok_or_else(|| self.damaged(format!("loss {reason:?} of block {id}")))?, count))
            });
            Ok(Block {
                function: position,
                start: Time(start),
                length: Duration::from_nanos(length),
                histogram,
                returns: returns.remove(&id).unwrap_or_default().into_iter().collect(),
                unended,
                lost: lost.collect::<Result<_, Error>>()?,
            })
        });
        blocks.collect()
    }

    /// Find transactions.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn transactions(&self, filter: &TransactionFilter) -> Result<Vec<(RunId, Transaction)>, Error> {
        let mut conditions = vec!["1".to_owned()];
        let mut values = Vec::<Value>::new();
        let mut condition = |sql: &str, value: Option<Value>| {
            if let Some(value) = value {
                values.push(value);
                conditions.push(sql.replace('?', &format!("?{}", values.len())));
            }
        };
        let prefix = filter.id_prefix.as_ref().map(|prefix| prefix.to_ascii_uppercase());
        condition("t.id >= ?", prefix.clone().map(Value::from));
        // `G` follows all hexadecimal digits.
        condition("t.id < ?", prefix.map(|prefix| Value::from(prefix + "G")));
        condition("type = ?", filter.kind.map(Value::from));
        condition("result = ?", filter.result.map(Value::from));
        condition("time_ns >= ?", filter.from.map(|time| Value::from(time.0)));
        condition("time_ns <= ?", filter.to.map(|time| Value::from(time.0)));
        let runs = filter.runs.iter().map(|run| run.to_string());
        let runs = serde_json::Value::from(runs.collect::<Vec<_>>()).to_string();
        let is_of_run = "runs.id IN (SELECT value FROM json_each(?))";
        condition(is_of_run, (!filter.runs.is_empty()).then(|| Value::from(runs)));
        let order = if filter.slowest_first { "duration_ns DESC, time_ns" } else { "time_ns, t.rowid" };
        let sql = format!(
            "SELECT runs.id, t.id, type, result, duration_ns, time_ns FROM transactions t JOIN runs ON run = number
             WHERE {} ORDER BY {order} LIMIT {}",
            conditions.join(" AND "),
            filter.limit
        );
        let failed = |error| self.failed(error);
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query(params_from_iter(values)).map_err(failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let read = || {
                let (run, id): (String, String) = (row.get(0)?, row.get(1)?);
                let time = Time(row.get(5)?);
                let fact = Transaction {
                    id: TransactionId::default(),
                    kind: row.get(2)?,
                    result: row.get(3)?,
                    duration_ns: row.get(4)?,
                    time,
                };
                Ok((run, id, fact))
            };
            let (run, id, fact) = read().map_err(failed)?;
            let run = run.parse().map_err(|_| self.damaged(format!("id {run:?} of a run")))?;
            let id: TransactionId = id.parse().map_err(|_| self.damaged(format!("id {id:?} of a transaction")))?;
            found.push((run, Transaction { id, ..fact }));
        }
        Ok(found)
    }
}
