//! Everything that is known, and what of it has to be thought about again.

mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    hosts::Hosts,
    index::Selectors,
    input::{Key, NodeInput, PodInput, SecretInput},
    losses::Losses,
    output::{Happening, Outcome},
    plan::Plan,
    restarts::Restarts,
};
use crate::{
    crd::TezosNodeStatus,
    desired::{Desired, Reports},
};

/// The state of the decision.
#[derive(Debug, Default)]
pub struct Engine {
    /// Namespaces whose Secrets may be read.
    secret_namespaces: BTreeSet<String>,
    nodes: BTreeMap<Key, Node>,
    pods: BTreeMap<Key, Pod>,
    selectors: BTreeMap<Arc<str>, Selectors>,
    secrets: BTreeMap<Key, Secret>,
    hosts: Hosts,
    desired: Desired,
    /// What was handed out last differs from `desired`.
    unpublished: bool,
    /// Other Secrets than before are needed.
    secrets_changed: bool,
    /// Nodes whose plan has to be made again.
    replan: BTreeSet<Key>,
    /// Nodes whose status has to be made again.
    rejudge: BTreeSet<Key>,
    /// Nodes whose status was made, but not yet written.
    unwritten: BTreeSet<Key>,
    /// Nodes with a loop of restarts: time alone ends it.
    looping: BTreeSet<Key>,
    events: Vec<Happening>,
}

#[derive(Debug)]
struct Node {
    input: NodeInput,
    /// The Secret that its identity is in.
    secret: Option<Key>,
    /// Pods that it selects, whoever has them.
    selected: BTreeSet<Key>,
    plan: Plan,
    status: TezosNodeStatus,
    written: TezosNodeStatus,
    written_ns: i64,
    restarts: BTreeMap<Box<str>, Restarts>,
    losses: Losses,
}

#[derive(Debug)]
struct Pod {
    input: PodInput,
    /// Nodes that select it, the oldest first.
    claims: Vec<(i64, Key)>,
}

#[derive(Debug, Default)]
struct Secret {
    input: SecretInput,
    users: BTreeSet<Key>,
}

/// How many there are, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub nodes: usize,
    pub ready: usize,
    pub pods_known: usize,
    pub pods_observed: usize,
    pub hosts_heard: usize,
    pub hosts_not_heard: usize,
}

impl Engine {
    /// An engine that knows nothing. `secret_namespaces`: the namespaces whose Secrets it may ask for.
    pub fn new(secret_namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { secret_namespaces: secret_namespaces.into_iter().collect(), ..Self::default() }
    }

    /// From now on this program leads: everything is thought about afresh, from what is stored.
    pub fn begin(&mut self, now_ns: i64) {
        self.hosts.begin(now_ns);
        for node in self.nodes.values_mut() {
            node.status.clone_from(&node.input.status);
            node.written.clone_from(&node.input.status);
            node.written_ns = i64::MIN;
            node.restarts.clear();
            node.losses = Losses::default();
        }
        self.looping.clear();
        self.events.clear();
        self.unpublished = true;
        self.replan = self.nodes.keys().cloned().collect();
    }

    /// A node was made or changed.
    pub fn apply_node(&mut self, input: NodeInput) {
        let key = input.key.clone();
        let is_another = self.nodes.get(&key).is_some_and(|node| node.input.uid != input.uid);
        if is_another {
            self.delete_node(&key);
        }
        let Some(node) = self.nodes.get_mut(&key) else {
            let status = input.status.clone();
            let node = Node {
                written: status.clone(),
                status,
                written_ns: i64::MIN,
                secret: None,
                plan: Plan::default(),
                selected: BTreeSet::new(),
                restarts: BTreeMap::new(),
                losses: Losses::default(),
                input,
            };
            self.nodes.insert(key.clone(), node);
            self.select(&key);
            return;
        };
        let old = &node.input;
        if old.generation == input.generation && old.deleting == input.deleting && old.spec == input.spec {
            // Our own status, most often.
            node.input.status = input.status;
            return;
        }
        if old.selector() == input.selector() {
            node.input = input;
            self.replan.insert(key);
            return;
        }
        self.unselect(&key);
        if let Some(node) = self.nodes.get_mut(&key) {
            node.input = input;
        }
        self.select(&key);
    }

    /// A node is gone.
    pub fn delete_node(&mut self, key: &Key) {
        self.unselect(key);
        let Some(mut node) = self.nodes.remove(key) else { return };
        self.events.extend(work::stopped(key, &node.input.uid, &node.plan));
        self.withdraw(key, &mut node.plan);
        self.desired.catalog.remove(&key.to_string());
        self.unpublished = true;
        if let Some(secret) = &node.secret {
            self.let_go(secret, key);
        }
        for set in [&mut self.replan, &mut self.rejudge, &mut self.unwritten, &mut self.looping] {
            set.remove(key);
        }
    }

    /// A pod was made or changed.
    pub fn apply_pod(&mut self, key: &Key, input: PodInput) {
        let claims = self.claims(key, &input);
        let before = self.pods.insert(key.clone(), Pod { input, claims });
        let now = self.pods.get(key);
        if before.as_ref().map(|pod| &pod.input) == now.map(|pod| &pod.input) {
            return;
        }
        let before = before.map(|pod| pod.claims).unwrap_or_default();
        let claims = now.map(|pod| pod.claims.clone()).unwrap_or_default();
        self.reclaim(key, &before, &claims);
    }

    /// A pod is gone.
    pub fn delete_pod(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            self.reclaim(key, &pod.claims, &[]);
        }
    }

    /// Every pod that is known; what is not in a fresh list is gone.
    pub fn pods(&self) -> impl Iterator<Item = &Key> {
        self.pods.keys()
    }

    /// Every node that is known.
    pub fn nodes(&self) -> impl Iterator<Item = &Key> {
        self.nodes.keys()
    }

    /// Secrets that have to be watched.
    pub fn secrets(&self) -> impl Iterator<Item = &Key> {
        self.secrets.keys()
    }

    /// Whether a Secret that is needed was not read yet.
    pub fn awaits_secrets(&self) -> bool {
        self.secrets.values().any(|secret| secret.input == SecretInput::Pending)
    }

    /// What a Secret holds.
    pub fn set_secret(&mut self, key: &Key, input: SecretInput) {
        if let Some(secret) = self.secrets.get_mut(key).filter(|secret| secret.input != input) {
            secret.input = input;
            self.replan.extend(secret.users.iter().cloned());
        }
    }

    /// What the agents say.
    pub fn set_reports(&mut self, reports: &Reports) {
        self.hosts.report(reports, &mut self.rejudge);
    }

    /// The write of a status failed: it is written again.
    pub fn write_failed(&mut self, key: &Key) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.written.clone_from(&node.input.status);
            self.unwritten.insert(key.clone());
        }
    }

    /// Thinks about whatever may have changed.
    pub fn reconcile(&mut self, now_ns: i64) -> Outcome {
        let replan = std::mem::take(&mut self.replan);
        for key in &replan {
            self.plan(key, now_ns);
        }
        self.hosts.tick(now_ns, &mut self.rejudge);
        let mut rejudge = std::mem::take(&mut self.rejudge);
        rejudge.extend(replan);
        rejudge.extend(self.looping.iter().cloned());
        for key in rejudge {
            self.judge(&key, now_ns);
        }
        let desired = std::mem::take(&mut self.unpublished).then(|| Arc::new(self.desired.clone()));
        Outcome {
            desired,
            secrets_changed: std::mem::take(&mut self.secrets_changed),
            statuses: self.due(now_ns),
            events: std::mem::take(&mut self.events),
        }
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let (hosts_heard, hosts_not_heard) = self.hosts.counts();
        let is_ready = |node: &&Node| {
            node.status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        Counts {
            nodes: self.nodes.len(),
            ready: self.nodes.values().filter(is_ready).count(),
            pods_known: self.pods.len(),
            pods_observed: self.desired.hosts.values().map(|pods| pods.len()).sum(),
            hosts_heard,
            hosts_not_heard,
        }
    }

    /// Nodes that select the pod, the oldest first.
    fn claims(&self, key: &Key, pod: &PodInput) -> Vec<(i64, Key)> {
        let Some(selectors) = self.selectors.get(&key.namespace) else { return Vec::new() };
        let mut claims: Vec<_> = selectors
            .candidates(pod)
            .filter_map(|node| {
                let input = &self.nodes.get(node)?.input;
                input.selector()?.matches(|label| pod.label(label)).then(|| (input.created_ns, node.clone()))
            })
            .collect();
        claims.sort_unstable();
        claims
    }

    fn reclaim(&mut self, pod: &Key, before: &[(i64, Key)], now: &[(i64, Key)]) {
        for (_, node) in before {
            if let Some(node) = self.nodes.get_mut(node) {
                node.selected.remove(pod);
            }
        }
        for (_, node) in now {
            if let Some(node) = self.nodes.get_mut(node) {
                node.selected.insert(pod.clone());
            }
        }
        self.replan.extend(before.iter().chain(now).map(|(_, node)| node.clone()));
    }

    /// Enters a node into the index and finds its pods.
    fn select(&mut self, key: &Key) {
        self.replan.insert(key.clone());
        let Some(node) = self.nodes.get_mut(key) else { return };
        let Some(selector) = node.input.selector() else { return };
        self.selectors.entry(key.namespace.clone()).or_default().insert(key, selector);
        let claim = (node.input.created_ns, key.clone());
        let first = Key { namespace: key.namespace.clone(), name: "".into() };
        let in_namespace = self.pods.range_mut(first..).take_while(|(pod, _)| pod.namespace == key.namespace);
        for (name, pod) in in_namespace {
            if selector.matches(|label| pod.input.label(label)) {
                let at = pod.claims.partition_point(|other| *other < claim);
                if at == 0 {
                    self.replan.extend(pod.claims.iter().map(|(_, node)| node.clone()));
                }
                pod.claims.insert(at, claim.clone());
                node.selected.insert(name.clone());
            }
        }
    }

    fn unselect(&mut self, key: &Key) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        if let Some(selector) = node.input.selector()
            && let Some(selectors) = self.selectors.get_mut(&key.namespace)
        {
            selectors.remove(key, selector);
            if selectors.is_empty() {
                self.selectors.remove(&key.namespace);
            }
        }
        for pod in std::mem::take(&mut node.selected) {
            if let Some(pod) = self.pods.get_mut(&pod) {
                pod.claims.retain(|(_, node)| node != key);
                self.replan.extend(pod.claims.iter().map(|(_, node)| node.clone()));
            }
        }
    }
}
