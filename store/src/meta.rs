//! What the store writes about itself: nodes, segments, totals, zones. Fields are only ever added.

use std::ops::Range;

/// A node: its name, where its sequences stand, and its totals.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeMeta {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) next_segment: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) next_agent: u32,
    #[prost(message, required, tag = "4")]
    pub(crate) totals: Totals,
    /// Of each kind of fact, the id of the next row.
    #[prost(message, repeated, tag = "5")]
    pub(crate) kinds: Vec<NextId>,
}

impl NodeMeta {
    /// A node that has nothing yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), next_segment: 1, next_agent: 1, ..Self::default() }
    }
}

/// Where the ids of a kind of fact stand.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct NextId {
    /// The kind, by its table.
    #[prost(uint32, tag = "1")]
    pub(crate) table: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) next_id: u64,
}

/// What a node's database has taken in and evicted since it was created.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Totals {
    /// Messages stored.
    #[prost(uint64, tag = "1")]
    pub messages: u64,
    /// Chunks stored.
    #[prost(uint64, tag = "2")]
    pub chunks: u64,
    /// Connection events stored.
    #[prost(uint64, tag = "3")]
    pub connection_events: u64,
    /// Losses stored.
    #[prost(uint64, tag = "4")]
    pub losses: u64,
    /// Events of targets stored.
    #[prost(uint64, tag = "5")]
    pub target_events: u64,
    /// Records of a kind that this build does not know: acknowledged, not stored.
    #[prost(uint64, tag = "6")]
    pub unknown_kinds: u64,
    /// Records that came again, in their stream or from their file, and were skipped.
    #[prost(uint64, tag = "7")]
    pub duplicates: u64,
    /// Messages dropped by retention.
    #[prost(uint64, tag = "8")]
    pub evicted_rows: u64,
    /// Records that the stored losses report.
    #[prost(uint64, tag = "9")]
    pub lost_records: u64,
    /// Bytes that the stored losses report.
    #[prost(uint64, tag = "10")]
    pub lost_bytes: u64,
    /// Log messages stored.
    #[prost(uint64, tag = "11")]
    pub log_messages: u64,
    /// Log messages dropped by retention.
    #[prost(uint64, tag = "12")]
    pub evicted_log_messages: u64,
    /// Events of tracepoints stored.
    #[prost(uint64, tag = "13")]
    pub trace_events: u64,
    /// Events of tracepoints dropped by retention.
    #[prost(uint64, tag = "14")]
    pub evicted_trace_events: u64,
    /// Blocks of the latency of functions stored.
    #[prost(uint64, tag = "15")]
    pub latency_blocks: u64,
    /// Transactions of runs of the latency of functions stored.
    #[prost(uint64, tag = "16")]
    pub latency_transactions: u64,
}

/// A segment: a run of records, or a memory snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct SegmentMeta {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    /// Number of its retention class.
    #[prost(uint32, tag = "2")]
    pub(crate) class: u32,
    /// Rows that count against the limit of rows.
    #[prost(uint64, tag = "3")]
    pub(crate) rows: u64,
    /// Bytes of keys and values, before compression.
    #[prost(uint64, tag = "4")]
    pub(crate) bytes: u64,
    /// Records of any kind, those carried over from the segment before excluded.
    #[prost(uint64, tag = "5")]
    pub(crate) facts: u64,
    /// Least and greatest time of its facts; meaningless while there are none.
    #[prost(sfixed64, tag = "6")]
    pub(crate) least_ns: i64,
    #[prost(sfixed64, tag = "7")]
    pub(crate) greatest_ns: i64,
    /// When it was opened and closed, by the store's clock; 0: still open.
    #[prost(sfixed64, tag = "8")]
    pub(crate) opened_ns: i64,
    #[prost(sfixed64, tag = "9")]
    pub(crate) closed_ns: i64,
    /// The part of `bytes` that was written when it was opened: summaries of live connections.
    #[prost(uint64, tag = "10")]
    pub(crate) carried_bytes: u64,
    /// The ids in it, of each kind of fact of its class.
    #[prost(message, repeated, tag = "11")]
    pub(crate) kinds: Vec<KindRows>,
}

/// The rows of a kind of fact in a segment.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct KindRows {
    /// The kind, by its table.
    #[prost(uint32, tag = "1")]
    pub(crate) table: u32,
    /// Id of its first row, or of the next one if it has none.
    #[prost(uint64, tag = "2")]
    pub(crate) first_id: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) rows: u64,
}

impl KindRows {
    /// No rows; the next one gets this id.
    pub(crate) fn none(table: u8, next_id: u64) -> Self {
        Self { table: table.into(), first_id: next_id, rows: 0 }
    }
}

impl SegmentMeta {
    /// The ids of a kind, by its table. Empty for a kind that this segment does not know.
    pub(crate) fn ids(&self, table: u8) -> Range<u64> {
        self.kind(table).map_or(0..0, |kind| kind.first_id..kind.first_id + kind.rows)
    }

    /// The rows of a kind, by its table; none if the build that opened the segment did not know the kind.
    pub(crate) fn kind(&self, table: u8) -> Option<KindRows> {
        self.kinds.iter().copied().find(|kind| kind.table == u32::from(table))
    }

    /// Counts one more row of a kind.
    pub(crate) fn add_row(&mut self, table: u8) {
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.table == u32::from(table)) {
            kind.rows += 1;
        }
    }

    /// Takes the time of one more fact.
    pub(crate) fn add_time(&mut self, time_ns: i64) {
        if self.facts == 0 {
            (self.least_ns, self.greatest_ns) = (time_ns, time_ns);
        } else {
            self.least_ns = self.least_ns.min(time_ns);
            self.greatest_ns = self.greatest_ns.max(time_ns);
        }
        self.facts += 1;
    }

    /// The time of its newest fact. A clock that was wrong can have left times in the future: none is taken to be newer
    /// than the end of the segment.
    pub(crate) fn newest_ns(&self) -> i64 {
        match self.facts {
            0 => self.closed_ns,
            _ => self.greatest_ns.min(self.closed_ns),
        }
    }
}

/// A snapshot of a node's memory, as a list shows it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MemorySnapshot {
    /// The moment, nanoseconds since 1970.
    #[prost(sfixed64, tag = "1")]
    pub time_ns: i64,
    /// Parts that it is kept in.
    #[prost(uint32, tag = "2")]
    pub parts: u32,
    /// Bytes of keys and values, before compression.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Kibibytes of anonymous memory, those resident before the attach included.
    #[prost(uint64, tag = "4")]
    pub anon_kib: u64,
    /// Kibibytes of page cache, likewise.
    #[prost(uint64, tag = "5")]
    pub cache_kib: u64,
    /// Kibibytes of the kernel, likewise.
    #[prost(uint64, tag = "6")]
    pub kernel_kib: u64,
    /// Processes.
    #[prost(uint32, tag = "7")]
    pub targets: u32,
    /// Distinct stacks that hold something.
    #[prost(uint64, tag = "8")]
    pub stacks: u64,
}

/// Least and greatest time of the rows of a block, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) least_ns: i64,
    pub(crate) greatest_ns: i64,
}

impl Zone {
    /// Of no row at all.
    pub(crate) const NONE: Self = Self { least_ns: i64::MAX, greatest_ns: i64::MIN };

    pub(crate) fn add(&mut self, time_ns: i64) {
        self.least_ns = self.least_ns.min(time_ns);
        self.greatest_ns = self.greatest_ns.max(time_ns);
    }

    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&self.least_ns.to_be_bytes());
        value[8..].copy_from_slice(&self.greatest_ns.to_be_bytes());
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (least, greatest) = value.split_first_chunk()?;
        Some(Self { least_ns: i64::from_be_bytes(*least), greatest_ns: i64::from_be_bytes(greatest.try_into().ok()?) })
    }
}
