//! What is known of the hosts that pods of nodes are on.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_proto::v1::{HostStatus, PodReport};

use super::{input::Key, judge::HostView};
use crate::desired::{HostName, HostReported, Reports};

/// How long an agent may take to come to a new leader, or to a host that pods appeared on.
const GRACE_NS: i64 = 30_000_000_000;
/// An agent says something every ten seconds.
const SILENT_NS: i64 = 35_000_000_000;

/// Whether a host's agent can be believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Liveness {
    /// It was not heard of yet, but may come.
    #[default]
    Awaited,
    /// It was never heard of.
    Missing,
    /// It said something lately.
    Heard,
    /// It was heard of once.
    Silent,
}

#[derive(Debug, Default)]
struct Host {
    /// Nodes with pods here.
    nodes: BTreeSet<Key>,
    awaited_since_ns: i64,
    liveness: Liveness,
    reported: Option<Arc<HostReported>>,
    /// Where each pod is in the report.
    pods: BTreeMap<Box<str>, usize>,
}

/// All hosts: those with pods, and those that reported.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: BTreeMap<HostName, Host>,
}

impl Hosts {
    /// A node has a pod on the host.
    pub(super) fn enter(&mut self, host: &str, node: &Key, now_ns: i64) {
        if !self.hosts.contains_key(host) {
            self.hosts.insert(host.to_owned(), Host::default());
        }
        let Some(entry) = self.hosts.get_mut(host) else { return };
        if entry.nodes.is_empty() && entry.reported.is_none() {
            entry.awaited_since_ns = now_ns;
        }
        entry.nodes.insert(node.clone());
    }

    /// A node has none there any more.
    pub(super) fn leave(&mut self, host: &str, node: &Key) {
        if let Some(entry) = self.hosts.get_mut(host) {
            entry.nodes.remove(node);
            if entry.nodes.is_empty() && entry.reported.is_none() {
                self.hosts.remove(host);
            }
        }
    }

    /// Everybody has to come to a new leader first.
    pub(super) fn begin(&mut self, now_ns: i64) {
        for host in self.hosts.values_mut() {
            host.awaited_since_ns = now_ns;
            host.liveness = Liveness::Awaited;
            host.reported = None;
            host.pods.clear();
        }
        self.hosts.retain(|_, host| !host.nodes.is_empty());
    }

    /// Takes what the agents said; the nodes that it is about are added to `changed`.
    pub(super) fn report(&mut self, reports: &Reports, changed: &mut BTreeSet<Key>) {
        for (name, reported) in &reports.hosts {
            if !self.hosts.contains_key(name) {
                self.hosts.insert(name.clone(), Host::default());
            }
            let Some(host) = self.hosts.get_mut(name) else { continue };
            if host.reported.as_ref().is_some_and(|old| Arc::ptr_eq(old, reported)) {
                continue;
            }
            let pods = reported.status.pods.iter().enumerate();
            host.pods = pods.map(|(at, pod)| (pod.uid.as_str().into(), at)).collect();
            host.reported = Some(Arc::clone(reported));
            changed.extend(host.nodes.iter().cloned());
        }
        // Who is not in it any more never was.
        self.hosts.retain(|name, host| {
            if host.reported.is_some() && !reports.hosts.contains_key(name) {
                host.reported = None;
                host.pods.clear();
                changed.extend(host.nodes.iter().cloned());
            }
            host.reported.is_some() || !host.nodes.is_empty()
        });
    }

    /// Looks at the clock; the nodes of hosts whose agent came or went are added to `changed`.
    pub(super) fn tick(&mut self, now_ns: i64, changed: &mut BTreeSet<Key>) {
        for host in self.hosts.values_mut() {
            let liveness = host.liveness_at(now_ns);
            if host.liveness != liveness {
                host.liveness = liveness;
                changed.extend(host.nodes.iter().cloned());
            }
        }
    }

    /// What is known of a pod of a node on a host.
    pub(super) fn view<'a>(&'a self, host: &'a str, node: &str, uid: &str) -> Option<HostView<'a>> {
        let entry = self.hosts.get(host)?;
        Some(HostView {
            name: host,
            liveness: entry.liveness,
            error: entry.reported.as_ref().map_or("", |reported| &reported.status.error),
            report: entry.report(uid).filter(|report| report.node == node),
        })
    }

    /// Hosts with pods, by whether their agent is heard.
    pub(super) fn counts(&self) -> (usize, usize) {
        let with_pods = self.hosts.values().filter(|host| !host.nodes.is_empty());
        with_pods.fold((0, 0), |(heard, not), host| match host.liveness {
            Liveness::Heard => (heard + 1, not),
            _ => (heard, not + 1),
        })
    }
}

impl Host {
    fn report(&self, uid: &str) -> Option<&PodReport> {
        self.reported.as_ref()?.status.pods.get(*self.pods.get(uid)?)
    }

    fn liveness_at(&self, now_ns: i64) -> Liveness {
        let in_grace = now_ns.saturating_sub(self.awaited_since_ns) <= GRACE_NS;
        match &self.reported {
            // It came, but has not said yet how it goes.
            Some(reported) if in_grace && reported.status == HostStatus::default() => Liveness::Awaited,
            Some(reported) if now_ns.saturating_sub(reported.heard_ns) <= SILENT_NS => Liveness::Heard,
            Some(_) => Liveness::Silent,
            None if in_grace => Liveness::Awaited,
            None => Liveness::Missing,
        }
    }
}
