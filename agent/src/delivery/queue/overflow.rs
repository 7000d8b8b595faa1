//! Facts that a full stream dropped, until their loss is in the stream.

use chainscope_proto::v1::{Loss, Record, record::Kind};

/// Dropped facts since the last record that was accepted.
#[derive(Debug)]
pub(super) struct Overflow {
    records: u64,
    bytes: u64,
    from_ns: i64,
    to_ns: i64,
}

impl Overflow {
    /// An overflow without records that begins at a time, nanoseconds since 1970.
    pub(super) fn at(time_ns: i64) -> Self {
        Self { records: 0, bytes: 0, from_ns: time_ns, to_ns: time_ns }
    }

    /// Time of the earliest dropped fact.
    pub(super) fn start_ns(&self) -> i64 {
        self.from_ns
    }

    /// Adds a dropped fact of `encoded` bytes.
    pub(super) fn add(&mut self, time_ns: i64, encoded: usize) {
        self.records += 1;
        self.bytes += encoded as u64;
        self.from_ns = self.from_ns.min(time_ns);
        self.to_ns = self.to_ns.max(time_ns);
    }

    /// The loss that stands for the dropped facts.
    pub(super) fn into_record(self) -> Record {
        let loss = Loss {
            stage: "queue".to_owned(),
            reason: "queue full".to_owned(),
            records: self.records,
            bytes: self.bytes,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            amount_unknown: false,
        };
        Record { time_ns: self.to_ns, target: String::new(), kind: Some(Kind::Loss(loss)) }
    }
}
