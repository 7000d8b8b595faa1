//! Types shared by the reconciler and the config stream: the desired state of agents and aggregator ([`Desired`]) and the
//! last reports of the agents ([`Reports`]).
//!
//! Both are published as a whole through `tokio::sync::watch` and never modified in place. Their parts are behind
//! [`Arc`]: an unchanged part is the same allocation in the next version, so that consumers compare by [`Arc::ptr_eq`]
//! first.
//!
//! A separate `tokio::sync::watch::Receiver<bool>` is true while this replica is the leader and [`Desired`] is complete.
//! While it is `false` the config stream closes its streams and refuses new ones with `UNAVAILABLE`, so that clients try
//! the next replica.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{CatalogNode, HostStatus, ObservedPod};

/// Name of a Kubernetes node: `spec.nodeName` of a pod, and the node that an agent's token is bound to.
pub type HostName = String;

/// `metadata.uid` of a pod.
pub type PodUid = String;

/// The pods to observe on one host.
pub type HostPods = BTreeMap<PodUid, Arc<ObservedPod>>;

/// The desired state of agents and aggregator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// The pods to observe, by host. Hosts without pods are absent.
    pub hosts: BTreeMap<HostName, Arc<HostPods>>,
    /// Every `TezosNode` and `NodeTrace` that is not being deleted, by `namespace/name`.
    pub catalog: BTreeMap<String, Arc<CatalogNode>>,
}

/// The last reports of the agents, by the host of their token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    /// Every host whose agent connected during this leadership term, including agents that disconnected.
    pub hosts: BTreeMap<HostName, Arc<AgentReport>>,
}

/// The state of one host's agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentReport {
    /// Whether a stream of the agent is open.
    pub connected: bool,
    /// Time of the last message of the agent, in [`monotonic_ns`](crate::clock::monotonic_ns).
    pub last_report_ns: i64,
    /// The agent's last status; empty before the first.
    pub status: HostStatus,
}
