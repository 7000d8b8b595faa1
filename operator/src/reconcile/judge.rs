//! What is true of a node: its plan beside what the agents say.

use std::collections::BTreeMap;

use chainscope_proto::v1::{PodReport, PodState as Reported};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    hosts::{Hosts, Liveness},
    input::{Key, NodeInput},
    plan::{IdentityPlan, Plan, PodPlan},
    reason::{Reason, Truth, Verdict},
    restarts::Restarts,
};
use crate::crd::{PodState, PodStatus, TezosNodeStatus};

/// Pods that a status lists.
const LISTED: usize = 100;
/// Characters of a message that came from elsewhere.
const LONGEST: usize = 512;

/// What is known of a pod's host.
pub(super) struct HostView<'a> {
    pub(super) name: &'a str,
    pub(super) liveness: Liveness,
    /// Why the host as a whole cannot record; empty if it can.
    pub(super) error: &'a str,
    pub(super) report: Option<&'a PodReport>,
}

/// The three questions about a pod.
struct Verdicts {
    identity: Verdict,
    recording: Verdict,
    process: Verdict,
}

impl Verdicts {
    fn all(truth: Truth, reason: Reason, message: &str) -> Self {
        let verdict = Verdict::new(truth, reason, message);
        Self { identity: verdict.clone(), recording: verdict.clone(), process: verdict }
    }
}

/// The status of a node. `before` is its last one. Says too whether a loop of restarts was seen, which time alone ends.
pub(super) fn status(
    node: &NodeInput,
    plan: &Plan,
    before: &TezosNodeStatus,
    hosts: &Hosts,
    restarts: &mut BTreeMap<Box<str>, Restarts>,
    now_ns: i64,
) -> (TezosNodeStatus, bool) {
    let node_name = node.key.to_string();
    restarts.retain(|uid, _| plan.pods.values().any(|pod| pod.uid == *uid));
    let last: BTreeMap<&str, &PodStatus> = before.pods.iter().map(|pod| (&*pod.uid, pod)).collect();
    let enabled = node.spec.as_ref().is_ok_and(|spec| spec.network.enabled);
    let mut status = TezosNodeStatus { observed_generation: Some(node.generation), ..TezosNodeStatus::default() };
    let mut sums = Summary::default();
    let mut looping = false;
    // After a change of leader the agents need a moment to come here: what was said last holds until then.
    let mut waiting = false;
    for (name, pod) in &plan.pods {
        let host = pod.host.as_deref().and_then(|host| hosts.view(host, &node_name, &pod.uid));
        let restarts = restarts.entry(pod.uid.clone()).or_default();
        let last = last.get(&*pod.uid).copied();
        let was_heard = last.is_some_and(|last| {
            !matches!(last.state, PodState::Unknown | PodState::NotConfigured | PodState::Unscheduled)
        });
        waiting |= was_heard && host.as_ref().is_some_and(|host| host.liveness == Liveness::Awaited);
        let (shown, mut verdicts) = judge_pod(node, plan, name, pod, host.as_ref(), last, restarts, now_ns);
        looping |= verdicts.process.reason == Reason::RestartLoop;
        if !enabled {
            verdicts.recording = Verdict::new(Truth::False, Reason::NetworkDisabled, "network.enabled is false");
            if verdicts.identity.truth != Truth::True {
                verdicts.identity = Verdict::new(Truth::Unknown, Reason::NetworkDisabled, "nothing needs it");
            }
        }
        status.recording_count += i64::from(shown.state == PodState::Recording);
        status.messages = status.messages.saturating_add(shown.messages);
        status.bytes_lost = status.bytes_lost.saturating_add(shown.bytes_lost);
        sums.add(name, verdicts, pod.trouble.as_ref());
        if status.pods.len() < LISTED {
            status.pods.push(shown);
        }
    }
    status.pod_count = i64::try_from(plan.pods.len()).unwrap_or(i64::MAX);
    if waiting && !before.conditions.is_empty() && before.observed_generation == Some(node.generation) {
        status.conditions.clone_from(&before.conditions);
        return (status, looping);
    }
    status.conditions = sums
        .conditions(node, plan)
        .into_iter()
        .map(|(kind, verdict)| condition(kind, verdict, node.generation, &before.conditions, now_ns))
        .collect();
    (status, looping)
}

#[allow(clippy::too_many_arguments)] // one call; a struct would only rename them
fn judge_pod(
    node: &NodeInput,
    plan: &Plan,
    name: &str,
    pod: &PodPlan,
    host: Option<&HostView<'_>>,
    last: Option<&PodStatus>,
    restarts: &mut Restarts,
    now_ns: i64,
) -> (PodStatus, Verdicts) {
    let mut shown = last.cloned().unwrap_or_default();
    name.clone_into(&mut shown.name);
    shown.uid = pod.uid.to_string();
    shown.host = pod.host.as_deref().unwrap_or_default().to_owned();
    let Some(host) = host.filter(|_| pod.observed.is_some()) else {
        let (reason, text) = pod.trouble.clone().unwrap_or((Reason::WaitingForAgent, String::new()));
        let unscheduled = reason == Reason::PodUnscheduled;
        idle(&mut shown, if unscheduled { PodState::Unscheduled } else { PodState::NotConfigured });
        let mut verdicts = Verdicts::all(Truth::Unknown, reason, &text);
        verdicts.recording.truth = Truth::False;
        return (shown, verdicts);
    };
    let nobody = |truth, reason, text: String, shown: &mut PodStatus| {
        idle(shown, PodState::Unknown);
        let mut verdicts = Verdicts::all(Truth::Unknown, reason, &text);
        verdicts.recording.truth = truth;
        verdicts
    };
    // What was said of an older specification is not about this one.
    let report = host.report.filter(|report| report.node_generation >= node.generation);
    let verdicts = match host.liveness {
        Liveness::Missing => {
            let text = format!("no agent runs on host {}", host.name);
            nobody(Truth::False, Reason::AgentMissing, text, &mut shown)
        }
        Liveness::Silent => {
            let text = format!("the agent of host {} went silent", host.name);
            nobody(Truth::Unknown, Reason::AgentSilent, text, &mut shown)
        }
        Liveness::Heard if !host.error.is_empty() => {
            let text = format!("host {}: {}", host.name, short(host.error));
            nobody(Truth::False, Reason::HostCannotRecord, text, &mut shown)
        }
        Liveness::Awaited if last.is_some() => Verdicts::all(Truth::Unknown, Reason::WaitingForAgent, ""),
        Liveness::Awaited | Liveness::Heard => match report {
            Some(report) => {
                take(&mut shown, report);
                heard(plan, report, restarts, now_ns)
            }
            None => {
                let text = format!("the agent of host {} has not taken this up yet", host.name);
                nobody(Truth::Unknown, Reason::WaitingForAgent, text, &mut shown)
            }
        },
    };
    (shown, verdicts)
}

/// Nothing runs that one could point at.
fn idle(shown: &mut PodStatus, state: PodState) {
    shown.state = state;
    shown.pid = 0;
    shown.connections = 0;
}

/// What the agent says, as the status shows it.
fn take(shown: &mut PodStatus, report: &PodReport) {
    shown.state = match report.state() {
        Reported::Unspecified => PodState::Unknown,
        Reported::WaitingForContainer => PodState::WaitingForContainer,
        Reported::WaitingForProcess => PodState::WaitingForProcess,
        Reported::Recording => PodState::Recording,
        Reported::Profiling => PodState::Profiling,
        Reported::Failed => PodState::Failed,
    };
    shown.pid = report.pid.into();
    shown.process_starts = report.process_starts.into();
    shown.peer_id = short(&report.peer_id);
    shown.messages = count(report.messages);
    shown.connections = count(report.connections_open);
    shown.bytes_seen = count(report.bytes_seen);
    shown.bytes_lost = count(report.bytes_lost);
    shown.records_lost = count(report.records_lost);
    shown.last_record_time = (report.last_record_ns > 0).then(|| time(report.last_record_ns)).flatten();
    shown.last_error = short(&report.last_error);
}

fn heard(plan: &Plan, report: &PodReport, restarts: &mut Restarts, now_ns: i64) -> Verdicts {
    let starts = report.process_starts;
    let up_since = (report.pid != 0).then_some(report.process_started_ns);
    let process = if restarts.is_loop(starts, up_since, now_ns) {
        let text = "the node's process ends and starts again and again; its log says why";
        Verdict::new(Truth::False, Reason::RestartLoop, text)
    } else if up_since.is_some() {
        Verdict::good()
    } else if report.state() == Reported::WaitingForContainer {
        Verdict::new(Truth::False, Reason::WaitingForContainer, "the container does not run")
    } else if starts == 0 {
        Verdict::new(Truth::False, Reason::ProcessNotFound, "no process of that name was seen in the container")
    } else {
        Verdict::new(Truth::False, Reason::ProcessExited, "the node's process ended")
    };
    let recording = match report.state() {
        Reported::Recording => Verdict::good(),
        Reported::Failed => {
            let text = if report.last_error.is_empty() { "the process cannot be recorded" } else { &report.last_error };
            Verdict::new(Truth::False, Reason::CannotRecord, short(text))
        }
        // Why not is known from the specification; an agent that has an older one has yet to take it up.
        Reported::Unspecified | Reported::Profiling => {
            Verdict::new(Truth::Unknown, Reason::WaitingForAgent, "the agent does not say")
        }
        Reported::WaitingForContainer | Reported::WaitingForProcess => {
            Verdict { truth: Truth::False, ..process.clone() }
        }
    };
    Verdicts { identity: identity(plan, report, &process), recording, process }
}

fn identity(plan: &Plan, report: &PodReport, process: &Verdict) -> Verdict {
    match &plan.identity {
        IdentityPlan::Missing(reason, why) => Verdict::new(Truth::False, *reason, why),
        _ if !report.identity_error.is_empty() => {
            Verdict::new(Truth::False, Reason::IdentityNotRead, short(&report.identity_error))
        }
        IdentityPlan::Secret { peer_id, .. } if !report.peer_id.is_empty() && report.peer_id != *peer_id => {
            let text = format!("the agent does not use the Secret's identity {peer_id} yet");
            Verdict::new(Truth::Unknown, Reason::IdentityPending, text)
        }
        _ if !report.peer_id.is_empty() => Verdict::good(),
        _ if process.truth == Truth::True => {
            Verdict::new(Truth::Unknown, Reason::WaitingForAgent, "the agent has not looked for it yet")
        }
        _ => Verdict { truth: Truth::Unknown, ..process.clone() },
    }
}

/// The answers for the node: of its pods, the worst.
#[derive(Default)]
struct Summary {
    identity: Option<(Verdict, usize)>,
    recording: Option<(Verdict, usize)>,
    process: Option<(Verdict, usize)>,
    trouble: Option<(Verdict, usize)>,
}

impl Summary {
    fn add(&mut self, pod: &str, verdicts: Verdicts, trouble: Option<&(Reason, String)>) {
        worse(&mut self.identity, pod, verdicts.identity);
        worse(&mut self.recording, pod, verdicts.recording);
        worse(&mut self.process, pod, verdicts.process);
        if let Some((reason, text)) = trouble {
            worse(&mut self.trouble, pod, Verdict::new(Truth::False, *reason, text));
        }
    }

    fn conditions(self, node: &NodeInput, plan: &Plan) -> [(&'static str, Verdict); 4] {
        let nothing = |truth| match (&node.spec, &plan.taken_by) {
            (Err(why), _) => {
                let text = format!("this build of the operator cannot read the specification: {}", short(why));
                Verdict::new(truth, Reason::SpecInvalid, text)
            }
            (_, Some(taken)) => Verdict::new(truth, Reason::PodTaken, taken_text(plan.taken, taken)),
            _ => Verdict::new(truth, Reason::NoPodsSelected, "no pod of the namespace has the labels of podSelector"),
        };
        let or_nothing = |worst: Option<(Verdict, usize)>, truth| worst.map_or_else(|| nothing(truth), said);
        let identity = match &plan.identity {
            // Known without any agent.
            IdentityPlan::Missing(reason, why) => Verdict::new(Truth::False, *reason, why),
            _ => or_nothing(self.identity, Truth::Unknown),
        };
        let recording = or_nothing(self.recording, Truth::False);
        let process = or_nothing(self.process, Truth::Unknown);
        let trouble = self.trouble.map(said);
        let taken = plan
            .taken_by
            .as_ref()
            .map(|taken| Verdict::new(Truth::False, Reason::PodTaken, taken_text(plan.taken, taken)));
        // Not to record what nobody asked for is no failure.
        let has_memory = node.spec.as_ref().is_ok_and(|spec| spec.memory.as_ref().is_some_and(|memory| memory.enabled));
        let asked = match recording.reason {
            Reason::NetworkDisabled if has_memory => vec![&process],
            Reason::NetworkDisabled => vec![],
            _ => vec![&recording, &identity, &process],
        };
        let mut worst: Vec<&Verdict> = asked.into_iter().chain(&trouble).chain(&taken).collect();
        worst.sort_by_key(|verdict| (verdict.truth == Truth::True, verdict.reason));
        let any_false = worst.iter().any(|verdict| verdict.truth == Truth::False);
        let mut ready = match worst.first() {
            Some(first) => (*first).clone(),
            None => Verdict { truth: Truth::True, ..recording.clone() },
        };
        if ready.truth != Truth::True && any_false {
            ready.truth = Truth::False;
        }
        [("Ready", ready), ("IdentityResolved", identity), ("Recording", recording), ("NodeProcessRunning", process)]
    }
}

fn worse(worst: &mut Option<(Verdict, usize)>, pod: &str, verdict: Verdict) {
    let named = |verdict: Verdict| match verdict.message.is_empty() {
        true => verdict,
        false => Verdict { message: format!("{pod}: {}", verdict.message), ..verdict },
    };
    match worst {
        None => *worst = Some((named(verdict), 0)),
        Some((old, others)) => {
            let is_bad = verdict.truth != Truth::True;
            if (verdict.truth, verdict.reason) < (old.truth, old.reason) {
                *others += usize::from(old.truth != Truth::True);
                *old = named(verdict);
            } else {
                *others += usize::from(is_bad);
            }
        }
    }
}

fn said((mut verdict, others): (Verdict, usize)) -> Verdict {
    if others > 0 && !verdict.message.is_empty() {
        verdict.message.push_str(&format!(" (and {others} more)"));
    }
    verdict
}

fn taken_text(count: usize, (pod, owner): &(Key, Key)) -> String {
    let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    format!("pod {} belongs to the older TezosNode {}{more}", pod.name, owner.name)
}

fn condition(kind: &str, verdict: Verdict, generation: i64, before: &[Condition], now_ns: i64) -> Condition {
    let status = verdict.truth.as_str();
    let since = before
        .iter()
        .find(|old| old.type_ == kind && old.status == status)
        .map(|old| old.last_transition_time.clone())
        .or_else(|| time(now_ns))
        .unwrap_or(Time(Timestamp::UNIX_EPOCH));
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.as_str().to_owned(),
        message: verdict.message,
        observed_generation: Some(generation),
        last_transition_time: since,
    }
}

/// In whole seconds, as the API server keeps it.
fn time(ns: i64) -> Option<Time> {
    Timestamp::from_second(ns.div_euclid(1_000_000_000)).ok().map(Time)
}

fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Text of an agent, bounded and without control characters.
fn short(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}
