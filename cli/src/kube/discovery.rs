//! The aggregator of a cluster, by the labels of the chart.

use anyhow::Context as _;
use serde::Deserialize;

use super::kubectl::Kubectl;
use crate::failure::{self, Exit, Failure};

/// Labels of the aggregator's Service and StatefulSet that no value of the chart changes.
const LABELS: &str = "app.kubernetes.io/part-of=chainscope,app.kubernetes.io/component=aggregator";
/// Name of the port of the API.
const API_PORT: &str = "api";

/// The aggregator of an installation.
#[derive(Debug)]
pub(super) struct Aggregator {
    pub(super) namespace: String,
    /// Name of its Service.
    pub(super) service: String,
    /// Port of the API.
    pub(super) port: u16,
    /// `auth.mode` of the chart: `kubernetes`, `token-file` or `none`.
    pub(super) auth: String,
    /// Where the CA bundle is; `None` without TLS.
    ca: Option<Bundle>,
}

/// A key of a ConfigMap or of a Secret.
#[derive(Debug, PartialEq, Eq)]
struct Bundle {
    kind: &'static str,
    name: String,
    key: String,
}

#[derive(Debug, Deserialize)]
struct List {
    items: Vec<Item>,
}

/// A Service or a StatefulSet.
#[derive(Debug, Deserialize)]
struct Item {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    ports: Vec<Port>,
    template: Template,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(default)]
    name: String,
    port: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    containers: Vec<Container>,
    volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
struct Container {
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    config_map: Option<Source>,
    secret: Option<Source>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    /// Of a ConfigMap.
    name: Option<String>,
    /// Of a Secret.
    secret_name: Option<String>,
    #[serde(default)]
    items: Vec<Key>,
}

#[derive(Debug, Deserialize)]
struct Key {
    key: String,
}

/// Finds the only aggregator of a namespace, or of the cluster.
pub(super) fn find(kubectl: &Kubectl, namespace: Option<&str>) -> anyhow::Result<Aggregator> {
    let scope = namespace.map_or_else(|| "--all-namespaces".to_owned(), |name| format!("--namespace={name}"));
    let list: List =
        kubectl.json(&["get", "services,statefulsets", "-l", LABELS, &scope, "-o", "json"]).map_err(|error| {
            if failure::exit(&error) == Exit::Refused && failure::hint(&error).is_none() && namespace.is_none() {
                let hint = "--namespace NAMESPACE, that of Chainscope, needs the right to list its Services and StatefulSets only";
                return Failure::refused(failure::one_line(&error)).hint(hint).into();
            }
            error
        })?;
    let place =
        namespace.map_or_else(|| kubectl.context(), |name| format!("namespace {name} of {}", kubectl.context()));
    choose(list, &place)
}

fn choose(list: List, place: &str) -> anyhow::Result<Aggregator> {
    let (services, sets): (Vec<_>, Vec<_>) = list.items.into_iter().partition(|item| item.kind == "Service");
    // The Service of the metrics has another port.
    let with_port = |service| Some((service, api_port(service)?));
    let services: Vec<(&Item, u16)> = services.iter().filter_map(with_port).collect();
    let (service, port) = match services.as_slice() {
        [(service, port)] => (service, *port),
        [] => {
            let failure = Failure::new(format!("{place} has no aggregator of Chainscope"));
            let hint = "`helm install chainscope …` installs it; --namespace and --context select another place";
            return Err(failure.hint(hint).into());
        }
        several => {
            let names: Vec<_> =
                several.iter().map(|(item, _)| format!("{}/{}", item.metadata.namespace, item.metadata.name)).collect();
            let failure = Failure::refused(format!("{place} has several aggregators: {}", names.join(", ")));
            return Err(failure.hint("--namespace NAMESPACE says which one").into());
        }
    };
    let Metadata { name, namespace } = &service.metadata;
    let set = sets.iter().find(|set| set.metadata.name == *name && set.metadata.namespace == *namespace);
    let set = set.with_context(|| format!("namespace {namespace} has no StatefulSet {name}"))?;
    let pod = &set.spec.template.spec;
    let mut arguments = pod.containers.iter().flat_map(|container| &container.args);
    let auth =
        arguments.clone().find_map(|argument| argument.strip_prefix("--auth=")).unwrap_or("kubernetes").to_owned();
    let ca = match arguments.any(|argument| argument == "--api-tls") {
        true => Some(bundle(&pod.volumes).with_context(|| format!("StatefulSet {name} has no volume \"ca\""))?),
        false => None,
    };
    Ok(Aggregator { namespace: namespace.clone(), service: name.clone(), port, auth, ca })
}

fn api_port(service: &Item) -> Option<u16> {
    service.spec.ports.iter().find(|port| port.name == API_PORT).map(|port| port.port)
}

fn bundle(volumes: &[Volume]) -> Option<Bundle> {
    let volume = volumes.iter().find(|volume| volume.name == "ca")?;
    let (kind, source) = match (&volume.config_map, &volume.secret) {
        (Some(source), _) => ("configmap", source),
        (None, source) => ("secret", source.as_ref()?),
    };
    let name = source.name.as_ref().or(source.secret_name.as_ref())?.clone();
    let key = source.items.first().map_or("ca.crt", |item| &item.key).to_owned();
    Some(Bundle { kind, name, key })
}

impl Aggregator {
    /// The CA bundle that verifies its certificate; `None` without TLS.
    pub(super) fn ca(&self, kubectl: &Kubectl) -> anyhow::Result<Option<String>> {
        let Some(Bundle { kind, name, key }) = &self.ca else { return Ok(None) };
        let decode = if *kind == "secret" { " | base64decode" } else { "" };
        let template = format!("go-template={{{{index .data {key:?}{decode}}}}}");
        kubectl.text(&["get", kind, name, "--namespace", &self.namespace, "-o", &template]).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Bundle, choose};

    fn service(namespace: &str) -> Value {
        json!({
            "kind": "Service", "metadata": {"name": "cs-aggregator", "namespace": namespace},
            "spec": {"clusterIP": "10.0.0.7", "ports": [{"name": "ingest", "port": 17733}, {"name": "api", "port": 17732}]},
        })
    }

    fn set(arguments: &[&str], volume: &Value) -> Value {
        json!({
            "kind": "StatefulSet", "metadata": {"name": "cs-aggregator", "namespace": "chainscope"},
            "spec": {"replicas": 1, "template": {"spec": {
                "containers": [{"name": "aggregator", "args": arguments}], "volumes": [{"name": "data", "emptyDir": {}}, volume],
            }}},
        })
    }

    fn chosen(items: &[Value]) -> anyhow::Result<super::Aggregator> {
        choose(serde_json::from_value(json!({"kind": "List", "items": items})).unwrap(), "the current context")
    }

    #[test]
    fn the_chart_says_how_the_api_is_served() {
        let volume =
            json!({"name": "ca", "configMap": {"name": "cs-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
        let metrics = json!({
            "kind": "Service", "metadata": {"name": "cs-aggregator-metrics", "namespace": "chainscope"},
            "spec": {"clusterIP": "None", "ports": [{"name": "metrics", "port": 17739}]},
        });
        let items = [service("chainscope"), metrics, set(&["--api-tls", "--auth=kubernetes"], &volume)];
        let found = chosen(&items).unwrap();
        assert_eq!(
            (found.namespace.as_str(), found.service.as_str(), found.port),
            ("chainscope", "cs-aggregator", 17732)
        );
        let bundle = |kind, name: &str, key: &str| Some(Bundle { kind, name: name.into(), key: key.into() });
        assert_eq!((found.auth.as_str(), found.ca), ("kubernetes", bundle("configmap", "cs-ca", "ca.crt")));
        let volume =
            json!({"name": "ca", "secret": {"secretName": "trust", "items": [{"key": "root.pem", "path": "ca.crt"}]}});
        let found = chosen(&[service("chainscope"), set(&["--api-tls", "--auth=none"], &volume)]).unwrap();
        assert_eq!((found.auth.as_str(), found.ca), ("none", bundle("secret", "trust", "root.pem")));
        assert_eq!(chosen(&[service("chainscope"), set(&["--auth=token-file"], &volume)]).unwrap().ca, None);
    }

    #[test]
    fn none_and_several_are_errors() {
        let error = |items: &[Value]| chosen(items).unwrap_err().to_string();
        assert_eq!(error(&[]), "the current context has no aggregator of Chainscope");
        assert_eq!(
            error(&[service("a"), service("b")]),
            "the current context has several aggregators: a/cs-aggregator, b/cs-aggregator"
        );
        assert_eq!(
            error(&[service("b"), set(&[], &json!({"name": "x"}))]),
            "namespace b has no StatefulSet cs-aggregator"
        );
    }
}
