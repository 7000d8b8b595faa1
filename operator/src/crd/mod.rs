//! `TezosNode`: the resource that says which pods are a node and what to record of it.
//!
//! The schema is made from these types and from `chainscope-spec`; the comments are what `kubectl explain` shows.
//! [`definition`] is the whole `CustomResourceDefinition`, [`yaml`] its committed form.

// Printer columns of one type each repeat it.
#![allow(clippy::duplicated_attributes)]

mod status;

use std::fmt::Write as _;

use chainscope_spec::{Memory, ObserveSpec, PodIdentity, PodNetwork, PodTarget, Retention};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, ValidationRule};
use kube::{CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use status::{PodState, PodStatus, TezosNodeStatus};

/// A Tezos node to observe: its pods, and what to record of them.
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
    doc = "A Tezos node that Chainscope observes: its pods, and what to record of them.",
    printcolumn(
        name = "Pods",
        type_ = "integer",
        json_path = ".status.podCount",
        description = "Pods that are this node's"
    ),
    printcolumn(
        name = "Recording",
        type_ = "integer",
        json_path = ".status.recordingCount",
        description = "Pods that are being recorded"
    ),
    printcolumn(
        name = "Messages",
        type_ = "integer",
        json_path = ".status.messages",
        description = "Messages recorded of the pods there are"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether every pod is recorded as this resource asks"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is ready or not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Since when")
)]
pub struct TezosNodeSpec {
    /// Which pods, and which process in them.
    #[serde(flatten)]
    pub target: PodTarget,
    /// Where the node's identity is.
    #[serde(default)]
    pub identity: PodIdentity,
    /// Recording of peer-to-peer messages.
    #[serde(default)]
    pub network: PodNetwork,
    /// Which code holds the resident memory. Without this table it is not observed; an empty one switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// How long records are kept; the first limit that is reached counts. Default: 20 GiB. An empty table: no limit.
    #[serde(default)]
    #[schemars(extend("default" = { "bytes": "20GiB" }))]
    pub retention: Retention,
    /// Further names by which the API finds this node, such as its P2P port. The node whose alias is `tezedge` answers
    /// requests that name no node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "aliases")]
    pub aliases: Vec<String>,
}

impl TezosNodeSpec {
    /// What to record, in the form that `chainscope.toml` shares.
    pub fn observe(&self) -> ObserveSpec {
        ObserveSpec {
            network: chainscope_spec::Network { store: self.network.store },
            memory: self.memory.clone(),
            retention: self.retention.clone(),
        }
    }

    /// Where the identity is in the container, unless it is in a Secret.
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

/// The whole definition, with the rules that look at more than the specification.
pub fn definition() -> CustomResourceDefinition {
    let mut definition = TezosNode::crd();
    let schemas = definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()) {
        schema.x_kubernetes_validations = Some(vec![ValidationRule {
            rule: "!has(self.spec.aliases) || !self.spec.aliases.exists(alias, alias == self.metadata.name)".to_owned(),
            message: Some("an alias is another name than the resource's own".to_owned()),
            ..ValidationRule::default()
        }]);
    }
    definition
}

/// The definition as YAML, as `chainscope-operator crd` prints it and `operator/crd/` holds it.
///
/// # Errors
/// If the definition cannot be written as YAML.
pub fn yaml() -> anyhow::Result<String> {
    let mut text = String::from("# Made by `chainscope-operator crd`; a test says when it is out of date.\n");
    text.write_str(&serde_saphyr::to_string(&definition())?)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
