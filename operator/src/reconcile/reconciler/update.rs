//! Updates of a node's plan and status.

use std::{collections::BTreeSet, sync::Arc};

use chainscope_proto::v1::ObservedPod;

use super::{
    super::{
        input::NodeSpec,
        output::{StatusWrite, is_due},
        plan::{IdentityPlan, PodPlan, catalog},
        reason::Reason,
        status::{ComputedStatus, compute_status},
    },
    EventRecord, Key, NodeKind, Plan, Pod, Reconciler, Secret,
};
use crate::clock::Moment;

impl Reconciler {
    /// Computes the plan of a node and applies it to the desired state.
    pub(super) fn update_plan(&mut self, key: &Key, now_ns: i64) {
        let plan = self.compute_plan(key);
        let Some(node) = self.nodes.get_mut(key) else { return };
        let old = std::mem::replace(&mut node.plan, plan);
        if node.input.deleting {
            self.events.extend(recording_stopped(key, &node.input.uid, &old));
        }
        if let Some(event) = identity_rotated(&node.input.uid, key, &old.identity, &node.plan.identity) {
            self.events.push(event);
        }
        let name = key.to_string();
        let entry = match (node.input.deleting, self.desired.catalog.get(&name)) {
            (true, _) => None,
            // A specification that can no longer be parsed keeps its aliases and limits.
            (false, Some(known)) if node.input.spec.is_err() => {
                let mut known = (**known).clone();
                known.hosts.clear();
                Some(known)
            }
            (false, _) => Some(catalog(&node.input, &node.plan)),
        };
        match entry {
            Some(entry) if self.desired.catalog.get(&name).is_none_or(|known| **known != entry) => {
                self.desired.catalog.insert(name, Arc::new(entry));
                self.desired_changed = true;
            }
            None if self.desired.catalog.remove(&name).is_some() => self.desired_changed = true,
            _ => {}
        }
        let planned = node.plan.pods.iter().filter(|(_, pod)| pod.observed.is_some());
        let planned: Vec<_> = planned.filter_map(|(name, pod)| Some((name.clone(), pod.host.clone()?))).collect();
        self.withdraw(key, &old);
        for (name, host) in planned {
            self.hosts.add_node(&host, key, now_ns);
            self.publish_pod(&Key { namespace: key.namespace.clone(), name });
        }
    }

    /// What is observed of a pod: what its owners of both kinds have planned, and on which host.
    fn observed(&self, pod: &Key) -> Option<(Box<str>, Arc<ObservedPod>)> {
        let claimed = self.pods.get(pod)?;
        let plan = |kind| {
            let plan = self.nodes.get(claimed.owner(kind)?)?.plan.pods.get(&pod.name)?;
            (plan.uid == claimed.input.uid).then_some(plan)?.host.clone().zip(plan.observed.clone())
        };
        match (plan(NodeKind::TezosNode), plan(NodeKind::NodeTrace)) {
            (Some((host, node)), Some((_, trace))) => {
                Some((host, Arc::new(ObservedPod { trace: trace.trace.clone(), ..(*node).clone() })))
            }
            (node, trace) => node.or(trace),
        }
    }

    /// Applies what is observed of a pod to the desired state. An unchanged item keeps its allocation, so that consumers can
    /// compare by pointer.
    fn publish_pod(&mut self, pod: &Key) {
        let Some((host, observed)) = self.observed(pod) else { return };
        if !self.desired.hosts.contains_key(&*host) {
            self.desired.hosts.insert(host.to_string(), Arc::default());
        }
        let Some(pods) = self.desired.hosts.get_mut(&*host) else { return };
        if pods.get(&observed.uid).is_none_or(|known| *known != observed) {
            Arc::make_mut(pods).insert(observed.uid.clone(), observed);
            self.desired_changed = true;
        }
    }

    fn compute_plan(&mut self, key: &Key) -> Plan {
        let mut plan = Plan::default();
        let Some(node) = self.nodes.get(key) else { return plan };
        let tezos = node.input.tezos().filter(|_| !node.input.deleting);
        let secret_ref = tezos.and_then(|spec| spec.identity.secret_ref.as_ref());
        let allowed = self.secret_namespaces.contains(&*key.namespace);
        let secret = secret_ref.filter(|_| allowed).map(|one| Key::new(&key.namespace, &one.name));
        if node.secret != secret {
            let before = self.nodes.get_mut(key).and_then(|node| std::mem::replace(&mut node.secret, secret.clone()));
            if let Some(before) = before {
                self.release_secret(&before, key);
            }
        }
        let Some(node) = self.nodes.get(key) else { return plan };
        let spec = node.input.spec.as_ref().ok().filter(|_| !node.input.deleting);
        let (changed, references) = (&mut self.secrets_changed, &mut self.references);
        let input = secret.map(|secret| {
            let entry = self.secrets.entry(secret).or_insert_with(|| {
                *changed = true;
                *references += 1;
                Secret { reference: *references, input: super::SecretInput::default(), users: BTreeSet::new() }
            });
            entry.users.insert(key.clone());
            &entry.input
        });
        let Some(spec) = spec else { return plan };
        if let Some(tezos) = spec.tezos() {
            plan.identity = IdentityPlan::of(key, tezos, input, allowed);
        }
        plan.fault.clone_from(&node.fault);
        for pod_key in &node.selected {
            let Some(pod) = self.pods.get(pod_key) else { continue };
            match pod.owner(key.kind()) {
                Some(owner) if owner != key => {
                    plan.conflicts += 1;
                    plan.conflict.get_or_insert_with(|| (pod_key.clone(), owner.clone()));
                }
                _ => {
                    let pod_plan = match self.other_program(key, spec, pod) {
                        Some(message) => PodPlan::refused(&pod.input, Reason::PodConflict, message),
                        None => PodPlan::of(&node.input, spec, pod_key, &pod.input, &plan),
                    };
                    plan.pods.insert(pod_key.name.clone(), pod_plan);
                }
            }
        }
        plan
    }

    /// Why a `NodeTrace` cannot observe a pod of a `TezosNode`: one program of a pod is observed.
    fn other_program(&self, key: &Key, spec: &NodeSpec, pod: &Pod) -> Option<String> {
        let owner = pod.owner(NodeKind::TezosNode).filter(|_| key.kind() == NodeKind::NodeTrace)?;
        let (container, process) = self.nodes.get(owner)?.input.spec.as_ref().ok()?.program();
        let is_other = (container, process) != spec.program() && pod.input.container(container).is_some();
        let name = &owner.name;
        is_other.then(|| format!("the TezosNode {name} observes {process} in the container {container} of this pod"))
    }

    /// Removes a node from the users of a Secret.
    pub(super) fn release_secret(&mut self, secret: &Key, node: &Key) {
        if let Some(entry) = self.secrets.get_mut(secret) {
            entry.users.remove(node);
            if entry.users.is_empty() {
                self.secrets.remove(secret);
                self.secrets_changed = true;
            }
        }
    }

    /// Removes a previous plan of a node from the desired state, except for what is still observed.
    pub(super) fn withdraw(&mut self, key: &Key, plan: &Plan) {
        let still: BTreeSet<&str> =
            self.nodes.get(key).into_iter().flat_map(|node| observed_hosts(&node.plan)).collect();
        let left: Vec<Box<str>> = observed_hosts(plan).filter(|host| !still.contains(host)).map(Into::into).collect();
        for host in left {
            self.hosts.remove_node(&host, key);
        }
        for (name, pod) in plan.pods.iter().filter(|(_, pod)| pod.observed.is_some()) {
            let Some(host) = pod.host.as_deref() else { continue };
            let pod_key = Key { namespace: key.namespace.clone(), name: name.clone() };
            match self.observed(&pod_key) {
                Some((now, observed)) if *now == *host && *observed.uid == *pod.uid => self.publish_pod(&pod_key),
                _ => self.remove_pod(host, &pod.uid),
            }
        }
    }

    fn remove_pod(&mut self, host: &str, uid: &str) {
        let Some(pods) = self.desired.hosts.get_mut(host) else { return };
        if pods.contains_key(uid) {
            Arc::make_mut(pods).remove(uid);
            self.desired_changed = true;
        }
        if pods.is_empty() {
            self.desired.hosts.remove(host);
        }
    }

    /// Computes the status of a node.
    pub(super) fn update_status(&mut self, key: &Key, now: Moment) {
        let Some(node) = self.nodes.get_mut(key).filter(|node| !node.input.deleting) else { return };
        let ComputedStatus { status, has_restart_loop, drops } =
            compute_status(&node.input, &node.plan, &node.status, &self.hosts, &mut node.restarts, now.unix_ns);
        self.events.extend(EventRecord::of_change(key, &node.input.uid, &node.status, &status));
        let pods = &node.plan.pods;
        let exists = |uid: &str| pods.values().any(|pod| &*pod.uid == uid);
        if let Some(note) = node.drops.update(drops, exists, now.monotonic_ns) {
            self.events.push(EventRecord {
                node: key.clone(),
                uid: node.input.uid.clone(),
                is_warning: true,
                reason: "RecordsDropped".to_owned(),
                note,
            });
        }
        if has_restart_loop {
            self.restart_loops.insert(key.clone());
        } else {
            self.restart_loops.remove(key);
        }
        if status != node.written {
            self.unwritten.insert(key.clone());
        }
        node.status = status;
    }

    /// Returns the statuses that are due to be written, and marks them as written.
    pub(super) fn due_writes(&mut self, now_ns: i64) -> Vec<StatusWrite> {
        let mut due = Vec::new();
        self.unwritten.retain(|key| {
            let Some(node) = self.nodes.get_mut(key) else { return false };
            if is_due(&node.written, node.written_ns, &node.status, now_ns) {
                node.written.clone_from(&node.status);
                node.written_ns = now_ns;
                let (uid, status) = (node.input.uid.clone(), node.status.clone());
                due.push(StatusWrite { key: key.clone(), uid, status });
            }
            node.written != node.status
        });
        due
    }
}

/// Hosts of the observed pods of a plan.
fn observed_hosts(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.pods.values().filter(|pod| pod.observed.is_some()).filter_map(|pod| pod.host.as_deref())
}

/// The Event for the deletion of a node with observed pods.
pub(super) fn recording_stopped(key: &Key, uid: &str, plan: &Plan) -> Option<EventRecord> {
    let count = plan.pods.values().filter(|pod| pod.observed.is_some()).count();
    (count > 0).then(|| EventRecord {
        node: key.clone(),
        uid: uid.to_owned(),
        is_warning: false,
        reason: "RecordingStopped".to_owned(),
        note: format!("{} deleted; recording of {count} pods stopped", key.kind()),
    })
}

/// The Event for a changed identity in a Secret.
fn identity_rotated(uid: &str, key: &Key, old: &IdentityPlan, new: &IdentityPlan) -> Option<EventRecord> {
    let (IdentityPlan::Secret { json: old, .. }, IdentityPlan::Secret { json: new, peer_id }) = (old, new) else {
        return None;
    };
    (old != new).then(|| EventRecord {
        node: key.clone(),
        uid: uid.to_owned(),
        is_warning: false,
        reason: "IdentityRotated".to_owned(),
        note: format!("the Secret contains a new identity: {peer_id}"),
    })
}
