//! Questions about log messages.

use chainscope_proto::v1::LogLevel;

use super::index;
use crate::{
    TextQuery,
    query::{Budget, Filter, Order, Query},
};

/// Which log messages, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub struct LogQuery {
    /// Id to begin with, included: the greatest (newest first) or the least (oldest first).
    pub cursor: Option<u64>,
    /// Most messages to give; 0 gives none.
    pub limit: u64,
    /// The order of the answer.
    pub order: Order,
    /// Any of these levels; empty for all.
    pub levels: Vec<LogLevel>,
    /// The observed process or pod.
    pub target: Option<String>,
    /// What the text and the section say.
    pub text: Option<TextQuery>,
    /// Least time, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest time, excluded.
    pub to_ns: Option<i64>,
    /// Bound on the work.
    pub budget: Budget,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self {
            cursor: None,
            limit: 100,
            order: Order::NewestFirst,
            levels: Vec::new(),
            target: None,
            text: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl LogQuery {
    /// The query on the indexes of log messages.
    pub(crate) fn query(&self) -> Query {
        let mut filters = Vec::new();
        if !self.levels.is_empty() {
            let values = self.levels.iter().map(|level| vec![*level as u8]).collect();
            filters.push(Filter { index: index::LEVEL, values });
        }
        if let Some(target) = &self.target {
            filters.push(Filter { index: index::TARGET, values: vec![target.clone().into_bytes()] });
        }
        Query {
            cursor: self.cursor,
            limit: self.limit,
            order: self.order,
            filters,
            text: self.text.clone(),
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            budget: self.budget.clone(),
        }
    }
}
