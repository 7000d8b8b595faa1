//! Files and sockets as nodes and container runtimes use them, up to the records that a stream gets.

mod containers;
mod files;
mod reader;
mod syslog;

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{LogMessage, Loss, Record, record::Kind};
use parking_lot::Mutex;

use super::emit::LogSink;

/// A record stream that keeps all records.
#[derive(Clone, Default)]
pub(super) struct TestSink(Arc<Mutex<Stream>>);

#[derive(Default)]
struct Stream {
    records: Vec<(String, Record)>,
    /// Records that are accepted from now on; none: all.
    space: Option<usize>,
    /// Log messages that were not accepted.
    refused: u64,
    /// Records that a kill does not lose; none: all.
    durable: Option<u64>,
}

impl TestSink {
    pub(super) fn set_space(&self, records: Option<usize>) {
        self.0.lock().space = records;
    }

    pub(super) fn set_durable(&self, records: Option<u64>) {
        self.0.lock().durable = records;
    }

    pub(super) fn len(&self) -> u64 {
        self.0.lock().records.len() as u64
    }

    pub(super) fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// Log messages of a node, as an aggregator stores them: it drops what ends at or before the greatest end of its file.
    pub(super) fn stored(&self, node: &str) -> Vec<LogMessage> {
        let mut ends = BTreeMap::new();
        let mut stored = Vec::new();
        for (of, record) in &self.0.lock().records {
            let Some(Kind::LogMessage(message)) = &record.kind else { continue };
            if of != node {
                continue;
            }
            if let Some(position) = message.position {
                let end = ends.entry(position.file).or_insert(0);
                if position.end <= *end {
                    continue;
                }
                *end = position.end;
            }
            stored.push(message.clone());
        }
        stored
    }

    /// The text of the stored messages of a node.
    pub(super) fn texts(&self, node: &str) -> Vec<String> {
        self.stored(node).iter().map(|message| String::from_utf8_lossy(&message.raw).into_owned()).collect()
    }

    pub(super) fn records(&self) -> Vec<Record> {
        self.0.lock().records.iter().map(|(_, record)| record.clone()).collect()
    }

    pub(super) fn losses(&self) -> Vec<Loss> {
        let loss = |record: Record| if let Some(Kind::Loss(loss)) = record.kind { Some(loss) } else { None };
        self.records().into_iter().filter_map(loss).collect()
    }
}

impl LogSink for TestSink {
    fn push(&self, node: &str, record: Record) -> bool {
        self.offer(node, record).is_ok()
    }

    fn offer(&self, node: &str, record: Record) -> Result<u64, Box<Record>> {
        let mut stream = self.0.lock();
        if stream.space == Some(0) {
            stream.refused += u64::from(matches!(record.kind, Some(Kind::LogMessage(_))));
            return Err(Box::new(record));
        }
        stream.space = stream.space.map(|space| space - 1);
        stream.records.push((node.to_owned(), record));
        Ok(stream.records.len() as u64)
    }

    fn durable(&self, _: &str) -> u64 {
        let stream = self.0.lock();
        stream.durable.unwrap_or(stream.records.len() as u64)
    }
}
