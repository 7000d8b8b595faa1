//! A partial pod type: only the fields that the reconciler uses are deserialized.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;

use crate::reconcile::{ContainerInput, Key, PodInput, container_id};

/// The deserialized part of a pod.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = "Pod")]
pub(super) struct SlimPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SlimSpec,
    #[serde(default)]
    status: SlimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimSpec {
    node_name: Option<String>,
    #[serde(default)]
    containers: Vec<SlimContainer>,
    #[serde(default)]
    init_containers: Vec<SlimContainer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimContainer {
    name: String,
    #[serde(default)]
    ports: Vec<SlimPort>,
    restart_policy: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimPort {
    name: Option<String>,
    container_port: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimStatus {
    // Some API servers send `null` instead of an empty list.
    container_statuses: Option<Vec<SlimContainerStatus>>,
    init_container_statuses: Option<Vec<SlimContainerStatus>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(default)]
    last_state: SlimState,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SlimState {
    terminated: Option<SlimTerminated>,
}

#[derive(Debug, Clone, Deserialize)]
struct SlimTerminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

impl SlimPod {
    pub(super) fn into_input(self) -> (Key, PodInput) {
        let Self { metadata, spec, status } = self;
        let key = Key::of(&metadata);
        let statuses: Vec<_> =
            status.container_statuses.into_iter().chain(status.init_container_statuses).flatten().collect();
        let ids = |name: &str| {
            let found = statuses.iter().filter(|status| status.name == name);
            found
                .flat_map(|status| {
                    let before = status.last_state.terminated.as_ref().and_then(|ended| ended.container_id.as_deref());
                    status.container_id.as_deref().into_iter().chain(before)
                })
                .filter_map(container_id)
                .map(Into::into)
                .collect()
        };
        // Other init containers have terminated before the node starts.
        let sidecars = spec.init_containers.into_iter().filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.into_iter().chain(sidecars).map(|container| {
            let ports = container.ports.into_iter();
            ContainerInput {
                ids: ids(&container.name),
                ports: ports
                    .filter_map(|port| Some((port.name?.into_boxed_str(), u16::try_from(port.container_port).ok()?)))
                    .collect(),
                name: container.name.into_boxed_str(),
            }
        });
        let input = PodInput {
            uid: metadata.uid.unwrap_or_default().into_boxed_str(),
            host: spec.node_name.filter(|host| !host.is_empty()).map(String::into_boxed_str),
            // A `BTreeMap` iterates in key order.
            labels: metadata.labels.unwrap_or_default().into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            containers: containers.collect(),
        };
        (key, input)
    }
}

#[cfg(test)]
mod tests {
    use super::SlimPod;

    #[test]
    fn a_pod_is_reduced_to_the_fields_of_the_reconciler() {
        let id = "a".repeat(64);
        let pod: SlimPod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "tezos", "name": "rolling-node-0", "uid": "u", "labels": { "b": "2", "a": "1" } },
            "spec": {
                "nodeName": "host-1",
                "containers": [
                    { "name": "octez-node", "ports": [{ "name": "tezos-net", "containerPort": 9732 }, { "containerPort": 1 }] },
                    { "name": "other" },
                ],
                "initContainers": [{ "name": "config-init" }, { "name": "sidecar", "restartPolicy": "Always" }],
            },
            "status": {
                "initContainerStatuses": null,
                "containerStatuses": [
                    { "name": "octez-node", "containerID": format!("containerd://{id}"), "lastState": {
                        "terminated": { "containerID": format!("containerd://{}", "b".repeat(64)) } } },
                    { "name": "other", "containerID": "containerd://short", "lastState": {} },
                ],
            },
        }))
        .unwrap();
        let (key, pod) = pod.into_input();
        assert_eq!(key.to_string(), "tezos/rolling-node-0");
        assert_eq!((&*pod.uid, pod.host.as_deref()), ("u", Some("host-1")));
        assert_eq!((pod.label("a"), pod.label("b"), pod.label("c")), (Some("1"), Some("2"), None));
        let names: Vec<_> = pod.containers.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["octez-node", "other", "sidecar"]);
        let node = pod.container("octez-node").unwrap();
        assert_eq!(*node.ports, [("tezos-net".into(), 9732)]);
        assert_eq!(*node.ids, [id.into_boxed_str(), "b".repeat(64).into_boxed_str()]);
        assert!(pod.container("other").unwrap().ids.is_empty());
    }
}
