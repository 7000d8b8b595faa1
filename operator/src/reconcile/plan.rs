//! The plan of a node: the configuration of each of its pods, from the resource, the pods and the Secret. Agent reports
//! do not affect it.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{
    CatalogNode, LogRetention, LogsOptions, MemoryOptions, MemorySnapshots, NetworkOptions, ObservedPod,
    observed_pod::Identity as ProtoIdentity,
};
use chainscope_spec::{PortRef, Stored};
use chainscope_tezos::Identity;

use super::{
    input::{ContainerInput, Key, NodeInput, NodeKind, NodeSpec, PodInput, SecretInput},
    reason::Reason,
    trace,
};
use crate::crd::TezosNodeSpec;

/// The plan of a node.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Pods that belong to the node, by name.
    pub(super) pods: BTreeMap<Arc<str>, PodPlan>,
    /// Number of selected pods that belong to an older node.
    pub(super) conflicts: usize,
    /// The first of these pods, and the node that it belongs to.
    pub(super) conflict: Option<(Key, Key)>,
    /// Source of the identity.
    pub(super) identity: IdentityPlan,
    /// Why a part of the specification cannot be used: no log messages, or no events of tracepoints, are recorded.
    pub(super) fault: Option<(Reason, String)>,
}

/// The plan of one pod.
#[derive(Debug)]
pub(super) struct PodPlan {
    pub(super) uid: Box<str>,
    pub(super) host: Option<Box<str>>,
    /// The configuration for the agent; `None` if the pod cannot be observed.
    pub(super) observed: Option<Arc<ObservedPod>>,
    /// A mismatch between the pod and the specification.
    pub(super) error: Option<(Reason, String)>,
}

/// Source of a node's identity.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum IdentityPlan {
    /// The agent reads it from the container's file system.
    #[default]
    InPod,
    /// The content of a Secret, and its peer id.
    Secret { json: Vec<u8>, peer_id: String },
    /// No identity is available, with the reason and a message.
    Missing(Reason, String),
}

impl std::fmt::Debug for IdentityPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InPod => f.write_str("InPod"),
            Self::Secret { peer_id, .. } => write!(f, "Secret({peer_id})"),
            Self::Missing(reason, message) => write!(f, "Missing({}, {message})", reason.as_str()),
        }
    }
}

impl IdentityPlan {
    /// `secret` is the state of the referenced Secret, `allowed` whether the operator may read Secrets of its namespace.
    pub(super) fn of(node: &Key, spec: &TezosNodeSpec, secret: Option<&SecretInput>, allowed: bool) -> Self {
        let Some(reference) = &spec.identity.secret_ref else { return Self::InPod };
        let secret_name = format!("Secret {}/{}", node.namespace, reference.name);
        if !allowed {
            let text = format!("{secret_name}: the operator is not configured to read Secrets of this namespace");
            return Self::Missing(Reason::SecretNamespaceNotAllowed, text);
        }
        match secret.unwrap_or(&SecretInput::Pending) {
            SecretInput::Pending => {
                Self::Missing(Reason::SecretPending, format!("{secret_name} has not been read yet"))
            }
            SecretInput::Absent => Self::Missing(Reason::SecretNotFound, format!("{secret_name} does not exist")),
            SecretInput::Unreadable(error) => {
                Self::Missing(Reason::SecretNotReadable, format!("{secret_name}: {error}"))
            }
            SecretInput::Present(data) => match data.get(&reference.key) {
                None => {
                    let text = format!("{secret_name} has no key {:?}", reference.key);
                    Self::Missing(Reason::SecretKeyNotFound, text)
                }
                Some(json) => match Identity::from_json(&json.0) {
                    Ok(identity) => Self::Secret { json: json.0.clone(), peer_id: identity.peer_id().to_string() },
                    Err(error) => {
                        let text = format!("{secret_name}, key {:?}: {error}", reference.key);
                        Self::Missing(Reason::IdentityInvalid, text)
                    }
                },
            },
        }
    }

    fn to_proto(&self, spec: &TezosNodeSpec) -> ProtoIdentity {
        match self {
            Self::InPod => ProtoIdentity::IdentityPath(spec.identity_path()),
            Self::Secret { json, .. } => ProtoIdentity::IdentityJson(json.clone()),
            Self::Missing(_, message) => ProtoIdentity::IdentityMissing(message.clone()),
        }
    }
}

impl PodPlan {
    /// A pod that cannot be observed.
    pub(super) fn refused(pod: &PodInput, reason: Reason, message: String) -> Self {
        Self { uid: pod.uid.clone(), host: pod.host.clone(), observed: None, error: Some((reason, message)) }
    }

    pub(super) fn of(node: &NodeInput, spec: &NodeSpec, key: &Key, pod: &PodInput, node_plan: &Plan) -> Self {
        let (container, process) = spec.program();
        let Some(found) = pod.container(container) else {
            let names: Vec<_> = pod.containers.iter().take(8).map(|container| &*container.name).collect();
            let text = format!("the pod has no container {container:?}; its containers are {}", names.join(", "));
            return Self::refused(pod, Reason::ContainerNotFound, text);
        };
        if pod.host.is_none() {
            return Self::refused(pod, Reason::PodUnscheduled, "the pod is not scheduled".to_owned());
        }
        let common = ObservedPod {
            node: node.key.to_string(),
            node_generation: node.generation,
            uid: pod.uid.to_string(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            container: container.to_owned(),
            container_ids: found.ids.iter().map(ToString::to_string).collect(),
            process: process.to_owned(),
            ..ObservedPod::default()
        };
        let (observed, error) = match spec {
            NodeSpec::Tezos(spec) => tezos(common, spec, found, pod, node_plan),
            NodeSpec::Trace(spec) => (trace::observed(common, spec, node_plan.fault.is_none()), None),
        };
        Self { uid: pod.uid.clone(), host: pod.host.clone(), observed: Some(Arc::new(observed)), error }
    }
}

/// What is observed of a pod of a `TezosNode`, and a mismatch with its specification.
fn tezos(
    common: ObservedPod,
    spec: &TezosNodeSpec,
    container: &ContainerInput,
    pod: &PodInput,
    node_plan: &Plan,
) -> (ObservedPod, Option<(Reason, String)>) {
    let p2p = &spec.target.ports.p2p;
    let p2p_port = port(p2p, container.name.as_ref(), pod);
    let error = p2p_port
        .is_none()
        .then(|| (Reason::PortNotFound, format!("the pod has no port {p2p}; the pod is recorded without a P2P port")));
    let observed = ObservedPod {
        p2p_port: p2p_port.map(u32::from),
        identity: Some(node_plan.identity.to_proto(spec)),
        network: Some(NetworkOptions {
            enabled: spec.network.enabled,
            plain_only: spec.network.store == Stored::Plain,
        }),
        memory: spec.memory.as_ref().map(|memory| MemoryOptions { enabled: memory.enabled }),
        // Rather no messages than unredacted ones.
        logs: (spec.logs.as_ref())
            .filter(|_| node_plan.fault.is_none())
            .map(|logs| LogsOptions { enabled: logs.enabled, redact: logs.redact.clone() }),
        ..common
    };
    (observed, error)
}

/// Resolves a port by number, or by name: in the node's container first, then in the others, which share its network
/// namespace.
fn port(wanted: &PortRef, container: &str, pod: &PodInput) -> Option<u16> {
    let name = match wanted {
        PortRef::Number(number) => return u16::try_from(*number).ok().filter(|number| *number != 0),
        PortRef::Name(name) => name,
    };
    let own = pod.containers.iter().filter(|one| &*one.name == container);
    let others = pod.containers.iter().filter(|one| &*one.name != container);
    own.chain(others).flat_map(|one| &one.ports).find(|(own, _)| **own == **name).map(|(_, port)| *port)
}

/// The catalog entry of a node, for the aggregator.
pub(super) fn catalog(node: &NodeInput, plan: &Plan) -> CatalogNode {
    // Sorted, without duplicates.
    let hosts: std::collections::BTreeSet<_> =
        plan.pods.values().filter(|pod| pod.observed.is_some()).filter_map(|pod| pod.host.as_deref()).collect();
    // With a specification that cannot be parsed the default retention applies.
    let (aliases, retention, memory, logs) = match node.tezos() {
        Some(spec) => (spec.aliases.clone(), spec.retention.clone(), spec.memory.clone(), spec.logs.clone()),
        None => Default::default(),
    };
    CatalogNode {
        node: node.key.to_string(),
        aliases: if node.key.kind() == NodeKind::NodeTrace { trace::aliases(&node.key) } else { aliases },
        keep_rows: retention.rows,
        keep_bytes: retention.bytes.map(|bytes| bytes.as_u64()),
        keep_seconds: retention.age.map(|age| age.as_secs()),
        hosts: hosts.into_iter().map(str::to_owned).collect(),
        memory_snapshots: memory.map(|memory| MemorySnapshots {
            every_seconds: memory.snapshots.every.as_secs().max(1),
            keep_seconds: Some(memory.snapshots.age.as_secs()),
            keep_bytes: Some(memory.snapshots.bytes.as_u64()),
        }),
        log_retention: logs.map(|logs| LogRetention {
            keep_rows: logs.retention.rows,
            keep_bytes: logs.retention.bytes.map(|bytes| bytes.as_u64()),
            keep_seconds: logs.retention.age.map(|age| age.as_secs()),
        }),
        trace_retention: node.trace().map(|spec| trace::retention(&spec.retention)),
    }
}
