//! Selection of a node's pods in a cluster, and the fields of a `TezosNode` without counterpart in `chainscope.toml`.
//!
//! The comments of these types are shown by `kubectl explain tezosnode.spec`. The defaults match the pods of
//! [tezos-k8s](https://github.com/tacoinfra/tezos-k8s). Validation is part of the schema: patterns for single values,
//! CEL (`x-kubernetes-validations`) for combinations. Strings, lists and maps have maximum lengths, from which the API
//! server estimates the cost of a CEL rule.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Stored;

/// Pattern of absolute paths.
const PATH: &str = "^/[^\\x00-\\x1f]*$";
/// Pattern of label values.
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// Selects the node's pods and the process in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTarget {
    /// Selects the node's pods in the namespace of this resource. Default: pods labelled `appType=octez-node`.
    #[serde(default)]
    pub pod_selector: PodSelector,
    /// Name of the container that runs the node.
    #[serde(default = "octez_node")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub container: String,
    /// File name of the node's executable, without directory.
    #[serde(default = "octez_node")]
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[A-Za-z0-9_][-A-Za-z0-9_.+]*$"))]
    pub process: String,
    /// Ports that the node listens on, by container port name or number.
    #[serde(default)]
    pub ports: PodPorts,
    /// Path of the node's data directory in the container.
    #[serde(default = "data_dir")]
    #[schemars(
        length(max = 1024),
        regex(pattern = PATH),
        extend("x-kubernetes-validations" = [no_dots("dataDir")])
    )]
    pub data_dir: String,
}

/// A label selector, as in a Deployment. All given requirements must be met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.matchLabels) && size(self.matchLabels) > 0) || \
             (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
    "message": "podSelector must not be empty: it would select every pod of the namespace",
}]))]
pub struct PodSelector {
    /// Required labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Label selector requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<PodRequirement>,
}

/// A requirement for one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : \
             !has(self.values) || size(self.values) == 0",
    "message": "values go with the operators In and NotIn, and only with them",
}]))]
pub struct PodRequirement {
    /// Label key.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    pub key: String,
    /// Relation of the label to the values.
    pub operator: PodOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "label_values")]
    pub values: Vec<String>,
}

/// Pattern of label keys.
const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

/// Operators of a [`PodRequirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl JsonSchema for PodOperator {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodOperator".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"] })
    }
}

/// Ports of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.p2p != self.rpc",
    "message": "p2p and rpc must be different ports",
}]))]
pub struct PodPorts {
    /// Port on which the node listens for peers.
    #[serde(default = "tezos_net")]
    pub p2p: PortRef,
    /// Port of the node's RPC server.
    #[serde(default = "tezos_rpc")]
    pub rpc: PortRef,
}

/// A port by number or by container port name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// Number; the schema allows 1 to 65535.
    Number(i64),
    /// Name in `containers[].ports[]`.
    Name(String),
}

impl std::fmt::Display for PortRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

impl JsonSchema for PortRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PortRef".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            // For a number.
            "minimum": 1,
            "maximum": 65535,
            // For a name: at least one letter, so that it is not a quoted number.
            "maxLength": 15,
            "pattern": "^([a-z0-9][-a-z0-9]*)?[a-z]([-a-z0-9]*[a-z0-9])?$",
        })
    }
}

/// Source of the node's `identity.json`, without which chunks are recorded but cannot be decrypted.
/// Default: `identity.json` in `dataDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(has(self.path) && has(self.secretRef))",
    "message": "give path or secretRef, not both",
}]))]
pub struct PodIdentity {
    /// Path of the file in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = PATH),
        extend("x-kubernetes-validations" = [no_dots("path")])
    )]
    pub path: Option<String>,
    /// A Secret in the namespace of this resource, which the chart's `operator.secretNamespaces` must list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Reference to one key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Key whose value is the `identity.json`.
    #[serde(default = "identity_json")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// Recording of peer-to-peer messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodNetwork {
    /// Whether messages are recorded.
    #[serde(default = "crate::default_true")]
    pub enabled: bool,
    /// Stored bytes of a chunk: `both` encrypted and decrypted; `plain` decrypted only, about half the space.
    #[serde(default)]
    pub store: Stored,
}

impl Default for PodTarget {
    fn default() -> Self {
        Self {
            pod_selector: PodSelector::default(),
            container: octez_node(),
            process: octez_node(),
            ports: PodPorts::default(),
            data_dir: data_dir(),
        }
    }
}

impl Default for PodSelector {
    fn default() -> Self {
        Self { match_labels: BTreeMap::from([("appType".to_owned(), octez_node())]), match_expressions: Vec::new() }
    }
}

impl Default for PodPorts {
    fn default() -> Self {
        Self { p2p: tezos_net(), rpc: tezos_rpc() }
    }
}

impl Default for PodNetwork {
    fn default() -> Self {
        Self { enabled: true, store: Stored::default() }
    }
}

impl PodSelector {
    /// Whether the selector matches the labels of a pod. `get` returns the value of a label, if present.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, value)| get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(get(&requirement.key)))
    }
}

impl PodRequirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let listed = value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator {
            PodOperator::In => listed,
            PodOperator::NotIn => !listed,
            PodOperator::Exists => value.is_some(),
            PodOperator::DoesNotExist => value.is_none(),
        }
    }
}

fn octez_node() -> String {
    "octez-node".to_owned()
}

fn data_dir() -> String {
    "/var/tezos/node/data".to_owned()
}

fn identity_json() -> String {
    "identity.json".to_owned()
}

fn tezos_net() -> PortRef {
    PortRef::Name("tezos-net".to_owned())
}

fn tezos_rpc() -> PortRef {
    PortRef::Name("tezos-rpc".to_owned())
}

fn no_dots(field: &str) -> serde_json::Value {
    serde_json::json!({
        "rule": "!self.split('/').exists(part, part == '..')",
        "message": format!("{field} must not have .. in it"),
    })
}

fn match_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "x-kubernetes-map-type": "atomic",
        // A pattern would exceed the cost limit: the API server assumes that keys are as long as a request.
        "x-kubernetes-validations": [{
            "rule": "self.all(key, size(key) > 0 && size(key) <= 317)",
            "message": "a key of matchLabels has 1 to 317 characters",
        }],
    })
}

fn label_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "x-kubernetes-list-type": "atomic",
    })
}
