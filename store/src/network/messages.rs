//! Questions about messages.

use std::net::SocketAddr;

use chainscope_proto::v1::Initiator;

use super::{index, socket_value};
use crate::query::{Budget, Filter, Order, Query};

/// Which messages, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub struct MessageQuery {
    /// Id to begin with, included: the greatest (newest first) or the least (oldest first).
    pub cursor: Option<u64>,
    /// Most messages to give; 0 gives none.
    pub limit: u64,
    /// The order of the answer.
    pub order: Order,
    /// Any of these kinds; empty for all.
    pub kinds: Vec<String>,
    /// Sent by the remote (true) or by the observed node (false).
    pub incoming: Option<bool>,
    /// Who opened the connection.
    pub initiator: Option<Initiator>,
    /// The remote's address; an IPv4 address equals the IPv6 address that it is mapped to.
    pub remote: Option<SocketAddr>,
    /// The remote's identity.
    pub peer_id: Option<String>,
    /// The observed process.
    pub target: Option<String>,
    /// Least time, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest time, excluded.
    pub to_ns: Option<i64>,
    /// Bound on the work.
    pub budget: Budget,
}

impl Default for MessageQuery {
    fn default() -> Self {
        Self {
            cursor: None,
            limit: 100,
            order: Order::NewestFirst,
            kinds: Vec::new(),
            incoming: None,
            initiator: None,
            remote: None,
            peer_id: None,
            target: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl MessageQuery {
    /// The query on the indexes of messages.
    pub(crate) fn query(&self) -> Query {
        let mut filters = Vec::new();
        let mut filter = |index, values| filters.push(Filter { index, values });
        let text = |text: &String| text.clone().into_bytes();
        if !self.kinds.is_empty() {
            filter(index::KIND, self.kinds.iter().map(text).collect());
        }
        if let Some(incoming) = self.incoming {
            filter(index::INCOMING, vec![vec![u8::from(incoming)]]);
        }
        if let Some(initiator) = self.initiator {
            filter(index::INITIATOR, vec![vec![initiator as u8]]);
        }
        if let Some(remote) = self.remote {
            filter(index::REMOTE, vec![socket_value(remote).to_vec()]);
        }
        if let Some(peer_id) = &self.peer_id {
            filter(index::PEER, vec![text(peer_id)]);
        }
        if let Some(target) = &self.target {
            filter(index::TARGET, vec![text(target)]);
        }
        Query {
            cursor: self.cursor,
            limit: self.limit,
            order: self.order,
            filters,
            text: None,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            budget: self.budget.clone(),
        }
    }
}
