//! Plan and status of a `NodeTrace`.

use chainscope_proto::v1::{
    LatencyOptions, LatencyTarget, NetworkOptions, ObservedPod, PodReport, TraceOptions, TraceRetention, TraceRule,
    latency_target::Select,
};
use chainscope_spec::{Latency, Retention, TimedFunction};

use super::{
    input::Key,
    reason::{Condition, ConditionStatus, Reason, sanitize},
};
use crate::crd::{NodeTraceSpec, PodState};

/// What is observed of a pod of a `NodeTrace` alone; nothing if the specification is not valid.
pub(super) fn observed(common: ObservedPod, spec: &NodeTraceSpec, is_valid: bool) -> ObservedPod {
    let options =
        TraceOptions { node: common.node.clone(), node_generation: common.node_generation, ..options(spec, is_valid) };
    ObservedPod { network: Some(NetworkOptions { enabled: false, plain_only: false }), trace: Some(options), ..common }
}

fn options(spec: &NodeTraceSpec, is_valid: bool) -> TraceOptions {
    let trace = spec.trace();
    let rules = trace.rules.into_iter().filter(|_| is_valid);
    TraceOptions {
        enabled: is_valid,
        rules: rules.map(|rule| TraceRule { tracepoints: rule.tracepoints, filters: rule.filter }).collect(),
        max_text_bytes: Some(trace.max_text.as_u64()),
        max_payload_bytes: Some(trace.max_payload.as_u64()),
        contract: trace.contract.unwrap_or_default(),
        latency: trace.latency.filter(|_| is_valid).map(latency),
        ..TraceOptions::default()
    }
}

fn latency(options: Latency) -> LatencyOptions {
    let target = |TimedFunction { function, span, set, returns }| {
        let select = function.map(Select::Function).or(span.map(Select::Span)).or(set.map(Select::Set));
        LatencyTarget { select, returns }
    };
    LatencyOptions {
        functions: options.functions.into_iter().map(target).collect(),
        block_ms: u64::try_from(options.block.as_millis()).ok(),
        tags: options.tags,
        commit: options.commit.unwrap_or_default(),
        version: options.version.unwrap_or_default(),
    }
}

/// A further name in the API, without what distinguishes it from a `TezosNode`, which has precedence. The name alone would
/// make the last part of that node's name ambiguous.
pub(super) fn aliases(key: &Key) -> Vec<String> {
    vec![format!("{}/{}", key.namespace, key.resource().1)]
}

pub(super) fn retention(limits: &Retention) -> TraceRetention {
    TraceRetention {
        keep_rows: limits.rows,
        keep_bytes: limits.bytes.map(|bytes| bytes.as_u64()),
        keep_seconds: limits.age.map(|age| age.as_secs()),
    }
}

/// Why tracepoints or functions of a pod are not attached to, while others are.
pub(super) fn mismatch(report: &PodReport) -> Option<(Reason, String)> {
    fault(report).filter(|_| attached(report) > 0)
}

/// The condition `Recording` and the state of a pod whose process is running.
pub(super) fn recording(report: &PodReport) -> (Condition, PodState) {
    if attached(report) > 0 {
        return (Condition::available(), PodState::Recording);
    }
    let Some((reason, message)) = fault(report) else {
        let message = "the agent is not attached to a tracepoint or function yet";
        return (Condition::new(ConditionStatus::Unknown, Reason::WaitingForAgent, message), PodState::Unknown);
    };
    (Condition::new(ConditionStatus::False, reason, message), PodState::Failed)
}

/// Tracepoints and functions that the agent is attached to.
fn attached(report: &PodReport) -> u64 {
    u64::from(report.trace_attached) + u64::from(report.latency_functions)
}

/// Why the agent is not attached, or not to all.
fn fault(report: &PodReport) -> Option<(Reason, String)> {
    let PodReport { trace_error, latency_error, .. } = report;
    match (trace_error.is_empty(), latency_error.is_empty()) {
        (true, true) => None,
        (false, true) => Some((Reason::TracepointsNotAttached, sanitize(trace_error))),
        (true, false) => Some((Reason::FunctionsNotTimed, sanitize(latency_error))),
        (false, false) => Some((Reason::TracepointsNotAttached, sanitize(&format!("{trace_error}; {latency_error}")))),
    }
}
