//! Events and attachments as messages of Protocol Buffers: as agents send and aggregators store them, and as they are in
//! recordings. Input is untrusted.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use chainscope_proto::v1::{
    TraceArgument, TraceAttachment, TraceBytes, TraceEvent, TraceUnsupported, TraceValue, trace_argument,
    trace_value::Kind as ValueKind,
};
use chainscope_usdt::{ArgumentContract, Kind, Length, Scalar};
use prost::Message as _;

use crate::{
    attachment::{AttachedArgument, Attachment},
    event::{Event, Incomplete, Timestamp, Value},
    view::field,
};

/// Names of the arguments that say which peer an event is about, in the contracts.
const PEER_ARGUMENTS: [&str; 3] = ["peer_id", "address", "endpoint"];
/// Attachments that a [`Decoder`] remembers; then it begins anew.
const MAX_KNOWN: usize = 4096;

/// The attachment as it is in the records of its events.
#[must_use]
pub fn encode_attachment(attachment: &Attachment) -> Bytes {
    TraceAttachment::from(attachment).encode_to_vec().into()
}

/// An event as a record. `attachment` is [encoded](encode_attachment).
#[must_use]
pub fn encode_event(event: &Event, attachment: &Bytes) -> TraceEvent {
    TraceEvent {
        provider: event.attachment.provider.clone(),
        name: event.attachment.name.clone(),
        monotonic_ns: event.time.monotonic_ns,
        pid: event.pid,
        tid: event.tid,
        cpu: event.cpu,
        comm: event.comm.clone(),
        peers: peers(event),
        attachment: attachment.clone(),
        arguments: values(event),
    }
}

/// Reads events from records. The attachments are decoded once.
#[derive(Debug, Default)]
pub struct Decoder(HashMap<Bytes, Arc<Attachment>>);

impl Decoder {
    /// The event of a record with this number and time.
    ///
    /// # Errors
    /// What of it cannot be read.
    pub fn event(&mut self, sequence: u64, wall_ns: i64, from: TraceEvent) -> Result<Event, String> {
        let attachment = self.attachment(&from.attachment)?;
        if (&from.provider, &from.name) != (&attachment.provider, &attachment.name) {
            return Err(format!("it is of {}:{}, its attachment of another tracepoint", from.provider, from.name));
        }
        let arguments = read_values(from.arguments, &attachment)?;
        let time = Timestamp { monotonic_ns: from.monotonic_ns, wall_ns };
        let TraceEvent { pid, tid, cpu, comm, .. } = from;
        Ok(Event { sequence, time, pid, tid, cpu, comm, attachment, arguments })
    }

    fn attachment(&mut self, encoded: &Bytes) -> Result<Arc<Attachment>, String> {
        if let Some(known) = self.0.get(encoded) {
            return Ok(Arc::clone(known));
        }
        let decoded = TraceAttachment::decode(encoded.clone()).map_err(|error| error.to_string())?;
        let attachment = Arc::new(read_attachment(decoded)?);
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        // A copy, so that the whole message that it arrived in is not kept.
        self.0.insert(Bytes::copy_from_slice(encoded), Arc::clone(&attachment));
        Ok(attachment)
    }
}

/// What the arguments say of the peer. What could not be read is no peer.
fn peers(event: &Event) -> Vec<String> {
    let is_read = |name: &&&str| {
        event.get(name).is_some_and(|value| !matches!(value, Value::Unreadable { .. } | Value::Unsupported))
    };
    PEER_ARGUMENTS.iter().filter(is_read).map(|name| field(event, name)).collect()
}

/// The values of an event.
pub(crate) fn values(event: &Event) -> Vec<TraceValue> {
    event.arguments.iter().map(|value| TraceValue { kind: Some(value.into()) }).collect()
}

/// Reads the values of an event at this attachment.
pub(crate) fn read_values(from: Vec<TraceValue>, attachment: &Attachment) -> Result<Vec<Value>, String> {
    let (found, expected) = (from.len(), attachment.arguments.len());
    if found != expected {
        return Err(format!("{found} values for {expected} arguments of {}", attachment.full_name()));
    }
    from.into_iter().map(read_value).collect()
}

impl From<&Attachment> for TraceAttachment {
    fn from(from: &Attachment) -> Self {
        Self {
            provider: from.provider.clone(),
            name: from.name.clone(),
            file: from.file.clone(),
            location: from.location,
            contract: from.contract.clone(),
            arguments: from.arguments.iter().map(Into::into).collect(),
            build_id: from.build_id.clone(),
        }
    }
}

impl From<&AttachedArgument> for TraceArgument {
    fn from(AttachedArgument { raw, meaning }: &AttachedArgument) -> Self {
        let (kind, max, length, to) = match meaning.kind {
            Kind::Scalar(scalar) => (scalar.name(), None, None, None),
            Kind::CString { max } => ("cstr", max, None, None),
            Kind::Hash32 => ("hash32", None, None, None),
            Kind::Bytes(length) => ("bytes", None, length.map(wire_length), None),
            Kind::Pointer(to) => ("pointer", None, None, to.map(|scalar| scalar.name().to_owned())),
        };
        Self {
            raw: raw.clone(),
            name: meaning.name.clone(),
            kind: kind.to_owned(),
            max,
            length,
            to,
            unit: meaning.unit.clone(),
            values: meaning.values.clone(),
            note: meaning.note.clone(),
        }
    }
}

fn wire_length(length: Length) -> trace_argument::Length {
    match length {
        Length::Fixed(length) => trace_argument::Length::Fixed(length),
        // A location has at most 64 arguments.
        Length::Argument(index) => trace_argument::Length::Argument(u32::try_from(index).unwrap_or(u32::MAX)),
    }
}

impl From<&Value> for ValueKind {
    fn from(value: &Value) -> Self {
        match value {
            Value::Signed(number) => Self::Signed(*number),
            Value::Unsigned(number) => Self::Unsigned(*number),
            Value::Float(number) => Self::Float(*number),
            Value::Bool(is_true) => Self::Bool(*is_true),
            Value::Text { bytes, is_truncated: false } => Self::Text(bytes.clone()),
            Value::Text { bytes, is_truncated: true } => Self::TruncatedText(bytes.clone()),
            Value::Bytes { bytes, claimed, incomplete } => {
                let incomplete = match incomplete {
                    None => 0,
                    Some(Incomplete::Limit) => 1,
                    Some(Incomplete::Unreadable) => 2,
                    Some(Incomplete::Dropped) => 3,
                };
                Self::Bytes(TraceBytes { bytes: bytes.clone(), claimed: *claimed, incomplete })
            }
            Value::Unreadable { address } => Self::Unreadable(*address),
            Value::Unsupported => Self::Unsupported(TraceUnsupported {}),
        }
    }
}

/// # Errors
/// What is not possible.
pub(crate) fn read_attachment(from: TraceAttachment) -> Result<Attachment, String> {
    let count = from.arguments.len();
    let arguments = from.arguments.into_iter().map(|argument| read_argument(argument, count));
    Ok(Attachment {
        provider: from.provider,
        name: from.name,
        file: from.file,
        location: from.location,
        contract: from.contract,
        arguments: arguments.collect::<Result<_, _>>()?,
        build_id: from.build_id,
    })
}

fn read_argument(from: TraceArgument, count: usize) -> Result<AttachedArgument, String> {
    let scalar = |name: &str| Scalar::from_name(name).ok_or_else(|| format!("unknown type {name:?}"));
    let kind = match from.kind.as_str() {
        "cstr" => Kind::CString { max: from.max },
        "hash32" => Kind::Hash32,
        "bytes" => Kind::Bytes(from.length.map(|length| read_length(length, count)).transpose()?),
        "pointer" => Kind::Pointer(from.to.as_deref().map(scalar).transpose()?),
        name => Kind::Scalar(scalar(name)?),
    };
    let TraceArgument { raw, name, unit, values, note, .. } = from;
    Ok(AttachedArgument { raw, meaning: ArgumentContract { name, kind, unit, values, note } })
}

fn read_length(from: trace_argument::Length, count: usize) -> Result<Length, String> {
    match from {
        trace_argument::Length::Fixed(length) => Ok(Length::Fixed(length)),
        trace_argument::Length::Argument(index) => {
            let known = usize::try_from(index).ok().filter(|index| *index < count);
            known.map(Length::Argument).ok_or_else(|| format!("there is no argument {index}"))
        }
    }
}

fn read_value(from: TraceValue) -> Result<Value, String> {
    Ok(match from.kind.ok_or("a value of an unknown kind")? {
        ValueKind::Signed(number) => Value::Signed(number),
        ValueKind::Unsigned(number) => Value::Unsigned(number),
        ValueKind::Float(number) => Value::Float(number),
        ValueKind::Bool(is_true) => Value::Bool(is_true),
        ValueKind::Text(bytes) => Value::Text { bytes, is_truncated: false },
        ValueKind::TruncatedText(bytes) => Value::Text { bytes, is_truncated: true },
        ValueKind::Bytes(TraceBytes { bytes, claimed, incomplete }) => {
            let incomplete = match incomplete {
                0 if bytes.len() as u64 != claimed => return Err("bytes are missing without a cause".to_owned()),
                0 => None,
                1 => Some(Incomplete::Limit),
                2 => Some(Incomplete::Unreadable),
                3 => Some(Incomplete::Dropped),
                other => return Err(format!("unknown cause {other} of missing bytes")),
            };
            Value::Bytes { bytes, claimed, incomplete }
        }
        ValueKind::Unreadable(address) => Value::Unreadable { address },
        ValueKind::Unsupported(_) => Value::Unsupported,
    })
}
