//! Summary of a set of records, from which the losses are made that replace the records if they are dropped.

use std::collections::{BTreeMap, btree_map::Entry};

use chainscope_proto::v1::{Loss, Record, record::Kind};

use crate::delivery::stream::arrival_ns;

/// Maximum number of losses that are kept apart by cause; the others are added up as one.
const MAX_CAUSES: usize = 64;

/// Target, stage and reason of a loss.
type Cause = (String, String, String);

/// A summary of records.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordSummary {
    /// Facts other than losses.
    facts: u64,
    /// Their encoded bytes.
    bytes: u64,
    /// Times of the earliest and the latest of them.
    span: Option<(i64, i64)>,
    /// Losses among the records: these are merged, never dropped.
    losses: BTreeMap<Cause, Loss>,
}

impl RecordSummary {
    /// A loss of an unknown number of records.
    pub(super) fn unknown_loss(reason: &str, time_ns: i64) -> Self {
        let mut summary = Self::default();
        summary.add_loss(String::new(), spool_loss(reason, 0, 0, (time_ns, time_ns), true));
        summary
    }

    /// Adds a record of `encoded` bytes.
    pub(super) fn add(&mut self, record: &Record, encoded: usize) {
        match &record.kind {
            Some(Kind::Loss(loss)) => self.add_loss(record.target.clone(), loss.clone()),
            // State: the next one replaces it.
            Some(Kind::NetworkAccount(_)) => {}
            _ => {
                self.facts += 1;
                self.bytes += encoded as u64;
                let arrival = arrival_ns(record);
                self.extend_span(arrival, arrival);
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.facts += other.facts;
        self.bytes += other.bytes;
        if let Some((from, to)) = other.span {
            self.extend_span(from, to);
        }
        for ((target, ..), loss) in other.losses {
            self.add_loss(target, loss);
        }
    }

    /// Whether there are neither facts nor losses.
    pub(super) fn is_empty(&self) -> bool {
        self.facts == 0 && self.losses.is_empty()
    }

    /// Time of the earliest fact or loss.
    pub(super) fn earliest_ns(&self) -> Option<i64> {
        let losses = self.losses.values().map(|loss| loss.from_ns);
        self.span.map(|(from, _)| from).into_iter().chain(losses).min()
    }

    /// The summary once the facts are dropped: one more loss stands for them.
    pub(super) fn dropped(mut self, reason: &str) -> Self {
        if let Some(span) = self.span.take() {
            let (facts, bytes) = (std::mem::take(&mut self.facts), std::mem::take(&mut self.bytes));
            self.add_loss(String::new(), spool_loss(reason, facts, bytes, span, false));
        }
        self
    }

    /// Whether a set of this many records consists of the losses only.
    pub(super) fn is_losses_only(&self, records: u64) -> bool {
        self.losses.len() as u64 == records
    }

    /// The number of facts and their bytes.
    pub(super) fn facts(&self) -> (u64, u64) {
        (self.facts, self.bytes)
    }

    /// The losses, as records.
    pub(super) fn losses(&self) -> Vec<Record> {
        let record = |((target, ..), loss): (&Cause, &Loss)| Record {
            time_ns: loss.to_ns,
            target: target.clone(),
            kind: Some(Kind::Loss(loss.clone())),
        };
        self.losses.iter().map(record).collect()
    }

    fn extend_span(&mut self, from: i64, to: i64) {
        let (least, greatest) = self.span.unwrap_or((from, to));
        self.span = Some((least.min(from), greatest.max(to)));
    }

    fn add_loss(&mut self, target: String, mut loss: Loss) {
        let mut cause = (target, loss.stage.clone(), loss.reason.clone());
        if self.losses.len() >= MAX_CAUSES && !self.losses.contains_key(&cause) {
            // Stages count different bytes, so that their sum is no amount.
            loss.amount_unknown = true;
            cause = (String::new(), "spool".to_owned(), "many losses".to_owned());
            (loss.stage, loss.reason) = (cause.1.clone(), cause.2.clone());
        }
        match self.losses.entry(cause) {
            Entry::Vacant(vacant) => {
                vacant.insert(loss);
            }
            Entry::Occupied(mut occupied) => {
                let sum = occupied.get_mut();
                sum.records = sum.records.saturating_add(loss.records);
                sum.bytes = sum.bytes.saturating_add(loss.bytes);
                sum.from_ns = sum.from_ns.min(loss.from_ns);
                sum.to_ns = sum.to_ns.max(loss.to_ns);
                sum.amount_unknown |= loss.amount_unknown;
            }
        }
    }
}

/// A loss of the stage `spool`.
pub(super) fn spool_loss(reason: &str, records: u64, bytes: u64, span: (i64, i64), amount_unknown: bool) -> Loss {
    Loss {
        stage: "spool".to_owned(),
        reason: reason.to_owned(),
        records,
        bytes,
        from_ns: span.0,
        to_ns: span.1,
        amount_unknown,
    }
}
