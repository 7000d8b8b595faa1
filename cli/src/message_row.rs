//! Rows of the API.

use anyhow::Context as _;
use chainscope_hygiene::{Escaped, EscapedTruncated};
use serde::Deserialize;

/// A row of `/v2/p2p`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: u64,
    /// Nanoseconds since 1970.
    pub(crate) timestamp: i64,
    pub(crate) remote_addr: String,
    /// The side that opened the connection: `local` or `remote`.
    pub(crate) source_type: Option<String>,
    pub(crate) incoming: bool,
    category: String,
    kind: Option<String>,
    message_preview: Option<String>,
    /// Length of the message; in live streams only.
    pub(crate) plain_bytes: Option<u64>,
    /// The peer's identity, empty if it is unknown; in live streams only.
    pub(crate) peer_id: Option<String>,
}

impl Row {
    /// Reads a row.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).with_context(|| format!("not a message row: {}", EscapedTruncated(text)))
    }

    /// Its type, or the part of the handshake that it is; escaped.
    pub(crate) fn kind(&self) -> String {
        Escaped(self.kind.as_deref().unwrap_or(&self.category)).to_string()
    }

    /// The beginning of the decoded message, escaped.
    pub(crate) fn preview(&self) -> String {
        Escaped(self.message_preview.as_deref().unwrap_or("(not decoded)")).to_string()
    }

    /// Its direction as an arrow.
    pub(crate) fn arrow(&self) -> char {
        if self.incoming { '←' } else { '→' }
    }
}
