//! What reconcile and the config stream share: what every agent and the aggregator should do ([`Desired`]), and what
//! the agents said last ([`Reports`]).
//!
//! Both are published as a whole through `tokio::sync::watch` and never changed in place. Their parts are behind
//! [`Arc`]: a part that did not change is the same allocation in the next version, so that a reader compares a host of
//! the last version with one of this version by [`Arc::ptr_eq`] first.
//!
//! Beside them goes a `tokio::sync::watch::Receiver<bool>`: whether this program leads and [`Desired`] is whole. While it
//! is false the config stream ends open streams and refuses new ones with `UNAVAILABLE`, so that agents and aggregator
//! try the next replica.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{CatalogNode, HostStatus, ObservedPod};

/// Name of a Kubernetes node: `spec.nodeName` of a pod, and the node that an agent's token is bound to.
pub type HostName = String;

/// `metadata.uid` of a pod.
pub type PodUid = String;

/// The pods to observe on one host.
pub type HostPods = BTreeMap<PodUid, Arc<ObservedPod>>;

/// What agents and aggregator should do. A host without pods is not in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// The pods to observe, by the host they are on.
    pub hosts: BTreeMap<HostName, Arc<HostPods>>,
    /// Every `TezosNode` that is not being deleted, by `namespace/name`.
    pub catalog: BTreeMap<String, Arc<CatalogNode>>,
}

/// What the agents said, by the host of their token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    /// Every host whose agent has connected since this program leads. A host stays after its agent went away.
    pub hosts: BTreeMap<HostName, Arc<HostReported>>,
}

/// What is known of one host's agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReported {
    /// Whether a stream of the agent is open.
    pub connected: bool,
    /// When `connected` last changed; nanoseconds since 1970.
    pub since_ns: i64,
    /// When the agent last said something; nanoseconds since 1970.
    pub heard_ns: i64,
    /// The agent's last status; empty before the first.
    pub status: HostStatus,
}
