//! The custom resources: `TezosNode` selects the pods of a Tezos node and configures their recording, [`NodeTrace`] the pods
//! of a node of any kind and the tracepoints that are recorded.
//!
//! The schemas are generated from these types and from `chainscope-spec`; the doc comments are the descriptions that
//! `kubectl explain` shows. [`definitions`] are the `CustomResourceDefinition`s, [`yaml`] the committed form of one.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

mod node_trace;
mod status;

use std::fmt::Write as _;

use chainscope_spec::{Logs, Memory, PodIdentity, PodNetwork, PodTarget, Redaction, Retention};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, ValidationRule};
use kube::{CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use node_trace::{NodeTrace, NodeTraceSpec, NodeTraceStatus, TracedPodStatus, TracepointSelection};
pub use status::{PodState, PodStatus, TezosNodeStatus};

/// Specification of a Tezos node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "chainscope.dev",
    version = "v1alpha1",
    kind = "TezosNode",
    namespaced,
    shortname = "tzn",
    category = "chainscope",
    category = "tezos",
    status = "TezosNodeStatus",
    derive = "PartialEq",
    doc = "TezosNode selects the pods of a Tezos node and configures what Chainscope records of them.",
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
        description = "Number of pods that are recorded"
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
pub struct TezosNodeSpec {
    /// Selection of the pods and of the process in them.
    #[serde(flatten)]
    pub target: PodTarget,
    /// Source of the node's identity.
    #[serde(default)]
    pub identity: PodIdentity,
    /// Recording of peer-to-peer traffic.
    #[serde(default)]
    pub network: PodNetwork,
    /// Profiling of the resident memory by call stack. Absent: disabled. An empty object enables it with the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Recording of log messages, from the output of the container. Absent: disabled. An empty object enables it with the
    /// defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Logs>,
    /// Retention of the records; the first limit that is reached applies. Defaults to 20 GiB; an empty object means no
    /// limit.
    #[serde(default)]
    #[schemars(extend("default" = { "bytes": "20GiB" }))]
    pub retention: Retention,
    /// Further names of the node in the API, such as its P2P port. Requests without a node name refer to the node with
    /// the alias `tezedge`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "aliases")]
    pub aliases: Vec<String>,
}

impl TezosNodeSpec {
    /// Whether anything but network traffic is recorded.
    pub(crate) fn records_beside_network(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.enabled) || self.logs.as_ref().is_some_and(|logs| logs.enabled)
    }

    /// Why the log messages cannot be recorded as specified.
    pub(crate) fn logs_error(&self) -> Option<String> {
        let logs = self.logs.as_ref().filter(|logs| logs.enabled)?;
        Redaction::new(&logs.redact).err().map(|error| format!("no log messages are recorded: logs.redact: {error}"))
    }

    /// Path of the identity file in the container, if the identity is not in a Secret.
    pub fn identity_path(&self) -> String {
        match &self.identity.path {
            Some(path) => path.clone(),
            None => format!("{}/identity.json", self.target.data_dir.trim_end_matches('/')),
        }
    }
}

fn aliases(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "type": "string",
            "minLength": 1,
            "maxLength": 253,
            "pattern": "^[A-Za-z0-9][-A-Za-z0-9._:@]*$",
        },
        "x-kubernetes-list-type": "set",
    })
}

/// The CustomResourceDefinitions.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [tezos_node(), NodeTrace::crd()]
}

/// With the validation rule that refers to the metadata.
fn tezos_node() -> CustomResourceDefinition {
    let mut definition = TezosNode::crd();
    let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()) {
        schema.x_kubernetes_validations = Some(vec![ValidationRule {
            rule: "!has(self.spec.aliases) || !self.spec.aliases.exists(alias, alias == self.metadata.name)".to_owned(),
            message: Some("an alias must differ from the name of the resource".to_owned()),
            ..ValidationRule::default()
        }]);
    }
    definition
}

/// A definition as YAML, as printed by `chainscope-operator crd` and committed in `operator/crd/`.
///
/// # Errors
/// If the definition cannot be serialized.
pub fn yaml(definition: &CustomResourceDefinition) -> anyhow::Result<String> {
    let mut text = String::from("# Generated by `chainscope-operator crd`; a test fails when this file is stale.\n");
    text.write_str(&serde_saphyr::to_string(definition)?)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
