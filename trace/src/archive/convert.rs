//! Entries from and to the types of the crate.

use std::{borrow::Cow, sync::Arc};

use chainscope_usdt::{ArgumentContract, Kind, Length, Scalar};

use super::wire;
use crate::{
    accounting::{Accounting, Counts},
    attachment::{AttachedArgument, Attachment},
    event::{Event, Incomplete, Timestamp, Value},
};

impl From<Timestamp> for wire::Timestamp {
    fn from(Timestamp { monotonic_ns, wall_ns }: Timestamp) -> Self {
        Self { monotonic_ns, wall_ns }
    }
}

impl From<wire::Timestamp> for Timestamp {
    fn from(wire::Timestamp { monotonic_ns, wall_ns }: wire::Timestamp) -> Self {
        Self { monotonic_ns, wall_ns }
    }
}

impl From<&Attachment> for wire::Attachment {
    fn from(from: &Attachment) -> Self {
        Self {
            provider: from.provider.clone(),
            name: from.name.clone(),
            file: from.file.clone(),
            location: from.location,
            contract: from.contract.clone(),
            arguments: from.arguments.iter().map(Into::into).collect(),
        }
    }
}

impl From<&AttachedArgument> for wire::Argument {
    fn from(AttachedArgument { raw, meaning }: &AttachedArgument) -> Self {
        let (kind, max, length, to) = match meaning.kind {
            Kind::Scalar(scalar) => (scalar.name(), None, None, None),
            Kind::CString { max } => ("cstr", max, None, None),
            Kind::Hash32 => ("hash32", None, None, None),
            Kind::Bytes(length) => ("bytes", None, length.map(Into::into), None),
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

impl From<Length> for wire::Length {
    fn from(length: Length) -> Self {
        match length {
            Length::Fixed(length) => Self::Fixed(length),
            // A location has at most 64 arguments.
            Length::Argument(index) => Self::Argument(u32::try_from(index).unwrap_or(u32::MAX)),
        }
    }
}

pub(super) fn event(from: &Event, attachment: u32) -> wire::Event {
    wire::Event {
        sequence: from.sequence,
        monotonic_ns: from.time.monotonic_ns,
        wall_ns: from.time.wall_ns,
        pid: from.pid,
        tid: from.tid,
        cpu: from.cpu,
        comm: from.comm.clone(),
        attachment,
        arguments: from.arguments.iter().map(|value| wire::Value { kind: Some(value.into()) }).collect(),
    }
}

impl From<&Value> for wire::ValueKind {
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
                Self::Bytes(wire::PartialBytes { bytes: bytes.clone(), claimed: *claimed, incomplete })
            }
            Value::Unreadable { address } => Self::Unreadable(*address),
            Value::Unsupported => Self::Unsupported(wire::Unsupported {}),
        }
    }
}

impl From<&Accounting> for wire::Trailer {
    fn from(from: &Accounting) -> Self {
        let counts = |counts: &Counts| wire::Counts {
            hits: counts.hits,
            delivered: counts.delivered,
            dropped: counts.dropped.iter().map(|(reason, count)| (reason.to_string(), *count)).collect(),
        };
        Self {
            from: Some(from.from.into()),
            until: Some(from.until.into()),
            tracepoints: from.tracepoints.iter().map(|(name, found)| (name.clone(), counts(found))).collect(),
        }
    }
}

/// # Errors
/// What is not possible.
pub(super) fn read_attachment(from: wire::Attachment) -> Result<Attachment, String> {
    let count = from.arguments.len();
    let arguments = from.arguments.into_iter().map(|argument| read_argument(argument, count));
    Ok(Attachment {
        provider: from.provider,
        name: from.name,
        file: from.file,
        location: from.location,
        contract: from.contract,
        arguments: arguments.collect::<Result<_, _>>()?,
    })
}

fn read_argument(from: wire::Argument, count: usize) -> Result<AttachedArgument, String> {
    let scalar = |name: &str| Scalar::from_name(name).ok_or_else(|| format!("unknown type {name:?}"));
    let kind = match from.kind.as_str() {
        "cstr" => Kind::CString { max: from.max },
        "hash32" => Kind::Hash32,
        "bytes" => Kind::Bytes(from.length.map(|length| read_length(length, count)).transpose()?),
        "pointer" => Kind::Pointer(from.to.as_deref().map(scalar).transpose()?),
        name => Kind::Scalar(scalar(name)?),
    };
    let wire::Argument { raw, name, unit, values, note, .. } = from;
    Ok(AttachedArgument { raw, meaning: ArgumentContract { name, kind, unit, values, note } })
}

fn read_length(from: wire::Length, count: usize) -> Result<Length, String> {
    match from {
        wire::Length::Fixed(length) => Ok(Length::Fixed(length)),
        wire::Length::Argument(index) => {
            let known = usize::try_from(index).ok().filter(|index| *index < count);
            known.map(Length::Argument).ok_or_else(|| format!("there is no argument {index}"))
        }
    }
}

/// # Errors
/// What is not possible.
pub(super) fn read_event(from: wire::Event, attachments: &[Arc<Attachment>]) -> Result<Event, String> {
    let index = usize::try_from(from.attachment).unwrap_or(usize::MAX);
    let attachment = attachments.get(index).ok_or_else(|| format!("there is no attachment {index}"))?;
    let (found, expected) = (from.arguments.len(), attachment.arguments.len());
    if found != expected {
        return Err(format!("{found} values for {expected} arguments of {}", attachment.full_name()));
    }
    Ok(Event {
        sequence: from.sequence,
        time: Timestamp { monotonic_ns: from.monotonic_ns, wall_ns: from.wall_ns },
        pid: from.pid,
        tid: from.tid,
        cpu: from.cpu,
        comm: from.comm,
        attachment: Arc::clone(attachment),
        arguments: from.arguments.into_iter().map(read_value).collect::<Result<_, _>>()?,
    })
}

fn read_value(from: wire::Value) -> Result<Value, String> {
    Ok(match from.kind.ok_or("a value of an unknown kind")? {
        wire::ValueKind::Signed(number) => Value::Signed(number),
        wire::ValueKind::Unsigned(number) => Value::Unsigned(number),
        wire::ValueKind::Float(number) => Value::Float(number),
        wire::ValueKind::Bool(is_true) => Value::Bool(is_true),
        wire::ValueKind::Text(bytes) => Value::Text { bytes, is_truncated: false },
        wire::ValueKind::TruncatedText(bytes) => Value::Text { bytes, is_truncated: true },
        wire::ValueKind::Bytes(wire::PartialBytes { bytes, claimed, incomplete }) => {
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
        wire::ValueKind::Unreadable(address) => Value::Unreadable { address },
        wire::ValueKind::Unsupported(_) => Value::Unsupported,
    })
}

pub(super) fn read_accounting(from: wire::Trailer) -> Accounting {
    let counts = |counts: wire::Counts| Counts {
        hits: counts.hits,
        delivered: counts.delivered,
        dropped: counts.dropped.into_iter().map(|(reason, count)| (Cow::Owned(reason), count)).collect(),
    };
    Accounting {
        from: from.from.map(Into::into).unwrap_or_default(),
        until: from.until.map(Into::into).unwrap_or_default(),
        tracepoints: from.tracepoints.into_iter().map(|(name, found)| (name, counts(found))).collect(),
    }
}
