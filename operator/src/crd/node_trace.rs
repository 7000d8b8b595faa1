//! The custom resource `NodeTrace`: selects the pods of a node of any kind, tracepoints of it whose events are recorded, and functions that
//! are timed.

use bytesize::ByteSize;
use chainscope_spec::{BYTES, Latency, PodSelector, Retention, Trace, TraceRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::status::{PodState, PodStatus, TezosNodeStatus};

/// Specification of what is recorded of a node's tracepoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "chainscope.dev",
    version = "v1alpha1",
    kind = "NodeTrace",
    namespaced,
    shortname = "ntr",
    category = "chainscope",
    status = "NodeTraceStatus",
    derive = "PartialEq",
    doc = "NodeTrace selects the pods of a node, such as bitcoind or rippled, and what Chainscope records of its executable: \
           events of tracepoints (USDT), and the latency of functions.",
    printcolumn(
        name = "Pods",
        type_ = "integer",
        json_path = ".status.podCount",
        description = "Number of pods that belong to the node"
    ),
    printcolumn(
        name = "Recording",
        type_ = "integer",
        json_path = ".status.recordingCount",
        description = "Number of pods whose tracepoints or functions are recorded"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Status of the condition Ready"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Reason of the condition Ready"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    )
)]
pub struct NodeTraceSpec {
    /// Selects the node's pods in the namespace of this resource.
    pub pod_selector: PodSelector,
    /// Name of the container that runs the node.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub container: String,
    /// File name of the node's executable, without directory, such as "bitcoind". Tracepoints of the libraries that it has
    /// loaded can be selected as well.
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[A-Za-z0-9_][-A-Za-z0-9_.+]*$"))]
    pub process: String,
    /// Events of which tracepoints are recorded: those that any of the items selects. May be missing if functions are timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub tracepoints: Vec<TracepointSelection>,
    /// Maximum size of a text argument, at most 16 KiB; longer ones are cut and marked.
    #[serde(default = "one_kibibyte")]
    #[schemars(with = "String", length(max = 32), regex(pattern = BYTES), extend("default" = "1KiB"))]
    pub max_text: ByteSize,
    /// Maximum size of a payload, at most 4 MiB; longer ones are cut and marked.
    #[serde(default = "one_kibibyte")]
    #[schemars(with = "String", length(max = 32), regex(pattern = BYTES), extend("default" = "1KiB"))]
    pub max_payload: ByteSize,
    /// Name of the built-in contract that describes the arguments, such as "bitcoin-core" or "tapyrus". Default: the one that
    /// fits the executable best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = "^[a-z0-9][a-z0-9._-]*$"))]
    pub contract: Option<String>,
    /// Which functions of the executable are timed, and how the runs are called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Retention of the events, and of the latency of functions; the first limit that is reached applies. `rows` counts events
    /// only. Defaults to 5 GiB; an empty object means no limit.
    #[serde(default = "five_gibibytes")]
    #[schemars(extend("default" = { "bytes": "5GiB" }))]
    pub retention: Retention,
}

/// Selects tracepoints by name, and their events by their arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TracepointSelection {
    /// Tracepoints as PROVIDER:NAME, with * and ?: "net:*", "validation:block_connected".
    #[schemars(schema_with = "patterns")]
    pub patterns: Vec<String>,
    /// Conditions, all of which must hold: NAME=VALUE with = != < <= > >= or ~ (contains). NAME is an argument, or pid, tid,
    /// cpu, comm, tracepoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub filter: Vec<String>,
}

impl NodeTraceSpec {
    /// The options in the form shared with `chainscope.toml`.
    pub fn trace(&self) -> Trace {
        let rule = |selection: &TracepointSelection| TraceRule {
            tracepoints: selection.patterns.clone(),
            filter: selection.filter.clone(),
        };
        Trace {
            enabled: true,
            rules: self.tracepoints.iter().map(rule).collect(),
            max_text: self.max_text,
            max_payload: self.max_payload,
            contract: self.contract.clone(),
            latency: self.latency.clone(),
            retention: self.retention.clone(),
        }
    }

    /// Why nothing can be recorded as specified.
    pub(crate) fn error(&self) -> Option<String> {
        self.trace().validate().err().map(|error| format!("nothing is recorded: {error}"))
    }
}

/// Observed state of the node, without counters; these are metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTraceStatus {
    /// Generation of the specification that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions `Ready`, `Recording` and `ProcessRunning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Number of pods that belong to the node.
    #[serde(default)]
    pub pod_count: i64,
    /// Number of these pods whose tracepoints or functions are recorded.
    #[serde(default)]
    pub recording_count: i64,
    /// The pods, sorted by name; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pods: Vec<TracedPodStatus>,
}

/// Observed state of one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracedPodStatus {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod; a recreated pod of the same name has another one.
    #[serde(default)]
    pub uid: String,
    /// Kubernetes node that the pod is scheduled on; empty before it is scheduled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// State of the recording.
    #[serde(default)]
    pub state: PodState,
    /// Process id of the node's process on its host; 0 if it is not running.
    #[serde(default)]
    pub pid: i64,
    /// Starts of the node's process that the agent observed.
    #[serde(default)]
    pub process_starts: i64,
    /// Last error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

impl From<TezosNodeStatus> for NodeTraceStatus {
    fn from(status: TezosNodeStatus) -> Self {
        let TezosNodeStatus { observed_generation, conditions, pod_count, recording_count, pods } = status;
        let pods = pods.into_iter().map(Into::into).collect();
        Self { observed_generation, conditions, pod_count, recording_count, pods }
    }
}

impl From<NodeTraceStatus> for TezosNodeStatus {
    fn from(status: NodeTraceStatus) -> Self {
        let NodeTraceStatus { observed_generation, conditions, pod_count, recording_count, pods } = status;
        let pods = pods.into_iter().map(Into::into).collect();
        Self { observed_generation, conditions, pod_count, recording_count, pods }
    }
}

impl From<PodStatus> for TracedPodStatus {
    fn from(pod: PodStatus) -> Self {
        let PodStatus { name, uid, node_name, state, pid, process_starts, peer_id: _, last_error } = pod;
        Self { name, uid, node_name, state, pid, process_starts, last_error }
    }
}

impl From<TracedPodStatus> for PodStatus {
    fn from(pod: TracedPodStatus) -> Self {
        let TracedPodStatus { name, uid, node_name, state, pid, process_starts, last_error } = pod;
        Self { name, uid, node_name, state, pid, process_starts, peer_id: String::new(), last_error }
    }
}

fn patterns(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "items": { "type": "string", "maxLength": 128, "pattern": "^[^:]+:[^:]+$" },
        "x-kubernetes-list-type": "atomic",
    })
}

fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": { "type": "string", "minLength": 2, "maxLength": 256, "pattern": "^[^=!<>~]+(!=|[<>=]?=|[<>~])" },
        "x-kubernetes-list-type": "atomic",
    })
}

fn one_kibibyte() -> ByteSize {
    ByteSize::kib(1)
}

fn five_gibibytes() -> Retention {
    Retention { rows: None, bytes: Some(ByteSize::gib(5)), age: None }
}
