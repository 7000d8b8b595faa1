//! What a decision leads to, and when a status is worth a request to the API server.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::input::Key;
use crate::{
    crd::{PodStatus, TezosNodeStatus},
    desired::Desired,
};

/// Least time between two writes of one node's status.
const BETWEEN_NS: i64 = 1_000_000_000;
/// How old counts in a status may become.
const COUNTS_NS: i64 = 60_000_000_000;

/// What has to be done.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What agents and aggregator should do, if that changed.
    pub desired: Option<Arc<Desired>>,
    /// Whether other Secrets than before have to be watched.
    pub secrets_changed: bool,
    /// Statuses to write.
    pub statuses: Vec<StatusWrite>,
    /// What users may want to know.
    pub events: Vec<Happening>,
}

/// A status to write.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusWrite {
    /// The node.
    pub key: Key,
    /// Its uid: a node of the same name made meanwhile is another one.
    pub uid: String,
    /// The whole status.
    pub status: TezosNodeStatus,
}

/// Something to tell users by an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// The node.
    pub node: Key,
    /// Its uid.
    pub uid: String,
    /// Whether it is good news; the Event's type is then `Normal`, else `Warning`.
    pub good: bool,
    /// The Event's reason.
    pub reason: String,
    /// The Event's note.
    pub note: String,
}

impl Happening {
    /// The Event of a node that is ready or not for another reason than before.
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
            // Not to know yet is not worth a warning.
            good: new.status != "False",
            reason: new.reason,
            note: if new.message.is_empty() { format!("Ready is {}", new.status) } else { new.message },
        })
    }
}

/// Whether a status has to be written now: at once if something happened, once a minute if only counts grew.
pub(super) fn is_due(written: &TezosNodeStatus, written_ns: i64, status: &TezosNodeStatus, now_ns: i64) -> bool {
    let age = now_ns.saturating_sub(written_ns);
    status != written && age >= if differs(written, status) { BETWEEN_NS } else { COUNTS_NS }
}

/// Whether more than counts differs.
fn differs(one: &TezosNodeStatus, other: &TezosNodeStatus) -> bool {
    one.observed_generation != other.observed_generation
        || one.pod_count != other.pod_count
        || one.recording_count != other.recording_count
        || one.conditions != other.conditions
        || one.pods.len() != other.pods.len()
        || one.pods.iter().zip(&other.pods).any(|(one, other)| pod_differs(one, other))
}

fn pod_differs(one: &PodStatus, other: &PodStatus) -> bool {
    (&one.name, &one.uid, &one.host, one.state, one.pid, one.process_starts, &one.peer_id, one.last_error.is_empty())
        != (
            &other.name,
            &other.uid,
            &other.host,
            other.state,
            other.pid,
            other.process_starts,
            &other.peer_id,
            other.last_error.is_empty(),
        )
}
