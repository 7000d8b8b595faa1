//! Status of a `TezosNode`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the node, without counters; these are metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TezosNodeStatus {
    /// Generation of the specification that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions `Ready`, `IdentityResolved`, `Recording` and `ProcessRunning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Number of pods that belong to the node.
    #[serde(default)]
    pub pod_count: i64,
    /// Number of these pods that are recorded.
    #[serde(default)]
    pub recording_count: i64,
    /// The pods, sorted by name; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pods: Vec<PodStatus>,
}

/// Observed state of one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
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
    /// Peer id of the identity in use; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer_id: String,
    /// Last error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// State of the recording of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    /// The pod does not match the specification.
    NotConfigured,
    /// The pod is not scheduled.
    Unscheduled,
    /// The container is not running.
    WaitingForContainer,
    /// The container is running, the node's process is not.
    WaitingForProcess,
    /// The process is recorded.
    Recording,
    /// Network recording is disabled; the memory is profiled or the log recorded.
    Profiling,
    /// The process cannot be recorded.
    Failed,
    /// No recent report.
    #[default]
    #[serde(other)]
    Unknown,
}

impl JsonSchema for PodState {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodState".into()
    }

    // No enumeration: a newer operator may write a state that is unknown to this schema.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "maxLength": 63 })
    }
}
