//! The status of a node, computed from its plan and the agents' reports.

use std::collections::BTreeMap;

use chainscope_proto::v1::{PodReport, PodState as ReportedState};

use super::{
    conditions::{ConditionSummary, PodConditions},
    drops::PodDrops,
    hosts::{AgentState, HostView, Hosts},
    input::{NodeInput, NodeKind},
    plan::{IdentityPlan, Plan, PodPlan},
    reason::{Condition, ConditionStatus, Reason, sanitize},
    restarts::Restarts,
    trace,
};
use crate::crd::{PodState, PodStatus, TezosNodeStatus};

/// Maximum number of pods listed in a status.
const MAX_PODS: usize = 100;

/// The result of [`compute_status`].
pub(super) struct ComputedStatus {
    pub(super) status: TezosNodeStatus,
    /// Whether a process is in a restart loop. The status then has to be computed again without a change of the inputs,
    /// because only elapsed time ends a loop.
    pub(super) has_restart_loop: bool,
    /// Dropped records of the reported pods, by UID.
    pub(super) drops: BTreeMap<Box<str>, PodDrops>,
}

/// Computes the status of a node. `before` is its previous status.
pub(super) fn compute_status(
    node: &NodeInput,
    plan: &Plan,
    before: &TezosNodeStatus,
    hosts: &Hosts,
    restarts: &mut BTreeMap<Box<str>, Restarts>,
    unix_ns: i64,
) -> ComputedStatus {
    let node_key = node.key.to_string();
    restarts.retain(|uid, _| plan.pods.values().any(|pod| pod.uid == *uid));
    let previous: BTreeMap<&str, &PodStatus> = before.pods.iter().map(|pod| (&*pod.uid, pod)).collect();
    let enabled = node.tezos().is_none_or(|spec| spec.network.enabled);
    let mut status = TezosNodeStatus { observed_generation: Some(node.generation), ..TezosNodeStatus::default() };
    let mut summary = ConditionSummary::default();
    let mut has_restart_loop = false;
    let mut drops = BTreeMap::new();
    // After a change of leader the agents need time to reconnect: the previous conditions are kept until then.
    let mut is_reconnecting = false;
    for (name, pod) in &plan.pods {
        let host = pod.host.as_deref().and_then(|host| hosts.view(host, &node_key, &pod.uid));
        if let Some((host, report)) = host.as_ref().and_then(|host| Some((host, host.report?))) {
            drops.insert(pod.uid.clone(), PodDrops { host: host.name.into(), records: report.records_lost });
        }
        let previous = previous.get(&*pod.uid).copied();
        let was_reported = previous.is_some_and(|previous| {
            !matches!(previous.state, PodState::Unknown | PodState::NotConfigured | PodState::Unscheduled)
        });
        is_reconnecting |= was_reported && host.as_ref().is_some_and(|host| host.agent_state == AgentState::Pending);
        let inputs = PodInputs { node, plan, name, pod, host: host.as_ref(), previous, unix_ns };
        let (pod_status, mut conditions) = inputs.compute(restarts.entry(pod.uid.clone()).or_default());
        has_restart_loop |= conditions.process.reason == Reason::RestartLoop;
        if !enabled {
            let message = "network.enabled is false";
            conditions.recording = Condition::new(ConditionStatus::False, Reason::NetworkDisabled, message);
            if conditions.identity.status != ConditionStatus::True {
                let message = "not required while network.enabled is false";
                conditions.identity = Condition::new(ConditionStatus::Unknown, Reason::NetworkDisabled, message);
            }
        }
        status.recording_count += i64::from(pod_status.state == PodState::Recording);
        let mismatch = pod.error.clone().or_else(|| inputs.report().and_then(trace::mismatch));
        summary.add(name, conditions, mismatch.as_ref());
        if status.pods.len() < MAX_PODS {
            status.pods.push(pod_status);
        }
    }
    status.pod_count = i64::try_from(plan.pods.len()).unwrap_or(i64::MAX);
    let keeps_conditions =
        is_reconnecting && !before.conditions.is_empty() && before.observed_generation == Some(node.generation);
    status.conditions = if keeps_conditions {
        before.conditions.clone()
    } else {
        summary.into_conditions(node, plan, &before.conditions, unix_ns)
    };
    ComputedStatus { status, has_restart_loop, drops }
}

/// Inputs of the status of one pod.
struct PodInputs<'a> {
    node: &'a NodeInput,
    plan: &'a Plan,
    name: &'a str,
    pod: &'a PodPlan,
    host: Option<&'a HostView<'a>>,
    previous: Option<&'a PodStatus>,
    unix_ns: i64,
}

impl PodInputs<'_> {
    /// The report. One on an older generation of the specification does not apply.
    fn report(&self) -> Option<&PodReport> {
        self.host?.report.filter(|report| report.node_generation >= self.node.generation)
    }

    /// What the agent reported of the pod: its conditions, with its state in `status`.
    fn reported(&self, report: &PodReport, status: &mut PodStatus, restarts: &mut Restarts) -> PodConditions {
        apply_report(status, report);
        let mut conditions = reported_conditions(self.plan, report, restarts, self.unix_ns);
        let is_running = conditions.process.status == ConditionStatus::True && status.state != PodState::Failed;
        if is_running && self.node.key.kind() == NodeKind::NodeTrace {
            (conditions.recording, status.state) = trace::recording(report);
        }
        conditions
    }

    fn compute(&self, restarts: &mut Restarts) -> (PodStatus, PodConditions) {
        let mut status = self.previous.cloned().unwrap_or_default();
        self.name.clone_into(&mut status.name);
        status.uid = self.pod.uid.to_string();
        status.node_name = self.pod.host.as_deref().unwrap_or_default().to_owned();
        let Some(host) = self.host.filter(|_| self.pod.observed.is_some()) else {
            let (reason, message) = self.pod.error.clone().unwrap_or((Reason::WaitingForAgent, String::new()));
            let is_unscheduled = reason == Reason::PodUnscheduled;
            set_inactive(&mut status, if is_unscheduled { PodState::Unscheduled } else { PodState::NotConfigured });
            let mut conditions = PodConditions::all(ConditionStatus::Unknown, reason, &message);
            conditions.recording.status = ConditionStatus::False;
            return (status, conditions);
        };
        let without_report = |recording, reason, message: String, status: &mut PodStatus| {
            set_inactive(status, PodState::Unknown);
            let mut conditions = PodConditions::all(ConditionStatus::Unknown, reason, &message);
            conditions.recording.status = recording;
            conditions
        };
        let conditions = match host.agent_state {
            AgentState::Missing => {
                let message = format!("no agent runs on host {}", host.name);
                without_report(ConditionStatus::False, Reason::AgentMissing, message, &mut status)
            }
            AgentState::Unreachable => {
                let message = format!("the agent on host {} stopped reporting", host.name);
                without_report(ConditionStatus::Unknown, Reason::AgentUnreachable, message, &mut status)
            }
            AgentState::Connected if !host.error.is_empty() => {
                let message = format!("host {}: {}", host.name, sanitize(host.error));
                without_report(ConditionStatus::False, Reason::HostCannotRecord, message, &mut status)
            }
            AgentState::Pending if self.previous.is_some() => {
                PodConditions::all(ConditionStatus::Unknown, Reason::WaitingForAgent, "")
            }
            AgentState::Pending | AgentState::Connected => match self.report() {
                Some(report) => self.reported(report, &mut status, restarts),
                None => {
                    let message = format!("the agent on host {} has not applied the configuration yet", host.name);
                    without_report(ConditionStatus::Unknown, Reason::WaitingForAgent, message, &mut status)
                }
            },
        };
        (status, conditions)
    }
}

/// Clears the fields that describe a running process.
fn set_inactive(status: &mut PodStatus, state: PodState) {
    status.state = state;
    status.pid = 0;
}

/// Copies an agent's report to the status.
fn apply_report(status: &mut PodStatus, report: &PodReport) {
    status.state = match report.state() {
        ReportedState::Unspecified => PodState::Unknown,
        ReportedState::WaitingForContainer => PodState::WaitingForContainer,
        ReportedState::WaitingForProcess => PodState::WaitingForProcess,
        ReportedState::Recording => PodState::Recording,
        ReportedState::Profiling => PodState::Profiling,
        ReportedState::Failed => PodState::Failed,
    };
    status.pid = report.pid.into();
    status.process_starts = report.process_starts.into();
    status.peer_id = sanitize(&report.peer_id);
    status.last_error = sanitize(&report.last_error);
}

fn reported_conditions(plan: &Plan, report: &PodReport, restarts: &mut Restarts, unix_ns: i64) -> PodConditions {
    let process = process_condition(report, restarts, unix_ns);
    let recording = match report.state() {
        ReportedState::Recording => Condition::available(),
        ReportedState::Failed => {
            let error = &report.last_error;
            let message = if error.is_empty() { "the process cannot be recorded" } else { error };
            Condition::new(ConditionStatus::False, Reason::CannotRecord, sanitize(message))
        }
        // Whether recording is disabled is decided from the specification, not from the report.
        ReportedState::Unspecified | ReportedState::Profiling => {
            Condition::new(ConditionStatus::Unknown, Reason::WaitingForAgent, "the agent did not report a state")
        }
        ReportedState::WaitingForContainer | ReportedState::WaitingForProcess => {
            Condition { status: ConditionStatus::False, ..process.clone() }
        }
    };
    PodConditions { identity: identity_condition(plan, report, &process), recording, process }
}

fn process_condition(report: &PodReport, restarts: &mut Restarts, unix_ns: i64) -> Condition {
    let starts = report.process_starts;
    let up_since = (report.pid != 0).then_some(report.process_started_ns);
    let (reason, message) = if restarts.update(starts, up_since, unix_ns) {
        (Reason::RestartLoop, "the node's process restarts repeatedly; see the container's log")
    } else if up_since.is_some() {
        return Condition::available();
    } else if report.state() == ReportedState::WaitingForContainer {
        (Reason::WaitingForContainer, "the container is not running")
    } else if starts == 0 {
        (Reason::ProcessNotFound, "no process of the configured name was found in the container")
    } else {
        (Reason::ProcessExited, "the node's process exited")
    };
    Condition::new(ConditionStatus::False, reason, message)
}

fn identity_condition(plan: &Plan, report: &PodReport, process: &Condition) -> Condition {
    match &plan.identity {
        IdentityPlan::Missing(reason, message) => Condition::new(ConditionStatus::False, *reason, message),
        _ if !report.identity_error.is_empty() => {
            Condition::new(ConditionStatus::False, Reason::IdentityNotRead, sanitize(&report.identity_error))
        }
        IdentityPlan::Secret { peer_id, .. } if !report.peer_id.is_empty() && report.peer_id != *peer_id => {
            let message = format!("the agent does not use the Secret's identity {peer_id} yet");
            Condition::new(ConditionStatus::Unknown, Reason::IdentityPending, message)
        }
        _ if !report.peer_id.is_empty() => Condition::available(),
        _ if process.status == ConditionStatus::True => {
            let message = "the agent has not read the identity yet";
            Condition::new(ConditionStatus::Unknown, Reason::WaitingForAgent, message)
        }
        _ => Condition { status: ConditionStatus::Unknown, ..process.clone() },
    }
}
