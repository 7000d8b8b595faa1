//! The state of the reconciler, and the tracking of what each change affects.

mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    drops::DropTracker,
    hosts::Hosts,
    index::Selectors,
    input::{Key, NodeInput, NodeKind, PodInput, SecretInput},
    output::{EventRecord, Outcome},
    plan::Plan,
    reason::Reason,
    restarts::Restarts,
};
use crate::{
    clock::Moment,
    crd::TezosNodeStatus,
    desired::{Desired, Reports},
};

/// Computes the desired state and the statuses.
#[derive(Debug, Default)]
pub struct Reconciler {
    /// Namespaces in which the operator may read Secrets.
    secret_namespaces: BTreeSet<String>,
    nodes: BTreeMap<Key, Node>,
    pods: BTreeMap<Key, Pod>,
    selectors: BTreeMap<Arc<str>, Selectors>,
    secrets: BTreeMap<Key, Secret>,
    hosts: Hosts,
    desired: Desired,
    /// Whether `desired` changed since it was last returned.
    desired_changed: bool,
    /// Whether the set of referenced Secrets changed since it was last reported.
    secrets_changed: bool,
    /// Secrets that were referenced so far.
    references: u64,
    /// Nodes whose plan has to be computed.
    stale_plans: BTreeSet<Key>,
    /// Nodes whose status has to be computed.
    stale_statuses: BTreeSet<Key>,
    /// Nodes whose status differs from the written one.
    unwritten: BTreeSet<Key>,
    /// Nodes with a restart loop: their status changes with elapsed time alone.
    restart_loops: BTreeSet<Key>,
    events: Vec<EventRecord>,
}

#[derive(Debug)]
struct Node {
    input: NodeInput,
    /// [`NodeInput::fault`], computed once for each specification.
    fault: Option<(Reason, String)>,
    /// The referenced Secret, if the operator may read it.
    secret: Option<Key>,
    /// Pods that match the selector, including those of older nodes.
    selected: BTreeSet<Key>,
    plan: Plan,
    status: TezosNodeStatus,
    written: TezosNodeStatus,
    written_ns: i64,
    restarts: BTreeMap<Box<str>, Restarts>,
    drops: DropTracker,
}

#[derive(Debug)]
struct Pod {
    input: PodInput,
    /// Creation time and key of the nodes that select the pod, the oldest first. The first of each kind owns the pod.
    claims: Vec<(i64, Key)>,
}

impl Pod {
    fn owner(&self, kind: NodeKind) -> Option<&Key> {
        self.claims.iter().map(|(_, node)| node).find(|node| node.kind() == kind)
    }
}

#[derive(Debug)]
struct Secret {
    /// Number of this reference to the Secret; its content is discarded with its last user.
    reference: u64,
    input: SecretInput,
    users: BTreeSet<Key>,
}

/// Numbers of objects, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// `TezosNode` and `NodeTrace` resources.
    pub nodes: usize,
    /// Those with condition `Ready=True`.
    pub ready: usize,
    /// Pods in the watch cache.
    pub pods_known: usize,
    /// Pods in the desired state.
    pub pods_observed: usize,
    /// Hosts with observed pods and a connected agent.
    pub agents_connected: usize,
    /// Hosts with observed pods and without a connected agent.
    pub agents_disconnected: usize,
}

impl Reconciler {
    /// Creates an empty reconciler. `secret_namespaces` are the namespaces in which the operator may read Secrets.
    pub fn new(secret_namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { secret_namespaces: secret_namespaces.into_iter().collect(), ..Self::default() }
    }

    /// Starts a leadership term: everything is computed again, from the stored statuses.
    pub fn begin(&mut self, monotonic_ns: i64) {
        self.hosts.reset(monotonic_ns);
        for node in self.nodes.values_mut() {
            node.status.clone_from(&node.input.status);
            node.written.clone_from(&node.input.status);
            node.written_ns = i64::MIN;
            node.restarts.clear();
            node.drops = DropTracker::default();
        }
        self.restart_loops.clear();
        self.events.clear();
        self.desired_changed = true;
        self.stale_plans = self.nodes.keys().cloned().collect();
    }

    /// Applies a created or updated node.
    pub fn apply_node(&mut self, input: NodeInput) {
        let key = input.key.clone();
        let is_recreated = self.nodes.get(&key).is_some_and(|node| node.input.uid != input.uid);
        if is_recreated {
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
                drops: DropTracker::default(),
                fault: input.fault(),
                input,
            };
            self.nodes.insert(key.clone(), node);
            self.select_pods(&key);
            return;
        };
        let old = &node.input;
        if old.generation == input.generation && old.deleting == input.deleting && old.spec == input.spec {
            // A write of the status, usually by this operator.
            node.input.status = input.status;
            return;
        }
        node.fault = input.fault();
        if old.selector() == input.selector() {
            node.input = input;
            self.mark_with_neighbours(&key);
            return;
        }
        self.unselect_pods(&key);
        if let Some(node) = self.nodes.get_mut(&key) {
            node.input = input;
        }
        self.select_pods(&key);
    }

    /// Removes a deleted node.
    pub fn delete_node(&mut self, key: &Key) {
        self.unselect_pods(key);
        let Some(node) = self.nodes.remove(key) else { return };
        self.events.extend(update::recording_stopped(key, &node.input.uid, &node.plan));
        self.withdraw(key, &node.plan);
        self.desired.catalog.remove(&key.to_string());
        self.desired_changed = true;
        if let Some(secret) = &node.secret {
            self.release_secret(secret, key);
        }
        for set in [&mut self.stale_plans, &mut self.stale_statuses, &mut self.unwritten, &mut self.restart_loops] {
            set.remove(key);
        }
    }

    /// Applies a created or updated pod.
    pub fn apply_pod(&mut self, key: &Key, input: PodInput) {
        let claims = self.claims(key, &input);
        let before = self.pods.insert(key.clone(), Pod { input, claims });
        let now = self.pods.get(key);
        if before.as_ref().map(|pod| &pod.input) == now.map(|pod| &pod.input) {
            return;
        }
        let before = before.map(|pod| pod.claims).unwrap_or_default();
        let claims = now.map(|pod| pod.claims.clone()).unwrap_or_default();
        self.update_claims(key, &before, &claims);
    }

    /// Removes a deleted pod.
    pub fn delete_pod(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            self.update_claims(key, &pod.claims, &[]);
        }
    }

    /// Keys of all pods.
    pub fn pods(&self) -> impl Iterator<Item = &Key> {
        self.pods.keys()
    }

    /// Keys of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Key> {
        self.nodes.keys()
    }

    /// Keys of the Secrets to watch, and a number that changes when a Secret is to be read again.
    pub fn secrets(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.secrets.iter().map(|(key, secret)| (key, secret.reference))
    }

    /// Whether a referenced Secret has not been read yet.
    pub fn awaits_secrets(&self) -> bool {
        self.secrets.values().any(|secret| secret.input == SecretInput::Pending)
    }

    /// Applies the state of a Secret.
    pub fn set_secret(&mut self, key: &Key, input: SecretInput) {
        if let Some(secret) = self.secrets.get_mut(key).filter(|secret| secret.input != input) {
            secret.input = input;
            self.stale_plans.extend(secret.users.iter().cloned());
        }
    }

    /// Applies the reports of all agents.
    pub fn set_reports(&mut self, reports: &Reports) {
        self.hosts.apply_reports(reports, &mut self.stale_statuses);
    }

    /// Schedules a failed status write again.
    pub fn write_failed(&mut self, key: &Key) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.written.clone_from(&node.input.status);
            self.unwritten.insert(key.clone());
        }
    }

    /// Computes everything that is affected by the changes since the last call and by the elapsed time.
    pub fn reconcile(&mut self, now: Moment) -> Outcome {
        let stale_plans = std::mem::take(&mut self.stale_plans);
        for key in &stale_plans {
            self.update_plan(key, now.monotonic_ns);
        }
        self.hosts.tick(now.monotonic_ns, &mut self.stale_statuses);
        let mut stale_statuses = std::mem::take(&mut self.stale_statuses);
        stale_statuses.extend(stale_plans);
        stale_statuses.extend(self.restart_loops.iter().cloned());
        for key in stale_statuses {
            self.update_status(&key, now);
        }
        let desired = std::mem::take(&mut self.desired_changed).then(|| Arc::new(self.desired.clone()));
        Outcome {
            desired,
            secrets_changed: std::mem::take(&mut self.secrets_changed),
            statuses: self.due_writes(now.monotonic_ns),
            events: std::mem::take(&mut self.events),
        }
    }

    /// Numbers of objects.
    pub fn counts(&self) -> Counts {
        let (agents_connected, agents_disconnected) = self.hosts.counts();
        let is_ready = |node: &&Node| {
            node.status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        Counts {
            nodes: self.nodes.len(),
            ready: self.nodes.values().filter(is_ready).count(),
            pods_known: self.pods.len(),
            pods_observed: self.desired.hosts.values().map(|pods| pods.len()).sum(),
            agents_connected,
            agents_disconnected,
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

    fn update_claims(&mut self, pod: &Key, before: &[(i64, Key)], now: &[(i64, Key)]) {
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
        self.stale_plans.extend(before.iter().chain(now).map(|(_, node)| node.clone()));
    }

    /// Schedules the plan of a node, and those of the other nodes that select its pods.
    fn mark_with_neighbours(&mut self, key: &Key) {
        let selected = self.nodes.get(key).into_iter().flat_map(|node| &node.selected);
        let claims = selected.filter_map(|pod| self.pods.get(pod)).flat_map(|pod| &pod.claims);
        self.stale_plans.extend(claims.map(|(_, node)| node.clone()));
        self.stale_plans.insert(key.clone());
    }

    /// Adds the selector of a node to the index and claims the pods that match it.
    fn select_pods(&mut self, key: &Key) {
        self.stale_plans.insert(key.clone());
        let Some(node) = self.nodes.get_mut(key) else { return };
        let Some(selector) = node.input.selector() else { return };
        self.selectors.entry(key.namespace.clone()).or_default().insert(key, selector);
        let claim = (node.input.created_ns, key.clone());
        let first = Key { namespace: key.namespace.clone(), name: "".into() };
        let in_namespace = self.pods.range_mut(first..).take_while(|(pod, _)| pod.namespace == key.namespace);
        for (name, pod) in in_namespace {
            if selector.matches(|label| pod.input.label(label)) {
                let at = pod.claims.partition_point(|other| *other < claim);
                self.stale_plans.extend(pod.claims.iter().map(|(_, node)| node.clone()));
                pod.claims.insert(at, claim.clone());
                node.selected.insert(name.clone());
            }
        }
    }

    /// Removes the selector of a node from the index, with its claims.
    fn unselect_pods(&mut self, key: &Key) {
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
                self.stale_plans.extend(pod.claims.iter().map(|(_, node)| node.clone()));
            }
        }
    }
}
