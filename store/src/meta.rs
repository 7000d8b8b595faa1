//! What the store writes about itself: nodes, segments, totals, zones. Fields are only ever added.

/// Version of the layout in [`crate::keys`]. Raised when an older build could no longer read the database.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A node: its name, where its sequences stand, and its totals.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeMeta {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Id of the next message.
    #[prost(uint64, tag = "2")]
    pub(crate) next_id: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) next_segment: u32,
    #[prost(uint64, tag = "4")]
    pub(crate) next_event: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) next_loss: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) next_target_event: u64,
    #[prost(message, required, tag = "7")]
    pub(crate) totals: Totals,
}

/// What a node's database has taken in and let go since it was made.
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
    /// Records that came again and were skipped.
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
}

/// A segment: a run of messages, and all that arrived with them.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct SegmentMeta {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    /// Id of its first message, or of the next one if it has none.
    #[prost(uint64, tag = "2")]
    pub(crate) first_id: u64,
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
}

impl SegmentMeta {
    /// The id behind its last message.
    pub(crate) fn end_id(&self) -> u64 {
        self.first_id + self.rows
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

/// Least and greatest time of the messages of a block, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) least_ns: i64,
    pub(crate) greatest_ns: i64,
}

impl Zone {
    /// Of no message at all.
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
