//! The conservation table of `/v2/stats`: a node's network account, and the equations of `record.proto` that it must satisfy.

use serde_json::Value;

use super::api::Api;
use super::wait;

/// Totals of one node, all its targets together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that the kernel saw the node send and receive.
    pub bytes_seen: u64,
    /// Of these, copied and handed on.
    pub bytes_captured: u64,
    /// Of sockets recognised as another protocol's.
    pub bytes_left_alone: u64,
    /// Not copied, all reasons.
    pub bytes_dropped: u64,
    /// Between kernel and agent.
    pub bytes_in_ring: u64,
    /// Of the captured.
    pub bytes_in_chunks: u64,
    /// Of the captured.
    pub bytes_not_protocol: u64,
    /// Of the captured: after a hole, before the stream found its place.
    pub bytes_skipped: u64,
    /// Of the captured: the beginning of a chunk that is not whole yet.
    pub bytes_pending: u64,
    /// Chunks that were found.
    pub chunks: u64,
    /// Of these, opened or clear.
    pub chunks_opened: u64,
    /// Of these, not opened.
    pub chunks_undecryptable: u64,
    /// Found, but not sent on.
    pub chunks_dropped: u64,
    /// Bytes on the wire of these; they are among `bytes_in_chunks`.
    pub chunk_bytes_dropped: u64,
    /// Whole messages.
    pub messages: u64,
    /// Of these, sent on.
    pub messages_sent: u64,
    /// Of these, dropped, all reasons.
    pub messages_dropped: u64,
    /// Holes in streams.
    pub gaps: u64,
    /// Connections seen.
    pub connections: u64,
    /// Of these, open now.
    pub connections_open: u64,
}

impl Account {
    /// The node's account as it is told now.
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

    /// Waits until nothing is on the way: every connection is over, the ring is empty and two looks in a row agree.
    ///
    /// # Panics
    /// If that never happens.
    #[must_use]
    pub fn settled(api: &Api, node: &str) -> Self {
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

    /// Waits for an account that is as wanted. Accounts are told now and then: the first one may be old.
    ///
    /// # Panics
    /// If none is.
    #[must_use]
    pub fn once(api: &Api, node: &str, what: &str, wanted: impl Fn(&Self) -> bool) -> Self {
        wait::until(what, || Some(Self::read(api, node)).filter(&wanted))
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
    /// If one does not.
    pub fn assert_conserved(&self) {
        let a = self;
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
