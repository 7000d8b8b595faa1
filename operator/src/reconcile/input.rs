//! Inputs of the reconciler: objects reduced to the fields it uses. Ten thousand pods take a few megabytes.

use std::{fmt, sync::Arc};

use chainscope_spec::PodSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;

use super::reason::Reason;
use crate::crd::{NodeTrace, NodeTraceSpec, TezosNode, TezosNodeSpec, TezosNodeStatus};

/// First part of the names of nodes that a `NodeTrace` observes. No Kubernetes name contains a colon, so that such a node
/// never has the name of a `TezosNode`.
const TRACE: &str = "trace:";

/// The kind of a resource that describes a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// `TezosNode`.
    TezosNode,
    /// `NodeTrace`.
    NodeTrace,
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TezosNode => "TezosNode",
            Self::NodeTrace => "NodeTrace",
        })
    }
}

/// Namespace and name of an object; of a resource that describes a node, the name of that node: `namespace/name`, or
/// `namespace/trace:name` of a `NodeTrace`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of `namespace/name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a namespaced object.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    /// The key of a resource that describes a node.
    pub fn of_node(kind: NodeKind, meta: &ObjectMeta) -> Self {
        let key = Self::of(meta);
        match kind {
            NodeKind::TezosNode => key,
            NodeKind::NodeTrace => Self { name: format!("{TRACE}{}", key.name).into(), ..key },
        }
    }

    /// The kind and the name of the resource that describes this node.
    pub fn resource(&self) -> (NodeKind, &str) {
        match self.name.strip_prefix(TRACE) {
            Some(name) => (NodeKind::NodeTrace, name),
            None => (NodeKind::TezosNode, &self.name),
        }
    }

    pub(super) fn kind(&self) -> NodeKind {
        self.resource().0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The specification of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeSpec {
    /// Of a `TezosNode`.
    Tezos(Arc<TezosNodeSpec>),
    /// Of a `NodeTrace`.
    Trace(Arc<NodeTraceSpec>),
}

impl NodeSpec {
    pub(super) fn tezos(&self) -> Option<&TezosNodeSpec> {
        match self {
            Self::Tezos(spec) => Some(spec),
            Self::Trace(_) => None,
        }
    }

    /// Names of the container and of the executable in it.
    pub(super) fn program(&self) -> (&str, &str) {
        match self {
            Self::Tezos(spec) => (&spec.target.container, &spec.target.process),
            Self::Trace(spec) => (&spec.container, &spec.process),
        }
    }

    fn selector(&self) -> &PodSelector {
        match self {
            Self::Tezos(spec) => &spec.target.pod_selector,
            Self::Trace(spec) => &spec.pod_selector,
        }
    }
}

/// A `TezosNode` or a `NodeTrace`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeInput {
    /// The node that it describes.
    pub key: Key,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`, in nanoseconds since the Unix epoch.
    pub created_ns: i64,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The specification, or the error if it cannot be parsed.
    pub spec: Result<NodeSpec, String>,
    /// The stored status.
    pub status: TezosNodeStatus,
}

impl From<TezosNode> for NodeInput {
    fn from(node: TezosNode) -> Self {
        let key = Key::of_node(NodeKind::TezosNode, &node.metadata);
        Self::new(key, &node.metadata, Ok(NodeSpec::Tezos(Arc::new(node.spec))), node.status.unwrap_or_default())
    }
}

impl From<NodeTrace> for NodeInput {
    fn from(trace: NodeTrace) -> Self {
        let key = Key::of_node(NodeKind::NodeTrace, &trace.metadata);
        let status = trace.status.unwrap_or_default().into();
        Self::new(key, &trace.metadata, Ok(NodeSpec::Trace(Arc::new(trace.spec))), status)
    }
}

impl NodeInput {
    /// A resource that cannot be parsed.
    pub fn invalid(kind: NodeKind, invalid: InvalidObject) -> Self {
        let key = Key::of_node(kind, &invalid.metadata);
        Self::new(key, &invalid.metadata, Err(invalid.error), TezosNodeStatus::default())
    }

    fn new(key: Key, meta: &ObjectMeta, spec: Result<NodeSpec, String>, status: TezosNodeStatus) -> Self {
        let created = meta.creation_timestamp.as_ref();
        Self {
            key,
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            created_ns: created.map_or(0, |time| i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX)),
            deleting: meta.deletion_timestamp.is_some(),
            spec,
            status,
        }
    }

    /// The pod selector; `None` if the specification cannot be parsed or the node is being deleted.
    pub(super) fn selector(&self) -> Option<&PodSelector> {
        self.spec.as_ref().ok().filter(|_| !self.deleting).map(NodeSpec::selector)
    }

    /// The specification, if it is that of a `TezosNode` that can be parsed.
    pub(super) fn tezos(&self) -> Option<&TezosNodeSpec> {
        self.spec.as_ref().ok()?.tezos()
    }

    /// The specification, if it is that of a `NodeTrace` that can be parsed.
    pub(super) fn trace(&self) -> Option<&NodeTraceSpec> {
        match self.spec.as_ref().ok()? {
            NodeSpec::Trace(spec) => Some(spec),
            NodeSpec::Tezos(_) => None,
        }
    }

    /// Why a part of the specification cannot be used.
    pub(super) fn fault(&self) -> Option<(Reason, String)> {
        match self.spec.as_ref().ok()? {
            NodeSpec::Tezos(spec) => Some((Reason::LogPatternInvalid, spec.logs_error()?)),
            NodeSpec::Trace(spec) => Some((Reason::TracepointsInvalid, spec.error()?)),
        }
    }
}

/// A pod, reduced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodInput {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `spec.nodeName`; `None` before the pod is scheduled.
    pub host: Option<Box<str>>,
    /// Labels, sorted by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Containers and sidecar containers (init containers with `restartPolicy: Always`).
    pub containers: Box<[ContainerInput]>,
}

impl PodInput {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        self.labels.get(at).map(|(_, value)| &**value)
    }

    /// The container of the given name.
    pub fn container(&self, name: &str) -> Option<&ContainerInput> {
        self.containers.iter().find(|container| &*container.name == name)
    }
}

/// A container, reduced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerInput {
    /// Its name.
    pub name: Box<str>,
    /// Its named ports.
    pub ports: Box<[(Box<str>, u16)]>,
    /// Container ids of 64 hexadecimal digits: of the current container, then of the previous one.
    pub ids: Box<[Box<str>]>,
}

/// The 64 hexadecimal digits of a `containerID` such as `containerd://0123…`; `None` for any other format.
pub fn container_id(reported: &str) -> Option<&str> {
    let id = reported.rsplit_once("://").map_or(reported, |(_, id)| id);
    let is_id = id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(id)
}

/// The state of a Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum SecretInput {
    /// The Secret has not been read yet.
    #[default]
    Pending,
    /// The Secret does not exist.
    Absent,
    /// The Secret cannot be read, with the reason.
    Unreadable(String),
    /// The data of the Secret.
    Present(Arc<std::collections::BTreeMap<String, k8s_openapi::ByteString>>),
}

impl fmt::Debug for SecretInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("Pending"),
            Self::Absent => f.write_str("Absent"),
            Self::Unreadable(reason) => f.debug_tuple("Unreadable").field(reason).finish(),
            // Keys only: the values are secret.
            Self::Present(data) => f.debug_tuple("Present").field(&data.keys()).finish(),
        }
    }
}
