//! Conditions of a node, aggregated from the conditions of its pods.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{self as meta, Time},
    jiff::Timestamp,
};

use super::{
    input::{Key, NodeInput, NodeKind},
    plan::{IdentityPlan, Plan},
    reason::{Condition, ConditionStatus, Reason, sanitize},
};
use crate::crd::TezosNodeSpec;

/// The condition of the identity, which only a `TezosNode` has.
const IDENTITY_RESOLVED: &str = "IdentityResolved";

/// The conditions of one pod.
pub(super) struct PodConditions {
    pub(super) identity: Condition,
    pub(super) recording: Condition,
    pub(super) process: Condition,
}

impl PodConditions {
    /// The same condition three times.
    pub(super) fn all(status: ConditionStatus, reason: Reason, message: &str) -> Self {
        let condition = Condition::new(status, reason, message);
        Self { identity: condition.clone(), recording: condition.clone(), process: condition }
    }
}

/// The worst condition of all pods, and the number of further pods whose condition is not `True`.
type Worst = Option<(Condition, usize)>;

/// Aggregates the conditions of a node's pods.
#[derive(Default)]
pub(super) struct ConditionSummary {
    identity: Worst,
    recording: Worst,
    process: Worst,
    mismatch: Worst,
}

impl ConditionSummary {
    /// Adds a pod. `mismatch` is a difference of the pod from the specification that leaves something to record.
    pub(super) fn add(&mut self, pod: &str, conditions: PodConditions, mismatch: Option<&(Reason, String)>) {
        update_worst(&mut self.identity, pod, conditions.identity);
        update_worst(&mut self.recording, pod, conditions.recording);
        update_worst(&mut self.process, pod, conditions.process);
        if let Some((reason, text)) = mismatch {
            update_worst(&mut self.mismatch, pod, Condition::new(ConditionStatus::False, *reason, text));
        }
    }

    /// The conditions of the node as the API server stores them. `before` are the last ones: `lastTransitionTime` of an
    /// unchanged condition is kept.
    pub(super) fn into_conditions(
        self,
        node: &NodeInput,
        plan: &Plan,
        before: &[meta::Condition],
        unix_ns: i64,
    ) -> Vec<meta::Condition> {
        let has_identity = node.key.kind() == NodeKind::TezosNode;
        let conditions = self.by_type(node, plan).into_iter();
        let conditions = conditions.filter(|(kind, _)| has_identity || *kind != IDENTITY_RESOLVED);
        conditions.map(|(kind, condition)| to_api(kind, condition, node.generation, before, unix_ns)).collect()
    }

    fn by_type(self, node: &NodeInput, plan: &Plan) -> [(&'static str, Condition); 4] {
        let conflict = plan.conflict.as_ref().map(|conflict| {
            let message = conflict_message(plan.conflicts, conflict);
            Condition::new(ConditionStatus::False, Reason::PodConflict, message)
        });
        let no_pods = |status| match (&node.spec, &conflict) {
            (Err(error), _) => {
                let message =
                    format!("this version of the operator cannot parse the specification: {}", sanitize(error));
                Condition::new(status, Reason::SpecInvalid, message)
            }
            (_, Some(conflict)) => Condition { status, ..conflict.clone() },
            _ => Condition::new(status, Reason::NoPodsSelected, "no pod in the namespace matches podSelector"),
        };
        let or_no_pods = |worst: Worst, status| worst.map_or_else(|| no_pods(status), with_count);
        let identity = match &plan.identity {
            // Known without a report.
            IdentityPlan::Missing(reason, message) => Condition::new(ConditionStatus::False, *reason, message),
            _ => or_no_pods(self.identity, ConditionStatus::Unknown),
        };
        let recording = or_no_pods(self.recording, ConditionStatus::False);
        let process = or_no_pods(self.process, ConditionStatus::Unknown);
        let mismatch = self.mismatch.map(with_count);
        let fault = plan.fault.as_ref();
        let fault = fault.map(|(reason, text)| Condition::new(ConditionStatus::False, *reason, text));
        // Network recording that is disabled by the specification does not make the node unready.
        let records_more = node.tezos().is_some_and(TezosNodeSpec::records_beside_network);
        let required = match recording.reason {
            Reason::NetworkDisabled if records_more => vec![&process],
            Reason::NetworkDisabled => vec![],
            _ if node.key.kind() == NodeKind::NodeTrace => vec![&recording, &process],
            _ => vec![&recording, &identity, &process],
        };
        let mut worst: Vec<&Condition> = required.into_iter().chain(&fault).chain(&mismatch).chain(&conflict).collect();
        worst.sort_by_key(|condition| (condition.status == ConditionStatus::True, condition.reason));
        let any_false = worst.iter().any(|condition| condition.status == ConditionStatus::False);
        let mut ready = match worst.first() {
            Some(first) => (*first).clone(),
            None => Condition { status: ConditionStatus::True, ..recording.clone() },
        };
        if ready.status != ConditionStatus::True && any_false {
            ready.status = ConditionStatus::False;
        }
        [("Ready", ready), (IDENTITY_RESOLVED, identity), ("Recording", recording), ("ProcessRunning", process)]
    }
}

fn update_worst(worst: &mut Worst, pod: &str, condition: Condition) {
    let named = |condition: Condition| match condition.message.is_empty() {
        true => condition,
        false => Condition { message: format!("{pod}: {}", condition.message), ..condition },
    };
    match worst {
        None => *worst = Some((named(condition), 0)),
        Some((old, others)) => {
            let is_bad = condition.status != ConditionStatus::True;
            if (condition.status, condition.reason) < (old.status, old.reason) {
                *others += usize::from(old.status != ConditionStatus::True);
                *old = named(condition);
            } else {
                *others += usize::from(is_bad);
            }
        }
    }
}

fn with_count((mut condition, others): (Condition, usize)) -> Condition {
    if others > 0 && !condition.message.is_empty() {
        condition.message.push_str(&format!(" (and {others} more)"));
    }
    condition
}

fn conflict_message(count: usize, (pod, owner): &(Key, Key)) -> String {
    let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    let (kind, owner) = owner.resource();
    format!("pod {} belongs to the older {kind} {owner}{more}", pod.name)
}

fn to_api(
    kind: &str,
    condition: Condition,
    generation: i64,
    before: &[meta::Condition],
    unix_ns: i64,
) -> meta::Condition {
    let status = condition.status.as_str();
    let last_transition_time = before
        .iter()
        .find(|old| old.type_ == kind && old.status == status)
        .map(|old| old.last_transition_time.clone())
        .or_else(|| time(unix_ns))
        .unwrap_or(Time(Timestamp::UNIX_EPOCH));
    meta::Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: condition.reason.as_str().to_owned(),
        message: condition.message,
        observed_generation: Some(generation),
        last_transition_time,
    }
}

/// The time in whole seconds, the precision of the API server.
pub(super) fn time(ns: i64) -> Option<Time> {
    Timestamp::from_second(ns.div_euclid(1_000_000_000)).ok().map(Time)
}
