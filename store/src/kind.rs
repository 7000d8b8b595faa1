//! A kind of fact is declared, not programmed.
//!
//! From a declaration the writer numbers and indexes its records, queries filter and page them, eviction drops them with
//! their segment, and the check of the database knows what must be there. The declarations of this build are listed in
//! [`crate::schema`].

use chainscope_proto::v1::{LogPosition, Record};

use crate::{Error, meta::Totals};

/// Table numbers that a kind owns: its rows, its zones, and up to 14 indexes.
#[cfg(test)]
pub(crate) const TABLES: u8 = 16;

/// A kind of fact.
pub(crate) struct FactKind {
    /// Its name in messages of [`crate::Store::verify`].
    pub(crate) name: &'static str,
    /// Number of the table of its rows, a multiple of 16: a kind owns 16 tables. Part of the schema: never changed, never used again.
    pub(crate) table: u8,
    /// Whether a record is of this kind.
    pub(crate) accepts: fn(&Record) -> bool,
    /// The time of a record, nanoseconds since 1970.
    pub(crate) time: fn(&Record) -> i64,
    /// What its records are found by. The position in the list is part of the schema.
    pub(crate) indexes: &'static [Index],
    /// The text of a record, in which [`crate::TextQuery`] searches.
    pub(crate) text: Option<fn(&Record) -> String>,
    /// The position of a record in a file that its agent may read again: records up to the greatest one are repetitions.
    pub(crate) position: Option<fn(&Record) -> Option<LogPosition>>,
    /// Rows lie by this number first, then by id. Such a kind has no zones and no indexes; its readers know the groups.
    pub(crate) group: Option<fn(&Record) -> u64>,
    /// Which limits decide how long it is kept.
    pub(crate) retention: RetentionClass,
    /// Whether its rows count against [`crate::Retention::rows`], and in the total of what retention dropped of its class: one kind
    /// of a class at most. Bytes and age bound every kind.
    pub(crate) counted: bool,
    /// Adds a record to the totals of its node.
    pub(crate) total: fn(&mut Totals, &Record),
}

/// Calls the function with each value of a record in one index.
pub(crate) type IndexValues = fn(&Record, &mut dyn FnMut(&[u8]));

/// An index of a kind.
pub(crate) struct Index {
    /// Calls the function with every value that the record is found by. A filter compares these values in full, so that
    /// one that is cut in the key matches nothing else.
    pub(crate) values: IndexValues,
}

/// Facts that are kept by the same limits. Each class has its own segments in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum RetentionClass {
    /// Records of the streams, kept by [`crate::Retention`].
    Records = 0,
    /// Memory snapshots, each a segment, kept by [`crate::SnapshotLimits`].
    Snapshots = 1,
    /// Log messages of the streams, kept by limits of their own: a flood of them evicts nothing else.
    Logs = 2,
    /// Events of tracepoints, likewise.
    Traces = 3,
}

impl RetentionClass {
    /// Every class, by its number.
    pub(crate) const ALL: [Self; 4] = [Self::Records, Self::Snapshots, Self::Logs, Self::Traces];

    /// The classes of what agents send in streams. The last segment of each is open.
    pub(crate) const STREAMED: [Self; 3] = [Self::Records, Self::Logs, Self::Traces];
}

impl FactKind {
    /// The table of its zones.
    pub(crate) const fn zones(&self) -> u8 {
        self.table + 1
    }

    /// The table of an index, by its position.
    pub(crate) const fn index_table(&self, index: usize) -> u8 {
        self.table + 2 + index as u8 // at most 14 indexes
    }
}

/// Appends a row: the number of the agent that sent the record, and the record.
pub(crate) fn encode_row(agent: u32, record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(&agent.to_be_bytes());
    encode(record, out);
}

/// Reads a row.
pub(crate) fn decode_row(value: &[u8]) -> Result<(u32, Record), Error> {
    let Some((agent, record)) = value.split_first_chunk() else {
        return Err(Error::Corrupt("a row is shorter than its agent's number".to_owned()));
    };
    Ok((u32::from_be_bytes(*agent), decode(record)?))
}

/// Reads a record.
pub(crate) fn decode(value: &[u8]) -> Result<Record, Error> {
    prost::Message::decode(value).map_err(|error| Error::Corrupt(format!("a record: {error}")))
}

/// Appends a message.
pub(crate) fn encode(message: &impl prost::Message, out: &mut Vec<u8>) {
    // Fails only where the buffer cannot grow.
    let encoded = message.encode(out);
    debug_assert!(encoded.is_ok());
}
