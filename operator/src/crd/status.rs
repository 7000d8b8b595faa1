//! What the operator says of a node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is known of the node. Counts are refreshed at most once a minute; everything else at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TezosNodeStatus {
    /// The generation of the specification that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `IdentityResolved`, `Recording` and `NodeProcessRunning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Pods that are this node's.
    #[serde(default)]
    pub pod_count: i64,
    /// Pods of these that are being recorded.
    #[serde(default)]
    pub recording_count: i64,
    /// Messages recorded of these pods since their agents began.
    #[serde(default)]
    pub messages: i64,
    /// Bytes of these pods that were not recorded, at whatever stage.
    #[serde(default)]
    pub bytes_lost: i64,
    /// Each pod, the first hundred by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub pods: Vec<PodStatus>,
}

/// What is known of one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Its name.
    pub name: String,
    /// Its uid: a pod of the same name may be another one.
    #[serde(default)]
    pub uid: String,
    /// The Kubernetes node it runs on; empty before it is scheduled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Where recording is.
    #[serde(default)]
    pub state: PodState,
    /// Process id of the node on its host; 0: none.
    #[serde(default)]
    pub pid: i64,
    /// Starts of the node's process that the agent saw.
    #[serde(default)]
    pub process_starts: i64,
    /// Peer id of the identity in use.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer_id: String,
    /// Messages recorded.
    #[serde(default)]
    pub messages: i64,
    /// Connections that are open.
    #[serde(default)]
    pub connections: i64,
    /// Bytes that went over the node's connections.
    #[serde(default)]
    pub bytes_seen: i64,
    /// Bytes of these that were not recorded, at whatever stage.
    #[serde(default)]
    pub bytes_lost: i64,
    /// Records that were dropped.
    #[serde(default)]
    pub records_lost: i64,
    /// When the last record was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_record_time: Option<Time>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// Where the recording of a pod is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    /// Something in the pod or in the resource stands in the way.
    NotConfigured,
    /// The pod has no host yet.
    Unscheduled,
    /// The container does not run.
    WaitingForContainer,
    /// The container runs, the node's process does not.
    WaitingForProcess,
    /// It is recorded.
    Recording,
    /// Its network is not recorded, as asked; its memory is observed.
    Profiling,
    /// The process cannot be recorded.
    Failed,
    /// Nobody said anything about it lately.
    #[default]
    #[serde(other)]
    Unknown,
}

impl JsonSchema for PodState {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodState".into()
    }

    // No list of values: a newer operator may write a state that this schema would refuse.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "maxLength": 63 })
    }
}
