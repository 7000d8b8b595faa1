//! State of the hosts that pods of nodes are scheduled on, and of their agents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_proto::v1::{HostStatus, PodReport};

use super::input::Key;
use crate::desired::{AgentReport, HostName, Reports};

/// Time for an agent to connect to a new leader, or for an agent to start on a new host.
const CONNECT_GRACE_NS: i64 = 30_000_000_000;
/// Age of the last report after which an agent is unreachable. Agents report every ten seconds.
const REPORT_TIMEOUT_NS: i64 = 35_000_000_000;

/// State of a host's agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AgentState {
    /// The agent has not connected yet; the grace period has not elapsed.
    #[default]
    Pending,
    /// The agent has not connected within the grace period.
    Missing,
    /// The last report is recent.
    Connected,
    /// The last report is too old.
    Unreachable,
}

#[derive(Debug, Default)]
struct Host {
    /// Nodes with observed pods on the host.
    nodes: BTreeSet<Key>,
    /// Start of the grace period.
    pending_since_ns: i64,
    agent_state: AgentState,
    report: Option<Arc<AgentReport>>,
    /// Index of each report on a pod, by pod UID; two if a `NodeTrace` observes a pod of a `TezosNode`.
    pods: BTreeMap<Box<str>, Vec<usize>>,
}

/// The state of a pod's host.
pub(super) struct HostView<'a> {
    pub(super) name: &'a str,
    pub(super) agent_state: AgentState,
    /// Why the host does not support recording; empty if it does.
    pub(super) error: &'a str,
    pub(super) report: Option<&'a PodReport>,
}

/// All hosts with observed pods or with an agent that reported.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: BTreeMap<HostName, Host>,
}

impl Hosts {
    /// Adds a node with an observed pod on the host.
    pub(super) fn add_node(&mut self, host: &str, node: &Key, now_ns: i64) {
        if !self.hosts.contains_key(host) {
            self.hosts.insert(host.to_owned(), Host::default());
        }
        let Some(entry) = self.hosts.get_mut(host) else { return };
        if entry.nodes.is_empty() && entry.report.is_none() {
            entry.pending_since_ns = now_ns;
        }
        entry.nodes.insert(node.clone());
    }

    /// Removes a node without observed pods on the host.
    pub(super) fn remove_node(&mut self, host: &str, node: &Key) {
        if let Some(entry) = self.hosts.get_mut(host) {
            entry.nodes.remove(node);
            if entry.nodes.is_empty() && entry.report.is_none() {
                self.hosts.remove(host);
            }
        }
    }

    /// Resets the state of all agents and restarts the grace period, for a new leader.
    pub(super) fn reset(&mut self, now_ns: i64) {
        for host in self.hosts.values_mut() {
            host.pending_since_ns = now_ns;
            host.agent_state = AgentState::Pending;
            host.report = None;
            host.pods.clear();
        }
        self.hosts.retain(|_, host| !host.nodes.is_empty());
    }

    /// Applies the reports of all agents; adds the affected nodes to `changed`.
    pub(super) fn apply_reports(&mut self, reports: &Reports, changed: &mut BTreeSet<Key>) {
        for (name, report) in &reports.hosts {
            if !self.hosts.contains_key(name) {
                self.hosts.insert(name.clone(), Host::default());
            }
            let Some(host) = self.hosts.get_mut(name) else { continue };
            if host.report.as_ref().is_some_and(|old| Arc::ptr_eq(old, report)) {
                continue;
            }
            host.pods.clear();
            for (at, pod) in report.status.pods.iter().enumerate() {
                host.pods.entry(pod.uid.as_str().into()).or_default().push(at);
            }
            host.report = Some(Arc::clone(report));
            changed.extend(host.nodes.iter().cloned());
        }
        self.hosts.retain(|name, host| {
            if host.report.is_some() && !reports.hosts.contains_key(name) {
                host.report = None;
                host.pods.clear();
                changed.extend(host.nodes.iter().cloned());
            }
            host.report.is_some() || !host.nodes.is_empty()
        });
    }

    /// Updates the agents' states for the current time; adds the nodes of changed hosts to `changed`.
    pub(super) fn tick(&mut self, now_ns: i64, changed: &mut BTreeSet<Key>) {
        for host in self.hosts.values_mut() {
            let agent_state = host.agent_state_at(now_ns);
            if host.agent_state != agent_state {
                host.agent_state = agent_state;
                changed.extend(host.nodes.iter().cloned());
            }
        }
    }

    /// The state of a host with the report on a pod of a node.
    pub(super) fn view<'a>(&'a self, host: &'a str, node: &str, uid: &str) -> Option<HostView<'a>> {
        let entry = self.hosts.get(host)?;
        Some(HostView {
            name: host,
            agent_state: entry.agent_state,
            error: entry.report.as_ref().map_or("", |report| &report.status.error),
            report: entry.pod_report(uid, node),
        })
    }

    /// Numbers of hosts with observed pods: with a connected agent, and without one.
    pub(super) fn counts(&self) -> (usize, usize) {
        let with_pods = self.hosts.values().filter(|host| !host.nodes.is_empty());
        with_pods.fold((0, 0), |(connected, others), host| match host.agent_state {
            AgentState::Connected => (connected + 1, others),
            _ => (connected, others + 1),
        })
    }
}

impl Host {
    fn pod_report(&self, uid: &str, node: &str) -> Option<&PodReport> {
        let reports = &self.report.as_ref()?.status.pods;
        self.pods.get(uid)?.iter().filter_map(|at| reports.get(*at)).find(|report| report.node == node)
    }

    fn agent_state_at(&self, now_ns: i64) -> AgentState {
        let in_grace = now_ns.saturating_sub(self.pending_since_ns) <= CONNECT_GRACE_NS;
        match &self.report {
            // Connected, but the first status has not arrived.
            Some(report) if in_grace && report.status == HostStatus::default() => AgentState::Pending,
            Some(report) if now_ns.saturating_sub(report.last_report_ns) <= REPORT_TIMEOUT_NS => AgentState::Connected,
            Some(_) => AgentState::Unreachable,
            None if in_grace => AgentState::Pending,
            None => AgentState::Missing,
        }
    }
}
