//! Content of the messages of Bitcoin's P2P protocol, as JSON.
//!
//! What the library decodes is accepted only if its encoding is the payload again, byte for byte: nothing is shown of a message
//! that was understood in part.

mod values;
pub(crate) mod wire;

use bitcoin::{
    consensus::encode::{deserialize, serialize},
    p2p::message::{NetworkMessage, RawNetworkMessage},
};
use chainscope_hygiene::EscapedJson;
use serde_json::{Map, Value as Json, json};

use crate::{
    attachment::Attachment,
    event::{Event, Value},
};

/// Message types that Tapyrus has in common with Bitcoin. Its transactions have other ids, its block headers other fields.
const TAPYRUS_TYPES: [&str; 18] = [
    "version",
    "verack",
    "addr",
    "inv",
    "getdata",
    "notfound",
    "getblocks",
    "getheaders",
    "mempool",
    "sendheaders",
    "getaddr",
    "ping",
    "pong",
    "filterclear",
    "sendcmpct",
    "getblocktxn",
    "reject",
    "feefilter",
];

/// The protocol of a node's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// That of Bitcoin.
    Bitcoin,
    /// That of Tapyrus.
    Tapyrus,
    /// Not known.
    Unknown,
}

/// Why there is no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// The payload was not captured, or in part.
    #[error("only {captured} of {claimed} bytes were captured")]
    Incomplete {
        /// Number of bytes that were captured.
        captured: u64,
        /// Number of bytes that the node said.
        claimed: u64,
    },
    /// The type was not captured, or is none.
    #[error("its type is not known")]
    NoType,
    /// There is no decoder for the type.
    #[error("messages of this type cannot be decoded")]
    UnknownType,
    /// The node has another protocol, or other messages of this type.
    #[error("the node's messages of this type are not known to be those of Bitcoin")]
    OtherProtocol,
    /// The payload is not a message of its type.
    #[error("{0}")]
    Invalid(String),
    /// The payload is not how the message is encoded.
    #[error("the message has another encoding")]
    OtherEncoding,
}

impl Protocol {
    /// The protocol of the node that has a tracepoint, by its contract.
    #[must_use]
    pub fn of(attachment: &Attachment) -> Self {
        let contract = attachment.contract.as_deref().unwrap_or_default();
        let is_of = |family: &str| {
            contract.strip_prefix(family).is_some_and(|release| release.is_empty() || release.starts_with("-v"))
        };
        match contract {
            _ if is_of("bitcoin-core") || is_of("moneyrocket") => Self::Bitcoin,
            _ if is_of("tapyrus") => Self::Tapyrus,
            _ => Self::Unknown,
        }
    }

    fn has(self, message_type: &str) -> bool {
        match self {
            Self::Bitcoin => true,
            Self::Tapyrus => TAPYRUS_TYPES.contains(&message_type),
            Self::Unknown => false,
        }
    }
}

/// The content of the message of an event; `None` if the event has no payload.
#[must_use]
pub fn of_event(event: &Event) -> Option<Result<Json, ContentError>> {
    let payload = event.get("payload")?;
    let protocol = Protocol::of(&event.attachment);
    let message_type = match event.get("message_type") {
        Some(Value::Text { bytes, is_truncated: false }) => str::from_utf8(bytes).ok(),
        _ => None,
    };
    let Some(message_type) = message_type else { return Some(Err(ContentError::NoType)) };
    let size = event.integer("size").and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
    Some(match payload {
        Value::Bytes { bytes, incomplete: None, .. } => decode(protocol, message_type, bytes),
        Value::Bytes { bytes, claimed, .. } => {
            Err(ContentError::Incomplete { captured: bytes.len() as u64, claimed: *claimed })
        }
        _ => Err(ContentError::Incomplete { captured: 0, claimed: size }),
    })
}

/// Adds the content of the message of an event to the event's object, or why there is none.
pub(crate) fn annotate(event: &Event, object: &mut Map<String, Json>) {
    match of_event(event) {
        Some(Ok(content)) => object.insert("content".to_owned(), content),
        Some(Err(error)) => object.insert("content_error".to_owned(), json!(error.to_string())),
        None => None,
    };
}

/// The content of the message of an event on a line, or why there is none, and the payload.
pub(crate) fn line(event: &Event) -> String {
    match of_event(event) {
        Some(Ok(content)) => EscapedJson(&content.to_string()).to_string(),
        Some(Err(error)) => {
            let error = error.to_string();
            format!("not decoded ({}): {}", crate::show::escape(error.as_bytes()), event.show("payload"))
        }
        None => "not decoded: no payload".to_owned(),
    }
}

/// Decodes the payload of a message. Numbers are as the message has them, hashes in the order of display, amounts in satoshi,
/// other bytes hexadecimal.
///
/// # Errors
/// See [`ContentError`].
pub fn decode(protocol: Protocol, message_type: &str, payload: &[u8]) -> Result<Json, ContentError> {
    if !protocol.has(message_type) {
        return Err(ContentError::OtherProtocol);
    }
    let header = wire::header(message_type.as_bytes(), payload).ok_or(ContentError::NoType)?;
    let raw: RawNetworkMessage =
        deserialize(&[&header, payload].concat()).map_err(|error| ContentError::Invalid(error.to_string()))?;
    let message = raw.payload();
    if matches!(message, NetworkMessage::Unknown { .. }) {
        return Err(ContentError::UnknownType);
    }
    if serialize(message) != payload {
        return Err(ContentError::OtherEncoding);
    }
    Ok(values::message(message))
}
