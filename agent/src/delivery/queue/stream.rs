//! The queue of one node's record stream.

use std::collections::{BTreeMap, VecDeque};

use chainscope_proto::v1::{Record, record::Kind};
use prost::Message as _;

use super::overflow::Overflow;
use crate::delivery::{
    batch::RECORD_TAG_BYTES,
    stream::{Dropped, StreamStatus, arrival_ns},
};

/// Memory of a queued record beyond its encoded bytes, about.
const RECORD_OVERHEAD: usize = 160;
/// Records that an empty queue keeps memory for.
const MIN_CAPACITY: usize = 64;
/// Maximum memory of a queued `Loss`.
const MAX_LOSS_BYTES: usize = RECORD_OVERHEAD + 128;

#[derive(Debug)]
struct Queued {
    record: Record,
    encoded: usize,
}

#[derive(Debug)]
pub(super) struct QueuedStream {
    /// Sequence of the first record in `queue`; none before the aggregator sent the stream's high-water mark.
    base: Option<u64>,
    queue: VecDeque<Queued>,
    bytes: usize,
    /// Records of `queue` that were sent in this session.
    sent: usize,
    /// Newest state record of each target that is not in the queue yet.
    state: BTreeMap<String, Record>,
    /// End of the state records that were last moved to `queue`: until they are sent, newer ones wait in `state`.
    state_end: usize,
    /// Records that were ever added, and that were ever removed.
    appended: u64,
    removed: u64,
    /// Facts that were dropped since the last accepted record.
    overflow: Option<Overflow>,
    /// Bulk facts are dropped until half of the quota is free. If they were accepted as soon as anything is free, a full
    /// queue would fill with pairs of one chunk and one loss.
    is_choked: bool,
    dropped: Dropped,
}

/// Whether a fact may use all of the quota. Facts of other kinds, which come in any volume, may use seven eighths.
fn is_priority(record: &Record) -> bool {
    matches!(record.kind, Some(Kind::Connection(_) | Kind::TargetEvent(_) | Kind::Loss(_)))
}

impl QueuedStream {
    pub(super) fn new(base: Option<u64>) -> Self {
        Self {
            base,
            queue: VecDeque::new(),
            bytes: 0,
            sent: 0,
            state: BTreeMap::new(),
            state_end: 0,
            appended: 0,
            removed: 0,
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

    /// Adds a fact. Returns false if it was dropped.
    pub(super) fn push(&mut self, record: Record, quota: usize) -> bool {
        self.relax(quota);
        let encoded = record.encoded_len();
        // A pending loss is queued before this record.
        let loss = if self.overflow.is_some() { MAX_LOSS_BYTES } else { 0 };
        let needed = self.bytes + encoded + RECORD_OVERHEAD + loss;
        let fits = match is_priority(&record) {
            true => needed <= quota,
            false => !self.is_choked && needed <= quota - quota / 8,
        };
        if !fits {
            self.is_choked = true;
            self.drop_fact(arrival_ns(&record), encoded);
            return false;
        }
        self.queue_loss();
        self.append(record, encoded);
        true
    }

    /// Adds a fact that can be offered again: it may use half of the quota, so that facts that cannot wait find space. Returns
    /// how many records were added until now, or the record. One that never fits is dropped.
    pub(super) fn offer(&mut self, record: Record, quota: usize) -> Result<u64, Box<Record>> {
        self.relax(quota);
        let needed = record.encoded_len() + RECORD_OVERHEAD + MAX_LOSS_BYTES;
        let fits_later = needed <= quota - quota / 8;
        if fits_later && (self.is_choked || self.bytes > 0 && self.bytes + needed > quota / 2) {
            return Err(Box::new(record));
        }
        self.push(record, quota);
        Ok(self.appended)
    }

    /// How many of the records that were added are durable.
    pub(super) fn durable(&self) -> u64 {
        self.removed
    }

    /// Adds a state record, which replaces the one of the same target.
    pub(super) fn merge(&mut self, record: Record) {
        self.state.insert(record.target.clone(), record);
    }

    /// The next records to send in this session, of at most `limit` bytes unless it is one, with the sequence of the
    /// first.
    pub(super) fn take(&mut self, quota: usize, limit: usize) -> Option<(u64, Vec<Record>)> {
        let base = self.base?;
        self.relax(quota);
        self.queue_state();
        let mut records = Vec::new();
        let mut size = 0;
        for queued in self.queue.iter().skip(self.sent) {
            size += queued.encoded + RECORD_TAG_BYTES;
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

    /// Removes the records before `next`. The error is the sequence that would be sent next.
    pub(super) fn acknowledge(&mut self, next: u64, quota: usize) -> Result<(), u64> {
        let base = self.base.unwrap_or(0);
        let sent = base + self.sent as u64;
        if next > sent {
            return Err(sent);
        }
        self.remove(usize::try_from(next.saturating_sub(base)).unwrap_or(usize::MAX));
        self.relax(quota);
        Ok(())
    }

    /// Starts a session at the aggregator's high-water mark. Returns true if the mark is outside of this queue, so that its
    /// records get new sequence numbers.
    pub(super) fn restart(&mut self, mark: u64) -> bool {
        let known = self.base;
        self.sent = 0;
        match known {
            Some(base) if (base..=base + self.queue.len() as u64).contains(&mark) => {
                self.remove(usize::try_from(mark - base).unwrap_or(usize::MAX));
                false
            }
            _ => {
                self.base = Some(mark);
                known.is_some()
            }
        }
    }

    /// Sends the unacknowledged records again.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time of the oldest record or dropped fact.
    pub(super) fn oldest_ns(&self) -> Option<i64> {
        let overflow = self.overflow.as_ref().map(Overflow::start_ns);
        self.queue.front().map(|queued| arrival_ns(&queued.record)).into_iter().chain(overflow).min()
    }

    pub(super) fn status(&self, node: &str) -> StreamStatus {
        StreamStatus {
            node: node.to_owned(),
            next_sequence: self.base.map(|base| base + self.queue.len() as u64),
            pending_records: self.queue.len(),
            pending_bytes: self.bytes,
            dropped: self.dropped,
        }
    }

    fn append(&mut self, record: Record, encoded: usize) {
        self.bytes += encoded + RECORD_OVERHEAD;
        self.appended += 1;
        self.queue.push_back(Queued { record, encoded });
    }

    /// Removes the first `count` records, or all.
    fn remove(&mut self, count: usize) {
        let count = count.min(self.queue.len());
        for queued in self.queue.drain(..count) {
            self.bytes -= queued.encoded + RECORD_OVERHEAD;
        }
        self.base = self.base.map(|base| base + count as u64);
        self.removed += count as u64;
        self.sent = self.sent.saturating_sub(count);
        self.state_end = self.state_end.saturating_sub(count);
        // What a backlog took is returned. Growth doubles the capacity, so that a queue of a steady length is not moved each time.
        if self.queue.len() < self.queue.capacity() / 4 {
            self.queue.shrink_to((2 * self.queue.len()).max(MIN_CAPACITY));
        }
    }

    /// Moves the state records to the queue, unless earlier ones were not sent yet.
    fn queue_state(&mut self) {
        if self.sent < self.state_end || self.state.is_empty() {
            return;
        }
        for record in std::mem::take(&mut self.state).into_values() {
            let encoded = record.encoded_len();
            self.append(record, encoded);
        }
        self.state_end = self.queue.len();
    }

    fn drop_fact(&mut self, time_ns: i64, encoded: usize) {
        self.overflow.get_or_insert_with(|| Overflow::at(time_ns)).add(time_ns, encoded);
        self.dropped.records += 1;
        self.dropped.bytes += encoded as u64;
    }

    /// Queues the loss and accepts bulk facts again, once half of the quota is free.
    fn relax(&mut self, quota: usize) {
        if self.bytes <= quota / 2 {
            self.is_choked = false;
            self.queue_loss();
        }
    }

    /// Queues the loss of the dropped facts, if there are any.
    fn queue_loss(&mut self) {
        if let Some(overflow) = self.overflow.take() {
            let loss = overflow.into_record();
            let encoded = loss.encoded_len();
            self.append(loss, encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::TargetEvent;

    use super::*;

    const QUOTA: usize = 64 << 20;

    #[test]
    fn the_memory_of_a_backlog_is_returned_as_it_is_acknowledged() {
        let mut stream = QueuedStream::new(Some(0));
        for _ in 0..100_000 {
            let event = Record { kind: Some(Kind::TargetEvent(TargetEvent::default())), ..Record::default() };
            assert!(stream.push(event, QUOTA));
        }
        let mut next = 0;
        let mut moves = 0;
        let mut capacity = stream.queue.capacity();
        while let Some((first, records)) = stream.take(QUOTA, 10_000) {
            next = first + records.len() as u64;
            stream.acknowledge(next, QUOTA).unwrap();
            let (length, now) = (stream.queue.len(), stream.queue.capacity());
            assert!(now <= (4 * length + 3).max(MIN_CAPACITY), "{now} for {length}");
            moves += usize::from(now != capacity);
            capacity = now;
        }
        assert_eq!(next, 100_000);
        assert!(moves <= 12, "{moves} times moved");
    }
}
