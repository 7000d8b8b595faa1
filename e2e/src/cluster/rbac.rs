//! RBAC permissions of a ServiceAccount: granted, and used according to the audit log.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Cluster;
use super::release::RELEASE;

/// A verb on a resource: API group, resource with its subresource, verb.
pub type Permission = (String, String, String);

/// Permissions of the operator that the audit log does not show, each with the reason.
const UNUSED: &[(&str, &str, &str)] = &[
    ("leases", "create", "the chart creates the Lease; the operator recreates it after a deletion"),
    ("secrets", "create", "checked for an apply (patch) that creates an object; the audit log shows the patch only"),
    ("configmaps", "create", "as for secrets"),
];

impl Cluster {
    /// Fails unless each account of the release has used exactly its permissions, except for [`UNUSED`].
    ///
    /// # Panics
    /// If one is unused, missing or not its own.
    pub fn assert_permissions_are_used(&self) {
        for account in ["operator", "aggregator", "agent"] {
            let name = format!("{RELEASE}-{account}");
            let granted = self.granted(RELEASE, &name);
            let (used, refused) = self.used(RELEASE, &name);
            assert_eq!(refused, BTreeSet::new(), "requests of {account} were refused");
            let more: Vec<_> = used.difference(&granted).collect();
            assert!(more.is_empty(), "{account} used permissions that its own bindings do not grant: {more:?}");
            let unused: BTreeSet<_> =
                granted.difference(&used).map(|(_, resource, verb)| (&**resource, &**verb)).collect();
            let excused = UNUSED.iter().filter(|_| account == "operator").map(|&(resource, verb, _)| (resource, verb));
            assert_eq!(
                unused,
                excused.collect(),
                "{account} has unused permissions, or uses one that is listed as unused"
            );
            // The agent has no token for the API server at all.
            assert_eq!(account == "agent", granted.is_empty() && used.is_empty(), "{account}: {granted:?}, {used:?}");
        }
    }

    /// Permissions that bindings to a ServiceAccount grant, in all namespaces.
    ///
    /// # Panics
    /// If the bindings cannot be listed.
    #[must_use]
    pub fn granted(&self, namespace: &str, account: &str) -> BTreeSet<Permission> {
        let bindings = self.find("clusterrolebindings,rolebindings --all-namespaces").expect("bindings");
        let is_ours = |subject: &Value| {
            subject["kind"] == "ServiceAccount" && subject["namespace"] == namespace && subject["name"] == account
        };
        let mut permissions = BTreeSet::new();
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
                        permissions.extend(texts(&rule["verbs"]).map(|verb| (group.clone(), resource.clone(), verb)));
                    }
                }
            }
        }
        permissions
    }

    /// Permissions that a ServiceAccount has used so far, and those it was refused; without paths that are not resources, such as
    /// the server's version.
    ///
    /// # Panics
    /// If the cluster has no [audit log](super::Setup::audit).
    #[must_use]
    pub fn used(&self, namespace: &str, account: &str) -> (BTreeSet<Permission>, BTreeSet<Permission>) {
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
            let permission = (text(&object["apiGroup"]), resource, text(&request["verb"]));
            match request["annotations"]["authorization.k8s.io/decision"].as_str() {
                Some("allow") => used.insert(permission),
                _ => refused.insert(permission),
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
