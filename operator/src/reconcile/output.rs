//! Results of a reconciliation, and the rate limit of status writes.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::input::Key;
use crate::{crd::TezosNodeStatus, desired::Desired};

/// Minimum interval between two writes of the same status.
const MIN_WRITE_INTERVAL_NS: i64 = 1_000_000_000;

/// The result of a reconciliation.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The desired state, if it changed.
    pub desired: Option<Arc<Desired>>,
    /// Whether the set of Secrets to watch changed.
    pub secrets_changed: bool,
    /// Statuses to write.
    pub statuses: Vec<StatusWrite>,
    /// Events to publish.
    pub events: Vec<EventRecord>,
}

/// A status to write.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusWrite {
    /// Key of the node.
    pub key: Key,
    /// UID of the node, as a precondition: a recreated node of the same name has another one.
    pub uid: String,
    /// The complete status.
    pub status: TezosNodeStatus,
}

/// An Event about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Key of the node.
    pub node: Key,
    /// UID of the node.
    pub uid: String,
    /// Whether the Event's type is `Warning`; otherwise it is `Normal`.
    pub is_warning: bool,
    /// The Event's reason.
    pub reason: String,
    /// The Event's note.
    pub note: String,
}

impl EventRecord {
    /// The Event for a changed status or reason of the condition `Ready`.
    pub(super) fn of_change(key: &Key, uid: &str, before: &TezosNodeStatus, now: &TezosNodeStatus) -> Option<Self> {
        let ready = |status: &'_ TezosNodeStatus| status.conditions.iter().find(|one| one.type_ == "Ready").cloned();
        let (old, new): (Option<Condition>, Condition) = (ready(before), ready(now)?);
        let same = |old: &Condition| old.status == new.status && old.reason == new.reason;
        if old.as_ref().is_some_and(same) {
            return None;
        }
        Some(Self {
            node: key.clone(),
            uid: uid.to_owned(),
            // `Unknown` is a normal transitional status.
            is_warning: new.status == "False",
            reason: new.reason,
            note: if new.message.is_empty() { format!("Ready is {}", new.status) } else { new.message },
        })
    }
}

/// Whether a status is due to be written: at once after a change, unless one was written just before.
pub(super) fn is_due(written: &TezosNodeStatus, written_ns: i64, status: &TezosNodeStatus, now_ns: i64) -> bool {
    status != written && now_ns.saturating_sub(written_ns) >= MIN_WRITE_INTERVAL_NS
}
