//! Questions about the facts of a kind: filters on its indexes, time, newest or oldest first, from a cursor on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use chainscope_proto::v1::Record;

use crate::{Error, TextQuery, kind::FactKind};

/// The order of an answer. Ids follow arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Descending ids.
    #[default]
    NewestFirst,
    /// Ascending ids.
    OldestFirst,
}

/// Bound on the work of a query.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// When it must be done.
    pub deadline: Option<Instant>,
    /// Rows and index blocks that it may examine.
    pub rows: Option<u64>,
    /// Set when the answer is no longer wanted.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// Which facts of a kind that has nothing to filter by.
#[derive(Clone, Debug)]
pub struct FactQuery {
    /// Id to begin with, included. Ids are dense for each node and kind of fact.
    pub cursor: Option<u64>,
    /// Most facts to give.
    pub limit: u64,
    /// By id.
    pub order: Order,
}

impl Default for FactQuery {
    fn default() -> Self {
        Self { cursor: None, limit: 100, order: Order::NewestFirst }
    }
}

/// Which facts of a kind, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// Id to begin with, included: the greatest (newest first) or the least (oldest first).
    pub(crate) cursor: Option<u64>,
    /// Most facts to give; 0 gives none.
    pub(crate) limit: u64,
    pub(crate) order: Order,
    pub(crate) filters: Vec<Filter>,
    /// What the text of a fact says, of a kind that has one.
    pub(crate) text: Option<TextQuery>,
    /// Least time, included, nanoseconds since 1970.
    pub(crate) from_ns: Option<i64>,
    /// Greatest time, excluded.
    pub(crate) to_ns: Option<i64>,
    pub(crate) budget: Budget,
}

/// A filter on an index: any of these values.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    /// Position in the kind's list of indexes.
    pub(crate) index: usize,
    pub(crate) values: Vec<Vec<u8>>,
}

impl From<&FactQuery> for Query {
    fn from(query: &FactQuery) -> Self {
        Self {
            cursor: query.cursor,
            limit: query.limit,
            order: query.order,
            filters: Vec::new(),
            text: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl Query {
    /// Whether a row is an answer, bounds of ids aside.
    pub(crate) fn matches(&self, kind: &FactKind, record: &Record) -> bool {
        let time_ns = (kind.time)(record);
        self.meets(time_ns, time_ns)
            && self.filters.iter().all(|filter| filter.matches(kind, record))
            && self.text.as_ref().is_none_or(|text| kind.text.is_some_and(|of| text.matches(&of(record))))
    }

    pub(crate) fn has_time(&self) -> bool {
        self.from_ns.is_some() || self.to_ns.is_some()
    }

    /// Whether a row with a time between these can be an answer.
    pub(crate) fn meets(&self, least_ns: i64, greatest_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| from <= greatest_ns) && self.to_ns.is_none_or(|to| least_ns < to)
    }
}

impl Filter {
    fn matches(&self, kind: &FactKind, record: &Record) -> bool {
        let mut found = false;
        if let Some(index) = kind.indexes.get(self.index) {
            (index.values)(record, &mut |value| found |= self.values.iter().any(|wanted| wanted == value));
        }
        found
    }
}

/// Counts what a query examines, and ends it when that is too much.
pub(crate) struct Meter<'a> {
    budget: &'a Budget,
    examined: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Self {
        Self { budget, examined: 0 }
    }

    pub(crate) fn step(&mut self) -> Result<(), Error> {
        let examined = self.examined;
        if self.budget.rows.is_some_and(|most| examined >= most) {
            return Err(Error::Budget { examined });
        }
        // The clock is read now and then: a step takes a microsecond or so.
        if examined.is_multiple_of(64) {
            if self.budget.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::Deadline { examined });
            }
            if self.budget.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(Error::Cancelled);
            }
        }
        self.examined += 1;
        Ok(())
    }
}
