//! What a node wants of each of its pods: decided from the resource, the pods and the Secret, before any agent has
//! said a word.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{
    CatalogNode, MemoryOptions, MemorySnapshots, NetworkOptions, ObservedPod, observed_pod::Identity as Wire,
};
use chainscope_spec::{PortRef, Stored};
use chainscope_tezos::Identity;

use super::{
    input::{Key, NodeInput, PodInput, SecretInput},
    reason::Reason,
};
use crate::crd::TezosNodeSpec;

/// What a node wants.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The pods that are the node's, by name.
    pub(super) pods: BTreeMap<Arc<str>, PodPlan>,
    /// How many pods it selects that an older node has, and one of these with that node.
    pub(super) taken: usize,
    pub(super) taken_by: Option<(Key, Key)>,
    /// Where the identity comes from.
    pub(super) identity: IdentityPlan,
}

/// What it wants of one pod.
#[derive(Debug)]
pub(super) struct PodPlan {
    pub(super) uid: Box<str>,
    pub(super) host: Option<Box<str>>,
    /// What the agent is told; none: it is told nothing.
    pub(super) observed: Option<Arc<ObservedPod>>,
    /// What is wrong with the pod.
    pub(super) trouble: Option<(Reason, String)>,
}

/// Where a node's identity comes from.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum IdentityPlan {
    /// The agent reads it in the container.
    #[default]
    InPod,
    /// The Secret's, which has this peer id.
    Secret { json: Vec<u8>, peer_id: String },
    /// There is none, and why.
    Missing(Reason, String),
}

impl std::fmt::Debug for IdentityPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InPod => f.write_str("InPod"),
            Self::Secret { peer_id, .. } => write!(f, "Secret({peer_id})"),
            Self::Missing(reason, why) => write!(f, "Missing({}, {why})", reason.as_str()),
        }
    }
}

impl IdentityPlan {
    /// `secret` is what is known of the Secret that the node names; `allowed` whether its namespace's are read at all.
    pub(super) fn of(node: &Key, spec: &TezosNodeSpec, secret: Option<&SecretInput>, allowed: bool) -> Self {
        let Some(reference) = &spec.identity.secret_ref else { return Self::InPod };
        let place = format!("Secret {}/{}", node.namespace, reference.name);
        if !allowed {
            let text = format!("{place}: the operator may not read Secrets of this namespace");
            return Self::Missing(Reason::SecretNamespaceNotAllowed, text);
        }
        match secret.unwrap_or(&SecretInput::Pending) {
            SecretInput::Pending => Self::Missing(Reason::SecretPending, format!("{place} was not read yet")),
            SecretInput::Absent => Self::Missing(Reason::SecretNotFound, format!("{place} does not exist")),
            SecretInput::Unreadable(why) => Self::Missing(Reason::SecretNotReadable, format!("{place}: {why}")),
            SecretInput::Present(data) => match data.get(&reference.key) {
                None => {
                    let text = format!("{place} has no key {:?}", reference.key);
                    Self::Missing(Reason::SecretKeyNotFound, text)
                }
                Some(json) => match Identity::from_json(&json.0) {
                    Ok(identity) => Self::Secret { json: json.0.clone(), peer_id: identity.peer_id().to_string() },
                    Err(error) => {
                        let text = format!("{place}, key {:?}: {error}", reference.key);
                        Self::Missing(Reason::IdentityInvalid, text)
                    }
                },
            },
        }
    }

    fn wire(&self, spec: &TezosNodeSpec) -> Wire {
        match self {
            Self::InPod => Wire::IdentityPath(spec.identity_path()),
            Self::Secret { json, .. } => Wire::IdentityJson(json.clone()),
            Self::Missing(_, why) => Wire::IdentityMissing(why.clone()),
        }
    }
}

impl PodPlan {
    pub(super) fn of(
        node: &NodeInput,
        spec: &TezosNodeSpec,
        key: &Key,
        pod: &PodInput,
        identity: &IdentityPlan,
    ) -> Self {
        let target = &spec.target;
        let mut plan = Self { uid: pod.uid.clone(), host: pod.host.clone(), observed: None, trouble: None };
        let Some(container) = pod.container(&target.container) else {
            let names: Vec<_> = pod.containers.iter().take(8).map(|container| &*container.name).collect();
            let text = format!("the pod has no container {:?}, but {}", target.container, names.join(", "));
            plan.trouble = Some((Reason::ContainerNotFound, text));
            return plan;
        };
        let p2p_port = port(&target.ports.p2p, container.name.as_ref(), pod);
        if p2p_port.is_none() {
            let text = format!("the pod has no port {}; it is recorded without that", target.ports.p2p);
            plan.trouble = Some((Reason::PortNotFound, text));
        }
        if pod.host.is_none() {
            plan.trouble = Some((Reason::PodUnscheduled, "the pod has no host yet".to_owned()));
            return plan;
        }
        plan.observed = Some(Arc::new(ObservedPod {
            node: node.key.to_string(),
            node_generation: node.generation,
            uid: pod.uid.to_string(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            container: target.container.clone(),
            container_ids: container.ids.iter().map(ToString::to_string).collect(),
            process: target.process.clone(),
            p2p_port: p2p_port.map(u32::from),
            identity: Some(identity.wire(spec)),
            network: Some(NetworkOptions {
                enabled: spec.network.enabled,
                plain_only: spec.network.store == Stored::Plain,
            }),
            memory: spec.memory.as_ref().map(|memory| MemoryOptions { enabled: memory.enabled }),
        }));
        plan
    }
}

/// A port by number, or by name: the node's own container is asked first, then the others, which share its network.
fn port(wanted: &PortRef, container: &str, pod: &PodInput) -> Option<u16> {
    let name = match wanted {
        PortRef::Number(number) => return u16::try_from(*number).ok().filter(|number| *number != 0),
        PortRef::Name(name) => name,
    };
    let own = pod.containers.iter().filter(|one| &*one.name == container);
    let others = pod.containers.iter().filter(|one| &*one.name != container);
    own.chain(others).flat_map(|one| &one.ports).find(|(own, _)| **own == **name).map(|(_, port)| *port)
}

/// What the aggregator is told of a node.
pub(super) fn catalog(node: &NodeInput, plan: &Plan) -> CatalogNode {
    // Hosts without repetition, in order.
    let hosts: std::collections::BTreeSet<_> =
        plan.pods.values().filter(|pod| pod.observed.is_some()).filter_map(|pod| pod.host.as_deref()).collect();
    // A specification that this build cannot read keeps what is there, within the default's bounds.
    let (aliases, retention, memory) = match &node.spec {
        Ok(spec) => (spec.aliases.clone(), spec.retention.clone(), spec.memory.clone()),
        Err(_) => Default::default(),
    };
    CatalogNode {
        node: node.key.to_string(),
        aliases,
        keep_rows: retention.rows,
        keep_bytes: retention.bytes.map(|bytes| bytes.as_u64()),
        keep_seconds: retention.age.map(|age| age.as_secs()),
        hosts: hosts.into_iter().map(str::to_owned).collect(),
        memory_snapshots: memory.map(|memory| MemorySnapshots {
            every_seconds: memory.snapshots.every.as_secs().max(1),
            keep_seconds: Some(memory.snapshots.age.as_secs()),
            keep_bytes: Some(memory.snapshots.bytes.as_u64()),
        }),
    }
}
