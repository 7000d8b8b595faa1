//! A release of the chart in a cluster, and a client of its API.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use super::Cluster;
use super::forward::Forward;
use super::pki::Pair;
use crate::harness::api::Api;
use crate::harness::run;
use crate::harness::wait::until;
use crate::image::REGISTRY;

/// Name of the release and of its namespace.
pub const RELEASE: &str = "chainscope";
/// Port of the API.
const API: u16 = 17732;
/// Port of metrics and health, the same for every component.
const METRICS: u16 = 17739;

impl Cluster {
    /// Creates the namespace for [`Cluster::install`].
    ///
    /// # Panics
    /// If it exists.
    pub fn make_namespace(&self) {
        self.kubectl(&format!("create namespace {RELEASE}"));
        self.kubectl(&format!("label namespace {RELEASE} pod-security.kubernetes.io/enforce=privileged"));
    }

    /// Installs the chart with these values (`--set`) and waits until every pod is ready.
    ///
    /// # Panics
    /// After a timeout.
    pub fn install(&self, values: &[&str]) {
        let mut command = self.program("helm");
        command.args(["install", RELEASE, "charts/chainscope", "--namespace", RELEASE, "--wait", "--timeout", "3m"]);
        command.args(["--set", &format!("image.registry={REGISTRY}")]);
        for value in values {
            command.args(["--set", value]);
        }
        run(&mut command);
    }
}

impl Cluster {
    /// Creates or replaces the Secret `given-COMPONENT`, of a server's certificate.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn apply_certificate(&self, component: &str, pair: &Pair) {
        let files = format!("--cert {} --key {}", pair.certificate.display(), pair.key.display());
        let command =
            format!("create secret tls given-{component} --namespace {RELEASE} {files} --dry-run=client -o yaml");
        self.apply(&self.kubectl(&command));
    }

    /// Runs the chart's tests (`helm test`).
    ///
    /// # Panics
    /// If one fails.
    pub fn test_release(&self) {
        let mut command = self.program("helm");
        run(command.args(["test", RELEASE, "--namespace", RELEASE, "--timeout", "2m", "--logs"]));
    }

    /// Runs each query of the dashboards and rules in a Prometheus that scrapes every component of the release.
    ///
    /// # Panics
    /// If one returns nothing.
    pub fn test_queries(&self) {
        const QUERY: &str = "cd charts; source tools.sh; exec \"$(find_python)\" tests/live.py \"$@\"";
        let mut forwards = Vec::new();
        let mut command = Command::new("bash");
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(["-euc", QUERY, "live"]);
        for component in ["agent", "aggregator", "operator"] {
            let pods = self.find(&pods_of(component)).expect("pods");
            for pod in pods["items"].as_array().into_iter().flatten() {
                let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok()).expect("a pod's address");
                let forward = self.forward(SocketAddr::new(address, METRICS));
                command.arg(format!("{RELEASE}-{component}=127.0.0.1:{}", forward.port()));
                forwards.push(forward);
            }
        }
        run(&mut command);
    }
}

/// A client of the API and the port that is forwarded to it.
pub struct ApiClient {
    /// The API without a token.
    pub api: Api,
    _forward: Forward,
}

impl Cluster {
    /// A client of the API at the aggregator's Service, over TLS with the operator's CA.
    ///
    /// # Panics
    /// If there is no Service or no CA bundle.
    #[must_use]
    pub fn api_client(&self) -> ApiClient {
        let (bundle, forward) = self.service("aggregator", API);
        let name = format!("{RELEASE}-aggregator");
        ApiClient { api: Api::secure(forward.port(), &format!("{name}.{RELEASE}.svc"), &bundle), _forward: forward }
    }

    /// The CA bundle of Chainscope, and a port that is forwarded to one of its Services.
    ///
    /// # Panics
    /// If the Service does not exist.
    #[must_use]
    pub fn service(&self, component: &str, port: u16) -> (String, Forward) {
        let service = format!("service {RELEASE}-{component} --namespace {RELEASE}");
        let address =
            self.until("the address of a Service", &service, |found| found["spec"]["clusterIP"].as_str()?.parse().ok());
        let config_map = format!("configmap {RELEASE}-ca --namespace {RELEASE}");
        let bundle =
            self.until("the CA bundle", &config_map, |found| found["data"]["ca.crt"].as_str().map(str::to_owned));
        (bundle, self.forward(SocketAddr::new(address, port)))
    }

    /// Waits until a TezosNode's condition has that status, and returns its reason.
    ///
    /// # Panics
    /// After a timeout.
    pub fn condition(&self, namespace: &str, node: &str, kind: &str, status: &str) -> String {
        let resource = format!("tezosnode {node} --namespace {namespace}");
        self.until(&format!("{node} to be {kind}={status}"), &resource, |found| {
            let condition = find_condition(found, kind)?;
            (condition["status"] == status).then(|| condition["reason"].as_str().unwrap_or_default().to_owned())
        })
    }

    /// A metric of the first pod of a component, summed over its labels; `None` if the pod does not respond.
    #[must_use]
    pub fn metric(&self, component: &str, name: &str) -> Option<f64> {
        let pods = self.find(&pods_of(component))?;
        let address = pods["items"][0]["status"]["podIP"].as_str()?.parse().ok()?;
        let forward = self.forward(SocketAddr::new(address, METRICS));
        let (_, page) = Api::new(forward.port()).request("/metrics").filter(|(status, _)| *status == 200)?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
            rest.rsplit(' ').next()?.parse::<f64>().ok()
        };
        Some(page.lines().filter_map(value).sum())
    }

    /// Scales the aggregator to 0 or 1; with 0, waits until the pod is gone.
    ///
    /// # Panics
    /// After a timeout.
    pub fn scale_aggregator(&self, replicas: u8) {
        let name = format!("statefulset/{RELEASE}-aggregator");
        self.kubectl(&format!("scale {name} --namespace {RELEASE} --replicas {replicas}"));
        if replicas == 0 {
            self.until("the aggregator to be gone", &pods_of("aggregator"), |found| {
                found["items"].as_array()?.is_empty().then_some(())
            });
        }
    }

    /// Kills the container of a component with SIGKILL, and waits until it has been restarted.
    ///
    /// # Panics
    /// If there is no such pod, or it is not restarted in time.
    pub fn kill(&self, component: &str) {
        let pods = pods_of(component);
        let restarts = |found: &Value| {
            let status = &found["items"][0]["status"]["containerStatuses"][0];
            (status["ready"] == true).then(|| status["restartCount"].as_u64().unwrap_or_default())
        };
        let before = self.until(&format!("{component} to be ready"), &pods, restarts);
        let found = self.find(&pods).expect("pods");
        let id = found["items"][0]["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
        let id = id.trim_start_matches("containerd://");
        let host_name = found["items"][0]["spec"]["nodeName"].as_str().unwrap_or_default();
        let host = self.hosts().iter().find(|host| host.name == host_name).expect("host of the cluster");
        run(host.command("ctr").args(["--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id]));
        until(&format!("{component} to be restarted"), || restarts(&self.find(&pods)?).filter(|&count| count > before));
    }
}

/// Arguments of `kubectl get` for the pods of a component.
#[must_use]
pub fn pods_of(component: &str) -> String {
    format!("pods --namespace {RELEASE} --selector app.kubernetes.io/component={component}")
}

impl Cluster {
    /// A token of a ServiceAccount.
    ///
    /// # Panics
    /// If the account does not exist.
    #[must_use]
    pub fn token(&self, namespace: &str, account: &str) -> String {
        self.kubectl(&format!("create token {account} --namespace {namespace}")).trim().to_owned()
    }
}

/// A condition of a resource.
#[must_use]
pub fn find_condition<'a>(resource: &'a Value, kind: &str) -> Option<&'a Value> {
    resource["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
