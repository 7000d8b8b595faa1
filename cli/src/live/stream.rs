//! The threads of the live table: one follows the stream of messages, one loads bodies.

use std::{
    sync::mpsc::{Receiver, SyncSender},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, ensure};
use chainscope_hygiene::EscapedJson;
use serde_json::Value;

use crate::{api::Api, failure, hex, message_row::Row, rows::backoff};

/// Largest response with a body that is shown: about a mebibyte of message.
const MAX_BODY_BYTES: u64 = 16 << 20;

/// A change to the state of the view.
pub(super) enum Update {
    /// The stream of messages is open.
    Open,
    /// It was lost for this reason, and is opened again.
    Lost(String),
    /// The server has other records than before: ids begin again.
    Restarted,
    Row(Row),
    /// A body was loaded, as lines of a screen, or why not.
    Body {
        id: u64,
        lines: Result<Vec<String>, String>,
    },
}

/// The messages of one node.
pub(super) struct Source {
    api: Api,
    filters: Vec<(&'static str, String)>,
    /// Past messages to begin with.
    past: u64,
    /// Id of the next message, once one was received.
    next: Option<u64>,
}

impl Source {
    /// Messages that pass the filters, of which the latest `past` may be past ones.
    pub(super) fn new(api: Api, filters: Vec<(&'static str, String)>, past: u64) -> Self {
        Self { api, filters, past, next: None }
    }

    /// Id after the newest message.
    pub(super) fn end(&self) -> anyhow::Result<u64> {
        let mut query = self.filters.clone();
        query.push(("limit", "1".to_owned()));
        let rows = self.api.json("/v2/p2p", &query)?;
        let rows = rows.as_array().context("/v2/p2p did not return a list")?;
        rows.first().map_or(Ok(0), |row| Ok(row["id"].as_u64().context("a row without an id")? + 1))
    }

    /// Starts to follow the stream; ends when nobody receives.
    pub(super) fn spawn(mut self, updates: SyncSender<Update>) -> JoinHandle<()> {
        thread::spawn(move || {
            let mut failures = 0;
            loop {
                let received = self.next;
                let Err(error) = self.follow(&updates);
                if self.next != received {
                    failures = 0;
                }
                if updates.send(Update::Lost(failure::one_line(&error))).is_err() {
                    return;
                }
                thread::sleep(backoff(failures));
                failures += 1;
            }
        })
    }

    /// Follows the stream until it is lost.
    fn follow(&mut self, updates: &SyncSender<Update>) -> anyhow::Result<std::convert::Infallible> {
        let end = self.end()?;
        if self.next.is_some_and(|next| next > end) {
            updates.send(Update::Restarted)?;
            self.next = None;
        }
        let cursor = self.next.unwrap_or(end.saturating_sub(self.past));
        let mut query = self.filters.clone();
        query.push(("cursor", cursor.to_string()));
        let mut events = self.api.events("/v2/p2p/stream", &query)?;
        updates.send(Update::Open)?;
        while let Some(text) = events.next()? {
            let row = Row::parse(&text)?;
            self.next = Some(row.id + 1);
            updates.send(Update::Row(row))?;
        }
        anyhow::bail!("the server ended the stream")
    }
}

/// Starts to load the bodies of messages by their ids.
pub(super) fn spawn_loader(
    api: Api,
    node: Option<String>,
    ids: Receiver<u64>,
    updates: SyncSender<Update>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let query: Vec<_> = node.map(|node| ("node_name", node)).into_iter().collect();
        for id in ids {
            let message = api.json_within(MAX_BODY_BYTES, &format!("/v2/p2p/{id}"), &query);
            let lines = message.and_then(|message| body(&message)).map_err(|error| failure::one_line(&error));
            if updates.send(Update::Body { id, lines }).is_err() {
                return;
            }
        }
    })
}

/// A response of `/v2/p2p/{id}` as lines: the decoded message, or the reason why there is none, and its bytes.
fn body(response: &Value) -> anyhow::Result<Vec<String>> {
    ensure!(!response.is_null(), "it was evicted");
    let mut lines = Vec::new();
    let json = match &response["message"] {
        Value::Null => serde_json::to_string_pretty(&response["error"])?,
        message => serde_json::to_string_pretty(message)?,
    };
    if response["message"].is_null() {
        lines.push("not decoded:".to_owned());
    }
    lines.extend(EscapedJson(&json).to_string().lines().map(str::to_owned));
    let bytes: Option<Vec<u8>> = response["decrypted_bytes"]
        .as_array()
        .and_then(|bytes| bytes.iter().map(|byte| u8::from_str_radix(byte.as_str()?, 16).ok()).collect());
    let bytes = bytes.context("a message without its bytes")?;
    lines.extend([String::new(), format!("{} bytes:", bytes.len())]);
    lines.extend(hex::dump(&bytes, hex::LINE_BYTES));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::body;

    #[test]
    fn a_body_is_json_and_a_hex_dump() {
        let bytes: Vec<String> = (0x30..0x42).map(|byte| format!("{byte:02x}")).collect();
        let response = json!({"id": 1, "message": {"a": "\u{202e}"}, "decrypted_bytes": bytes, "error": null});
        let expected = [
            "{",
            "  \"a\": \"\\u202e\"",
            "}",
            "",
            "18 bytes:",
            "00000000  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?",
            "00000010  40 41                                            @A",
        ];
        assert_eq!(body(&response).unwrap(), expected);
        let undecoded = json!({"message": null, "decrypted_bytes": ["1b"], "error": "odd \u{1b}"});
        let expected = [
            "not decoded:",
            "\"odd \\u001b\"",
            "",
            "1 bytes:",
            "00000000  1b                                               .",
        ];
        assert_eq!(body(&undecoded).unwrap(), expected);
        assert_eq!(body(&json!(null)).unwrap_err().to_string(), "it was evicted");
        assert!(body(&json!({"message": 1, "decrypted_bytes": ["zz"]})).is_err());
    }
}
