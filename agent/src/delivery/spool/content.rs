//! What records are about, in short: what is told of them if they have to go.

use std::collections::BTreeMap;

use chainscope_proto::v1::{Loss, Record, record::Kind};

/// Losses that are told apart; more are added up as one.
const MOST: usize = 64;

/// Target, stage and reason of a loss.
type Cause = (String, String, String);

/// A sum over records.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    /// Records that are facts and no losses.
    facts: u64,
    /// Their encoded bytes.
    bytes: u64,
    /// The earliest and the latest.
    span: Option<(i64, i64)>,
    /// Losses that were told among them: they must not be lost themselves.
    losses: BTreeMap<Cause, Loss>,
}

impl Content {
    /// Records that are gone without a trace.
    pub(super) fn unknown(reason: &str, time_ns: i64) -> Self {
        let mut content = Self::default();
        content.lose(String::new(), spool_loss(reason, 0, 0, (time_ns, time_ns), true));
        content
    }

    pub(super) fn add(&mut self, record: &Record, encoded: usize) {
        match &record.kind {
            Some(Kind::Loss(loss)) => self.lose(record.target.clone(), loss.clone()),
            // The next one says it all.
            Some(Kind::NetworkAccount(_)) => {}
            _ => {
                self.facts += 1;
                self.bytes += encoded as u64;
                self.stretch(record.time_ns, record.time_ns);
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.facts += other.facts;
        self.bytes += other.bytes;
        if let Some((from, to)) = other.span {
            self.stretch(from, to);
        }
        for ((target, ..), loss) in other.losses {
            self.lose(target, loss);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.facts == 0 && self.losses.is_empty()
    }

    /// Time of the earliest.
    pub(super) fn earliest_ns(&self) -> Option<i64> {
        let told = self.losses.values().map(|loss| loss.from_ns);
        self.span.map(|(from, _)| from).into_iter().chain(told).min()
    }

    /// The records were dropped: what the losses say that take their place.
    pub(super) fn dropped(mut self, reason: &str) -> Self {
        if let Some(span) = self.span.take() {
            let (facts, bytes) = (std::mem::take(&mut self.facts), std::mem::take(&mut self.bytes));
            self.lose(String::new(), spool_loss(reason, facts, bytes, span, false));
        }
        self
    }

    /// So many records are nothing but these losses.
    pub(super) fn is_losses_only(&self, records: u64) -> bool {
        self.losses.len() as u64 == records
    }

    /// How many facts, and their bytes.
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

    fn stretch(&mut self, from: i64, to: i64) {
        let (least, greatest) = self.span.unwrap_or((from, to));
        self.span = Some((least.min(from), greatest.max(to)));
    }

    fn lose(&mut self, target: String, mut loss: Loss) {
        let mut cause = (target, loss.stage.clone(), loss.reason.clone());
        if self.losses.len() >= MOST && !self.losses.contains_key(&cause) {
            // Bytes of different stages are of different kinds.
            loss.amount_unknown = true;
            cause = (String::new(), "spool".to_owned(), "many losses".to_owned());
            (loss.stage, loss.reason) = (cause.1.clone(), cause.2.clone());
        }
        match self.losses.entry(cause) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(loss);
            }
            std::collections::btree_map::Entry::Occupied(mut known) => {
                let sum = known.get_mut();
                sum.records = sum.records.saturating_add(loss.records);
                sum.bytes = sum.bytes.saturating_add(loss.bytes);
                sum.from_ns = sum.from_ns.min(loss.from_ns);
                sum.to_ns = sum.to_ns.max(loss.to_ns);
                sum.amount_unknown |= loss.amount_unknown;
            }
        }
    }
}

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
