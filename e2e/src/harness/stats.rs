//! The conservation table of `/v2/stats`: counters of a node, and the equations of `record.proto` that they must satisfy.

use serde_json::Value;

use super::api::Api;
use super::wait;

/// Totals of one node over all its targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that the kernel saw the node send and receive.
    pub bytes_seen: u64,
    /// Bytes seen that were copied to the agent.
    pub bytes_captured: u64,
    /// Bytes seen of sockets recognised as another protocol's.
    pub bytes_left_alone: u64,
    /// Bytes seen that were not copied, for all reasons.
    pub bytes_dropped: u64,
    /// Bytes seen that are in the ring buffer.
    pub bytes_in_ring: u64,
    /// Bytes seen that the other terms do not explain.
    pub bytes_residual: i64,
    /// Captured bytes of chunks.
    pub bytes_in_chunks: u64,
    /// Captured bytes of other protocols.
    pub bytes_not_protocol: u64,
    /// Captured bytes between a gap and resynchronisation.
    pub bytes_skipped: u64,
    /// Captured bytes of a chunk that is not complete yet.
    pub bytes_pending: u64,
    /// Chunks found.
    pub chunks: u64,
    /// Chunks decrypted, or clear.
    pub chunks_opened: u64,
    /// Chunks that could not be decrypted.
    pub chunks_undecryptable: u64,
    /// Chunks that were found but not sent to the aggregator.
    pub chunks_dropped: u64,
    /// Bytes on the wire of the dropped chunks, included in `bytes_in_chunks`.
    pub chunk_bytes_dropped: u64,
    /// Complete messages.
    pub messages: u64,
    /// Messages sent to the aggregator.
    pub messages_sent: u64,
    /// Messages dropped, for all reasons.
    pub messages_dropped: u64,
    /// Gaps in streams.
    pub gaps: u64,
    /// Connections seen.
    pub connections: u64,
    /// Connections that are open.
    pub connections_open: u64,
}

impl Account {
    /// The node's account as reported now.
    ///
    /// # Panics
    /// If `/v2/stats` does not list the node.
    #[must_use]
    pub fn read(api: &Api, node: &str) -> Self {
        let stats = api.stats();
        let nodes = stats["nodes"].as_array().unwrap_or_else(|| panic!("no nodes in {stats}"));
        let of_node = nodes.iter().find(|n| n["name"] == node || n["node"] == node);
        let of_node = of_node.unwrap_or_else(|| panic!("{node} is not in {stats}"));
        let mut account = Self::default();
        account.add_all(of_node);
        account
    }

    /// Waits until no data is in flight: every connection is closed, the ring is empty and two consecutive reads agree.
    ///
    /// # Panics
    /// After a timeout.
    #[must_use]
    pub fn wait_settled(api: &Api, node: &str) -> Self {
        let mut last: Option<Self> = None;
        wait::until("the account to settle", || {
            let now = Self::read(api, node);
            let settled = now.bytes_in_ring == 0
                && now.bytes_seen > 0
                && now.connections_open == 0
                && last.as_ref() == Some(&now);
            last = Some(now.clone());
            settled.then_some(now)
        })
    }

    /// Waits for an account that satisfies `condition`. Accounts are reported at intervals: the first one may be old.
    ///
    /// # Panics
    /// After a timeout.
    #[must_use]
    pub fn wait_for(api: &Api, node: &str, what: &str, condition: impl Fn(&Self) -> bool) -> Self {
        wait::until_within(wait::WAIT_TIMEOUT * 3, what, || Some(Self::read(api, node)).filter(&condition))
    }

    fn add_all(&mut self, value: &Value) {
        match value {
            Value::Object(fields) if fields.contains_key("bytes_seen") => self.add(value),
            Value::Object(fields) => fields.values().for_each(|v| self.add_all(v)),
            Value::Array(items) => items.iter().for_each(|v| self.add_all(v)),
            _ => {}
        }
    }

    fn add(&mut self, account: &Value) {
        let number = |name: &str| match &account[name] {
            Value::Number(number) => number.as_u64().unwrap_or_default(),
            Value::Object(reasons) => reasons.values().filter_map(Value::as_u64).sum(),
            Value::Array(reasons) => reasons.iter().filter_map(|r| r["count"].as_u64()).sum(),
            other => panic!("{name} is {other} in {account}"),
        };
        self.bytes_seen += number("bytes_seen");
        self.bytes_captured += number("bytes_captured");
        self.bytes_left_alone += number("bytes_left_alone");
        self.bytes_dropped += number("bytes_dropped");
        self.bytes_in_ring += number("bytes_in_ring");
        self.bytes_residual += account["bytes_residual"].as_i64().unwrap_or_default();
        self.bytes_in_chunks += number("bytes_in_chunks");
        self.bytes_not_protocol += number("bytes_not_protocol");
        self.bytes_skipped += number("bytes_skipped");
        self.bytes_pending += number("bytes_pending");
        self.chunks += number("chunks");
        self.chunks_opened += number("chunks_opened");
        self.chunks_undecryptable += number("chunks_undecryptable");
        self.chunks_dropped += number("chunks_dropped");
        self.chunk_bytes_dropped += number("chunk_bytes_dropped");
        self.messages += number("messages");
        self.messages_sent += number("messages_sent");
        self.messages_dropped += number("messages_dropped");
        self.gaps += number("gaps");
        self.connections += number("connections");
        self.connections_open += number("connections_open");
    }

    /// Fails unless every equation holds.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_conserved(&self) {
        let a = self;
        assert_eq!(a.bytes_residual, 0, "{a:?}");
        assert_eq!(
            a.bytes_seen,
            a.bytes_captured + a.bytes_left_alone + a.bytes_dropped + a.bytes_in_ring,
            "seen: {a:?}"
        );
        assert_eq!(
            a.bytes_captured,
            a.bytes_in_chunks + a.bytes_not_protocol + a.bytes_skipped + a.bytes_pending,
            "captured: {a:?}"
        );
        assert_eq!(a.chunks, a.chunks_opened + a.chunks_undecryptable, "chunks: {a:?}");
        assert_eq!(a.messages, a.messages_sent + a.messages_dropped, "messages: {a:?}");
    }
}
