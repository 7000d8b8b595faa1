//! The lane of one node.

use std::collections::{BTreeMap, VecDeque};

use chainscope_proto::v1::{Loss, Record, record::Kind};
use prost::Message as _;

use super::{Dropped, LaneStatus};

/// Memory of a queued record beyond its encoded bytes, about.
const OVERHEAD: usize = 160;
/// Memory of a `Loss` in the queue, at most.
const LOSS: usize = OVERHEAD + 128;

#[derive(Debug)]
struct Queued {
    record: Record,
    encoded: usize,
}

/// Facts that did not fit, until the loss can be told.
#[derive(Debug)]
struct Overflow {
    records: u64,
    bytes: u64,
    from_ns: i64,
    to_ns: i64,
}

#[derive(Debug)]
pub(super) struct Lane {
    /// Sequence of the first record in `queue`; none until the aggregator said where the lane stands.
    base: Option<u64>,
    queue: VecDeque<Queued>,
    bytes: usize,
    /// How many of `queue` were sent in this session.
    sent: usize,
    /// Newest state record per target that is not in the queue yet.
    state: BTreeMap<String, Record>,
    /// End of the state records that were last moved into `queue`: until they are sent, newer ones merge outside.
    state_end: usize,
    /// What was dropped since the last record that was taken.
    overflow: Option<Overflow>,
    /// Chunks and messages are dropped until half of the quota is free: not until the first free byte, or a full queue
    /// would fill with pairs of one chunk and one loss.
    is_choked: bool,
    dropped: Dropped,
}

/// Whether a record is of the kind that fills queues. The others, which say what happened to a connection, what of it
/// was lost and what became of the target, have the last eighth of the quota for themselves.
fn is_bulk(record: &Record) -> bool {
    matches!(record.kind, Some(Kind::Chunk(_) | Kind::Message(_)))
}

impl Lane {
    pub(super) fn new(base: Option<u64>) -> Self {
        Self {
            base,
            queue: VecDeque::new(),
            bytes: 0,
            sent: 0,
            state: BTreeMap::new(),
            state_end: 0,
            overflow: None,
            is_choked: false,
            dropped: Dropped::default(),
        }
    }

    pub(super) fn base(&self) -> Option<u64> {
        self.base
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.state.is_empty() && self.overflow.is_none()
    }

    pub(super) fn push(&mut self, record: Record, quota: usize) -> bool {
        self.relax(quota);
        let encoded = record.encoded_len();
        // The loss of what was dropped before this record comes before it.
        let needed = self.bytes + encoded + OVERHEAD + if self.overflow.is_some() { LOSS } else { 0 };
        let has_room = match is_bulk(&record) {
            true => !self.is_choked && needed <= quota - quota / 8,
            false => needed <= quota,
        };
        if !has_room {
            self.is_choked = true;
            self.drop_newest(&record, encoded);
            return false;
        }
        self.tell_loss();
        self.append(record, encoded);
        true
    }

    pub(super) fn merge(&mut self, record: Record) {
        self.state.insert(record.target.clone(), record);
    }

    /// The next records to send in this session, with the sequence of the first.
    pub(super) fn take(&mut self, quota: usize, limit: usize) -> Option<(u64, Vec<Record>)> {
        let base = self.base?;
        self.relax(quota);
        if self.sent >= self.state_end && !self.state.is_empty() {
            for record in std::mem::take(&mut self.state).into_values() {
                let encoded = record.encoded_len();
                self.append(record, encoded);
            }
            self.state_end = self.queue.len();
        }
        let mut records = Vec::new();
        let mut size = 0;
        for queued in self.queue.iter().skip(self.sent) {
            // In the batch a record takes its tag and its length too.
            size += queued.encoded + 6;
            if size > limit && !records.is_empty() {
                break;
            }
            records.push(queued.record.clone());
        }
        if records.is_empty() {
            return None;
        }
        let first = base + self.sent as u64;
        self.sent += records.len();
        Some((first, records))
    }

    /// Forgets what is before `next`. The error is the sequence that would be sent next.
    pub(super) fn acknowledge(&mut self, next: u64, quota: usize) -> Result<(), u64> {
        let base = self.base.unwrap_or(0);
        let sent = base + self.sent as u64;
        if next > sent {
            return Err(sent);
        }
        self.forget(usize::try_from(next.saturating_sub(base)).unwrap_or(usize::MAX));
        self.relax(quota);
        Ok(())
    }

    /// Begins a session at the aggregator's mark; true if the lane had to be numbered anew.
    pub(super) fn restart(&mut self, mark: u64) -> bool {
        let known = self.base;
        self.sent = 0;
        match known {
            Some(base) if (base..=base + self.queue.len() as u64).contains(&mark) => {
                self.forget(usize::try_from(mark - base).unwrap_or(usize::MAX));
                false
            }
            _ => {
                self.base = Some(mark);
                known.is_some()
            }
        }
    }

    /// Sends what is not acknowledged again.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn oldest_ns(&self) -> Option<i64> {
        let overflow = self.overflow.as_ref().map(|overflow| overflow.from_ns);
        self.queue.front().map(|queued| queued.record.time_ns).into_iter().chain(overflow).min()
    }

    pub(super) fn status(&self, node: &str) -> LaneStatus {
        LaneStatus {
            node: node.to_owned(),
            next_sequence: self.base.map(|base| base + self.queue.len() as u64),
            pending_records: self.queue.len(),
            pending_bytes: self.bytes,
            dropped: self.dropped,
        }
    }

    fn append(&mut self, record: Record, encoded: usize) {
        self.bytes += encoded + OVERHEAD;
        self.queue.push_back(Queued { record, encoded });
    }

    fn forget(&mut self, count: usize) {
        let count = count.min(self.queue.len());
        for queued in self.queue.drain(..count) {
            self.bytes -= queued.encoded + OVERHEAD;
        }
        self.base = self.base.map(|base| base + count as u64);
        self.sent = self.sent.saturating_sub(count);
        self.state_end = self.state_end.saturating_sub(count);
        if self.queue.is_empty() {
            self.queue.shrink_to(1024);
        }
    }

    fn drop_newest(&mut self, record: &Record, encoded: usize) {
        let time = record.time_ns;
        let overflow = self.overflow.get_or_insert(Overflow { records: 0, bytes: 0, from_ns: time, to_ns: time });
        overflow.records += 1;
        overflow.bytes += encoded as u64;
        overflow.from_ns = overflow.from_ns.min(time);
        overflow.to_ns = overflow.to_ns.max(time);
        self.dropped.records += 1;
        self.dropped.bytes += encoded as u64;
    }

    /// Tells what was dropped and takes chunks again, once half of the quota is free.
    fn relax(&mut self, quota: usize) {
        if self.bytes <= quota / 2 {
            self.is_choked = false;
            self.tell_loss();
        }
    }

    fn tell_loss(&mut self) {
        if let Some(overflow) = self.overflow.take() {
            let loss = Record {
                time_ns: overflow.to_ns,
                target: String::new(),
                kind: Some(Kind::Loss(Loss {
                    stage: "queue".to_owned(),
                    reason: "queue full".to_owned(),
                    records: overflow.records,
                    bytes: overflow.bytes,
                    from_ns: overflow.from_ns,
                    to_ns: overflow.to_ns,
                    amount_unknown: false,
                })),
            };
            let encoded = loss.encoded_len();
            self.append(loss, encoded);
        }
    }
}
