//! Questions about events of tracepoints.

use super::index;
use crate::query::{Budget, Filter, Order, Query};

/// Which events of tracepoints, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub struct TraceQuery {
    /// Id to begin with, included: the greatest (newest first) or the least (oldest first).
    pub cursor: Option<u64>,
    /// Most events to give; 0 gives none.
    pub limit: u64,
    /// The order of the answer.
    pub order: Order,
    /// Tracepoints of any of these providers; empty for all.
    pub providers: Vec<String>,
    /// Tracepoints of any of these names, whatever their provider; empty for all.
    pub names: Vec<String>,
    /// Any of these processes; empty for all.
    pub pids: Vec<u32>,
    /// Events about any of these peers, by id or address; empty for all.
    pub peers: Vec<String>,
    /// The observed process or pod.
    pub target: Option<String>,
    /// Least time, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest time, excluded.
    pub to_ns: Option<i64>,
    /// Bound on the work.
    pub budget: Budget,
}

impl Default for TraceQuery {
    fn default() -> Self {
        Self {
            cursor: None,
            limit: 100,
            order: Order::NewestFirst,
            providers: Vec::new(),
            names: Vec::new(),
            pids: Vec::new(),
            peers: Vec::new(),
            target: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl TraceQuery {
    /// The query on the indexes of events.
    pub(crate) fn query(&self) -> Query {
        let texts = |texts: &[String]| texts.iter().map(|text| text.clone().into_bytes()).collect();
        let pids = self.pids.iter().map(|pid| pid.to_be_bytes().to_vec()).collect();
        let targets: Vec<Vec<u8>> = self.target.iter().map(|target| target.clone().into_bytes()).collect();
        let filters: [(usize, Vec<Vec<u8>>); 5] = [
            (index::PROVIDER, texts(&self.providers)),
            (index::NAME, texts(&self.names)),
            (index::PID, pids),
            (index::PEER, texts(&self.peers)),
            (index::TARGET, targets),
        ];
        let filters = filters.into_iter().filter(|(_, values)| !values.is_empty());
        Query {
            cursor: self.cursor,
            limit: self.limit,
            order: self.order,
            filters: filters.map(|(index, values)| Filter { index, values }).collect(),
            text: None,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            budget: self.budget.clone(),
        }
    }
}
