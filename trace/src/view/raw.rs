//! Payloads of P2P messages, as `log_raw_p2p_msgs.py` of Bitcoin Core and Tapyrus, but whole.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::{
    Lines, View,
    traffic::{Direction, Message},
};
use crate::{
    attachment::Attachment,
    content,
    event::{Event, Timestamp, Value},
};

/// A message is a line, with its payload in hexadecimal digits.
#[derive(Debug, Default)]
pub struct Raw {
    has_content: bool,
}

impl Raw {
    /// `has_content`: whether the content of messages is shown as well.
    #[must_use]
    pub fn new(has_content: bool) -> Self {
        Self { has_content }
    }
}

impl View for Raw {
    fn patterns(&self) -> Vec<String> {
        Message::PATTERNS.map(str::to_owned).to_vec()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Message::is_passed_by(provider, name)
    }

    fn needs_payloads(&self) -> bool {
        true
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("Logging raw P2P messages."));
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(message) = Message::of(event) else { return };
        let direction = match message.direction {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        };
        let (warning, payload) = match event.get("payload") {
            Some(Value::Bytes { bytes, claimed, incomplete }) => {
                let (captured, is_whole) = (bytes.len(), incomplete.is_none());
                let warning = format!("Warning: incomplete message (only {captured} out of {claimed} bytes)!");
                (if is_whole { String::new() } else { warning }, hex::encode(bytes))
            }
            _ => {
                let claimed = message.size();
                let warning = format!("Warning: incomplete message (only 0 out of {claimed} bytes)!");
                (warning, event.show("payload").to_string())
            }
        };
        out.line(format_args!(
            "{warning} {direction} msg '{}' from peer {} ({}, {}) with {} bytes: {payload}",
            message.message_type(),
            message.peer(),
            message.connection_type(),
            message.address(),
            message.size(),
        ));
        if self.has_content {
            out.line(format_args!("    {}", content::line(event)));
        }
    }

    fn annotate(&self, event: &Event, object: &mut Map<String, Json>) {
        if self.has_content {
            content::annotate(event, object);
        }
    }
}
