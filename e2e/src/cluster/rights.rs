//! Rights of a ServiceAccount: those that it was given, and those that it used.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Cluster;
use super::release::RELEASE;

/// A verb on a resource: API group, resource with its subresource, verb.
pub type Right = (String, String, String);

/// Rights of the operator that the chart gives and that nobody notes here, each with its reason.
const UNUSED: &[(&str, &str, &str)] = &[
    ("leases", "create", "the chart makes the Lease; the operator makes it anew if someone deleted it"),
    ("secrets", "create", "an apply (patch) that makes something is checked for it, which the audit log does not note"),
    ("configmaps", "create", "as for secrets"),
];

impl Cluster {
    /// Fails unless each account of the release used only what it was given, and all of that but for [`UNUSED`].
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_rights_are_used(&self) {
        for account in ["operator", "aggregator", "agent"] {
            let name = format!("{RELEASE}-{account}");
            let granted = self.granted(RELEASE, &name);
            let (used, refused) = self.used(RELEASE, &name);
            assert_eq!(refused, BTreeSet::new(), "{account} was refused");
            let more: Vec<_> = used.difference(&granted).collect();
            assert!(more.is_empty(), "{account} used what only others gave it: {more:?}");
            let unused: BTreeSet<_> =
                granted.difference(&used).map(|(_, resource, verb)| (&**resource, &**verb)).collect();
            let excused = UNUSED.iter().filter(|_| account == "operator").map(|&(resource, verb, _)| (resource, verb));
            assert_eq!(
                unused,
                excused.collect(),
                "{account} has rights without a use, or uses one that is said to have none"
            );
            // The agent has no token for the API server at all.
            assert_eq!(account == "agent", granted.is_empty() && used.is_empty(), "{account}: {granted:?}, {used:?}");
        }
    }

    /// Every right that a ServiceAccount has by bindings of its own, in whatever namespace.
    ///
    /// # Panics
    /// If the cluster does not tell.
    #[must_use]
    pub fn granted(&self, namespace: &str, account: &str) -> BTreeSet<Right> {
        let bindings = self.find("clusterrolebindings,rolebindings --all-namespaces").expect("bindings");
        let is_ours = |subject: &Value| {
            subject["kind"] == "ServiceAccount" && subject["namespace"] == namespace && subject["name"] == account
        };
        let mut rights = BTreeSet::new();
        for binding in list(&bindings["items"]).iter().filter(|binding| list(&binding["subjects"]).iter().any(is_ours))
        {
            let role = binding["roleRef"]["name"].as_str().expect("a role");
            let role = match (binding["roleRef"]["kind"].as_str(), binding["metadata"]["namespace"].as_str()) {
                (Some("Role"), Some(namespace)) => format!("role {role} --namespace {namespace}"),
                _ => format!("clusterrole {role}"),
            };
            let role = self.find(&role).unwrap_or_else(|| panic!("no {role}"));
            for rule in list(&role["rules"]) {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        rights.extend(texts(&rule["verbs"]).map(|verb| (group.clone(), resource.clone(), verb)));
                    }
                }
            }
        }
        rights
    }

    /// Every right that a ServiceAccount used so far, and what it was refused. Without what everybody may, such as to ask for the
    /// server's version.
    ///
    /// # Panics
    /// If the cluster does not [note requests](super::Setup::audit).
    #[must_use]
    pub fn used(&self, namespace: &str, account: &str) -> (BTreeSet<Right>, BTreeSet<Right>) {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for request in self.audit().iter().filter(|request| request["user"]["username"] == user.as_str()) {
            let object = &request["objectRef"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut resource = text(&object["resource"]);
            if resource.is_empty() {
                continue;
            }
            if let Some(part) = object["subresource"].as_str() {
                resource = format!("{resource}/{part}");
            }
            let right = (text(&object["apiGroup"]), resource, text(&request["verb"]));
            match request["annotations"]["authorization.k8s.io/decision"].as_str() {
                Some("allow") => used.insert(right),
                _ => refused.insert(right),
            };
        }
        (used, refused)
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(value: &Value) -> impl Iterator<Item = String> + '_ {
    list(value).iter().filter_map(Value::as_str).map(str::to_owned)
}
