//! Entries from and to the types of the crate.

use std::{borrow::Cow, sync::Arc};

use super::wire;
use crate::{
    accounting::{Accounting, Counts},
    attachment::Attachment,
    event::{Event, Timestamp},
    record::{read_values, values},
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
        arguments: values(from),
    }
}

impl From<&Accounting> for wire::Trailer {
    fn from(from: &Accounting) -> Self {
        let counts = |counts: &Counts| wire::Counts {
            hits: counts.hits,
            delivered: counts.delivered,
            incomplete: counts.incomplete,
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
pub(super) fn read_event(from: wire::Event, attachments: &[Arc<Attachment>]) -> Result<Event, String> {
    let index = usize::try_from(from.attachment).unwrap_or(usize::MAX);
    let attachment = attachments.get(index).ok_or_else(|| format!("there is no attachment {index}"))?;
    Ok(Event {
        sequence: from.sequence,
        time: Timestamp { monotonic_ns: from.monotonic_ns, wall_ns: from.wall_ns },
        pid: from.pid,
        tid: from.tid,
        cpu: from.cpu,
        comm: from.comm,
        arguments: read_values(from.arguments, attachment)?,
        attachment: Arc::clone(attachment),
    })
}

pub(super) fn read_accounting(from: wire::Trailer) -> Accounting {
    let counts = |counts: wire::Counts| Counts {
        hits: counts.hits,
        delivered: counts.delivered,
        incomplete: counts.incomplete,
        dropped: counts.dropped.into_iter().map(|(reason, count)| (Cow::Owned(reason), count)).collect(),
    };
    Accounting {
        from: from.from.map(Into::into).unwrap_or_default(),
        until: from.until.map(Into::into).unwrap_or_default(),
        tracepoints: from.tracepoints.into_iter().map(|(name, found)| (name, counts(found))).collect(),
    }
}
