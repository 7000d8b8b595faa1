//! How a node's pods are found in a cluster, and what of a `TezosNode` has no counterpart in `chainscope.toml`.
//!
//! The comments of these types are what `kubectl explain tezosnode.spec` shows. Every default fits the pods of
//! [tezos-k8s](https://github.com/tacoinfra/tezos-k8s). Rules are part of the schema: patterns where one value is
//! wrong, CEL (`x-kubernetes-validations`) where several do not go together. Strings, lists and maps have greatest
//! lengths, because the API server estimates what a rule costs from them.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Stored;

const PATH: &str = "^/[^\\x00-\\x1f]*$";
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// Which pods, and which process in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTarget {
    /// The node's pods, in the namespace of this resource. Default: pods labelled `appType=octez-node`.
    #[serde(default)]
    pub pod_selector: PodSelector,
    /// The container that the node runs in.
    #[serde(default = "octez_node")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub container: String,
    /// File name of the node's executable, without a folder.
    #[serde(default = "octez_node")]
    #[schemars(length(min = 1, max = 255), regex(pattern = "^[A-Za-z0-9_][-A-Za-z0-9_.+]*$"))]
    pub process: String,
    /// Ports that the node listens on: the name that the pod gives a port, or its number.
    #[serde(default)]
    pub ports: PodPorts,
    /// The node's data folder, as the container sees it.
    #[serde(default = "data_dir")]
    #[schemars(
        length(max = 1024),
        regex(pattern = PATH),
        extend("x-kubernetes-validations" = [no_dots("dataDir")])
    )]
    pub data_dir: String,
}

/// A selector of labels, as in a Deployment: what is given must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.matchLabels) && size(self.matchLabels) > 0) || \
             (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
    "message": "podSelector must not be empty: it would select every pod of the namespace",
}]))]
pub struct PodSelector {
    /// Labels that a pod must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<PodRequirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : \
             !has(self.values) || size(self.values) == 0",
    "message": "values go with the operators In and NotIn, and only with them",
}]))]
pub struct PodRequirement {
    /// The label.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    pub key: String,
    /// What must hold of it.
    pub operator: PodOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "label_values")]
    pub values: Vec<String>,
}

const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

/// Operators of a [`PodRequirement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is there.
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
    /// Where the node listens for peers.
    #[serde(default = "tezos_net")]
    pub p2p: PortRef,
    /// Where the node answers RPC.
    #[serde(default = "tezos_rpc")]
    pub rpc: PortRef,
}

/// A port by number, or by the name that the pod gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// Its number; the schema allows 1 to 65535.
    Number(i64),
    /// Its name in `containers[].ports[]`.
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
            // Of a number.
            "minimum": 1,
            "maximum": 65535,
            // Of a name: a letter is somewhere in it, else it would be a number in quotes.
            "maxLength": 15,
            "pattern": "^([a-z0-9][-a-z0-9]*)?[a-z]([-a-z0-9]*[a-z0-9])?$",
        })
    }
}

/// Where the node's `identity.json` is; without it chunks are recorded but cannot be decrypted.
/// Default: `identity.json` in `dataDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(has(self.path) && has(self.secretRef))",
    "message": "give path or secretRef, not both",
}]))]
pub struct PodIdentity {
    /// A file in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = PATH),
        extend("x-kubernetes-validations" = [no_dots("path")])
    )]
    pub path: Option<String>,
    /// A Secret in the namespace of this resource, which must be one of the chart's `operator.secretNamespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// One key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// The key that holds `identity.json`.
    #[serde(default = "identity_json")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// Peer-to-peer messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodNetwork {
    /// Whether they are recorded.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Which bytes of a chunk are stored: `both` as on the wire and decrypted; `plain` decrypted only, about half the
    /// space.
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
    /// Whether a pod with these labels is meant. `get` is the value of a label, if the pod has it.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, value)| get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(get(&requirement.key)))
    }
}

impl PodRequirement {
    fn holds(&self, value: Option<&str>) -> bool {
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

fn yes() -> bool {
    true
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
        // A pattern would cost more than a rule may: the API server takes keys for as long as a request.
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
