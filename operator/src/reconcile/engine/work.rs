//! Making a node's plan and status again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    super::{
        judge,
        output::{StatusWrite, is_due},
        plan::{IdentityPlan, PodPlan, catalog},
    },
    Engine, Happening, Key, Plan, Secret,
};

impl Engine {
    /// Makes a node's plan and takes it over into what is desired.
    pub(super) fn plan(&mut self, key: &Key, now_ns: i64) {
        let plan = self.planned(key);
        let Some(node) = self.nodes.get_mut(key) else { return };
        let mut old = std::mem::replace(&mut node.plan, plan);
        if node.input.deleting {
            self.events.extend(stopped(key, &node.input.uid, &old));
        }
        if let Some(event) = rotated(&node.input.uid, key, &old.identity, &node.plan.identity) {
            self.events.push(event);
        }
        // What stays as it is stays the same allocation, so that nobody downstream looks at it.
        for (name, pod) in &mut node.plan.pods {
            let Some(before) = old.pods.get(name) else { continue };
            if before.observed.is_some() && before.observed == pod.observed {
                pod.observed.clone_from(&before.observed);
                if before.host == pod.host {
                    old.pods.remove(name);
                }
            }
        }
        let name = key.to_string();
        let entry = match (node.input.deleting, self.desired.catalog.get(&name)) {
            (true, _) => None,
            // Who can no longer be read keeps names and limits.
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
                self.unpublished = true;
            }
            None if self.desired.catalog.remove(&name).is_some() => self.unpublished = true,
            _ => {}
        }
        let wanted: Vec<_> =
            node.plan.pods.values().filter_map(|pod| pod.host.clone().zip(pod.observed.clone())).collect();
        self.withdraw(key, &mut old);
        for (host, observed) in wanted {
            self.hosts.enter(&host, key, now_ns);
            if !self.desired.hosts.contains_key(&*host) {
                self.desired.hosts.insert(host.to_string(), Arc::default());
            }
            let Some(pods) = self.desired.hosts.get_mut(&*host) else { continue };
            if pods.get(&observed.uid).is_some_and(|known| Arc::ptr_eq(known, &observed)) {
                continue;
            }
            Arc::make_mut(pods).insert(observed.uid.clone(), observed);
            self.unpublished = true;
        }
    }

    fn planned(&mut self, key: &Key) -> Plan {
        let mut plan = Plan::default();
        let Some(node) = self.nodes.get(key) else { return plan };
        let spec = node.input.spec.as_ref().ok().filter(|_| !node.input.deleting);
        let secret_ref = spec.and_then(|spec| spec.identity.secret_ref.as_ref());
        let allowed = self.secret_namespaces.contains(&*key.namespace);
        let secret = secret_ref.filter(|_| allowed).map(|one| Key::new(&key.namespace, &one.name));
        if node.secret != secret {
            let before = self.nodes.get_mut(key).and_then(|node| std::mem::replace(&mut node.secret, secret.clone()));
            if let Some(before) = before {
                self.let_go(&before, key);
            }
        }
        let Some(node) = self.nodes.get(key) else { return plan };
        let spec = node.input.spec.as_ref().ok().filter(|_| !node.input.deleting);
        let changed = &mut self.secrets_changed;
        let input = secret.map(|secret| {
            let entry = self.secrets.entry(secret).or_insert_with(|| {
                *changed = true;
                Secret::default()
            });
            entry.users.insert(key.clone());
            &entry.input
        });
        let Some(spec) = spec else { return plan };
        plan.identity = IdentityPlan::of(key, spec, input, allowed);
        for pod_key in &node.selected {
            let Some(pod) = self.pods.get(pod_key) else { continue };
            match pod.claims.first() {
                Some((_, owner)) if owner != key => {
                    plan.taken += 1;
                    plan.taken_by.get_or_insert_with(|| (pod_key.clone(), owner.clone()));
                }
                _ => {
                    let pod_plan = PodPlan::of(&node.input, spec, pod_key, &pod.input, &plan.identity);
                    plan.pods.insert(pod_key.name.clone(), pod_plan);
                }
            }
        }
        plan
    }

    /// A node does not use a Secret any more.
    pub(super) fn let_go(&mut self, secret: &Key, node: &Key) {
        if let Some(entry) = self.secrets.get_mut(secret) {
            entry.users.remove(node);
            if entry.users.is_empty() {
                self.secrets.remove(secret);
                self.secrets_changed = true;
            }
        }
    }

    /// Takes a plan back, where another node has not taken its place already.
    pub(super) fn withdraw(&mut self, key: &Key, plan: &mut Plan) {
        let name = key.to_string();
        let still: BTreeSet<&str> = self.nodes.get(key).into_iter().flat_map(|node| hosts(&node.plan)).collect();
        let left: Vec<Box<str>> = hosts(plan).filter(|host| !still.contains(host)).map(Into::into).collect();
        for host in left {
            self.hosts.leave(&host, key);
        }
        let still: BTreeMap<&str, &str> = self
            .nodes
            .get(key)
            .into_iter()
            .flat_map(|node| node.plan.pods.values())
            .filter(|pod| pod.observed.is_some())
            .filter_map(|pod| Some((&*pod.uid, pod.host.as_deref()?)))
            .collect();
        for pod in plan.pods.values().filter(|pod| pod.observed.is_some()) {
            let Some(host) = pod.host.as_deref() else { continue };
            if still.get(&*pod.uid) == Some(&host) {
                continue;
            }
            let Some(pods) = self.desired.hosts.get_mut(host) else { continue };
            if pods.get(&*pod.uid).is_some_and(|known| known.node == name) {
                Arc::make_mut(pods).remove(&*pod.uid);
                self.unpublished = true;
            }
            if pods.is_empty() {
                self.desired.hosts.remove(host);
            }
        }
    }

    /// Makes a node's status.
    pub(super) fn judge(&mut self, key: &Key, now_ns: i64) {
        let Some(node) = self.nodes.get_mut(key).filter(|node| !node.input.deleting) else { return };
        let (status, looping) =
            judge::status(&node.input, &node.plan, &node.status, &self.hosts, &mut node.restarts, now_ns);
        self.events.extend(Happening::of_change(key, &node.input.uid, &node.status, &status));
        if let Some(note) = node.losses.note(&node.status.pods, &status.pods, now_ns) {
            self.events.push(Happening {
                node: key.clone(),
                uid: node.input.uid.clone(),
                good: false,
                reason: "RecordsDropped".to_owned(),
                note,
            });
        }
        if looping {
            self.looping.insert(key.clone());
        } else {
            self.looping.remove(key);
        }
        if status != node.written {
            self.unwritten.insert(key.clone());
        }
        node.status = status;
    }

    /// The statuses whose time has come.
    pub(super) fn due(&mut self, now_ns: i64) -> Vec<StatusWrite> {
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

/// Hosts that a plan observes pods on.
fn hosts(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.pods.values().filter(|pod| pod.observed.is_some()).filter_map(|pod| pod.host.as_deref())
}

/// The Event of a node that was deleted while pods of it were observed.
pub(super) fn stopped(key: &Key, uid: &str, plan: &Plan) -> Option<Happening> {
    let count = plan.pods.values().filter(|pod| pod.observed.is_some()).count();
    (count > 0).then(|| Happening {
        node: key.clone(),
        uid: uid.to_owned(),
        good: true,
        reason: "RecordingStopped".to_owned(),
        note: format!("deleted while {count} of its pods were observed; nothing more of them is recorded"),
    })
}

fn rotated(uid: &str, key: &Key, old: &IdentityPlan, new: &IdentityPlan) -> Option<Happening> {
    let (IdentityPlan::Secret { json: old, .. }, IdentityPlan::Secret { json: new, peer_id }) = (old, new) else {
        return None;
    };
    (old != new).then(|| Happening {
        node: key.clone(),
        uid: uid.to_owned(),
        good: true,
        reason: "IdentityRotated".to_owned(),
        note: format!("the Secret has a new identity, {peer_id}"),
    })
}
