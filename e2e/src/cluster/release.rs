//! Chainscope in a cluster: installed by its chart, asked through its Service.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use super::Cluster;
use super::forward::Forward;
use crate::harness::api::Api;
use crate::harness::run;
use crate::harness::wait::until;

/// Name of the release, and of its namespace.
pub const RELEASE: &str = "chainscope";
/// Port of the API.
const API: u16 = 17732;
/// Port of metrics and health, of every part.
const METRICS: u16 = 17739;

impl Cluster {
    /// Makes the namespace for [`Cluster::install`].
    ///
    /// # Panics
    /// If it is there.
    pub fn make_namespace(&self) {
        self.kubectl(&format!("create namespace {RELEASE}"));
        self.kubectl(&format!("label namespace {RELEASE} pod-security.kubernetes.io/enforce=privileged"));
    }

    /// Installs the chart with these values (`--set`), and waits until every pod is ready.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn install(&self, values: &[&str]) {
        let mut command = self.program("helm");
        command.args(["install", RELEASE, "charts/chainscope", "--namespace", RELEASE, "--wait", "--timeout", "3m"]);
        for value in values {
            command.args(["--set", value]);
        }
        run(&mut command);
    }
}

impl Cluster {
    /// The chart's own tests (`helm test`).
    ///
    /// # Panics
    /// If one fails.
    pub fn test_release(&self) {
        let mut command = self.program("helm");
        run(command.args(["test", RELEASE, "--namespace", RELEASE, "--timeout", "2m", "--logs"]));
    }

    /// Asks a real Prometheus, which scrapes every part of the release, each query of the dashboards and rules.
    ///
    /// # Panics
    /// If one returns nothing.
    pub fn test_queries(&self) {
        const ASK: &str = "cd charts; source tools.sh; exec \"$(find_python)\" tests/live.py \"$@\"";
        let mut ways = Vec::new();
        let mut command = Command::new("bash");
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(["-euc", ASK, "live"]);
        for component in ["agent", "aggregator", "operator"] {
            let pods = self.find(&pods_of(component)).expect("pods");
            for pod in pods["items"].as_array().into_iter().flatten() {
                let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok()).expect("a pod's address");
                let way = self.forward(SocketAddr::new(address, METRICS));
                command.arg(format!("{RELEASE}-{component}=127.0.0.1:{}", way.port()));
                ways.push(way);
            }
        }
        run(&mut command);
    }
}

/// The way to the API: open as long as it lives.
pub struct Door {
    /// The API, without a token.
    pub api: Api,
    _forward: Forward,
}

impl Cluster {
    /// The API through the aggregator's Service, with the certificate that the operator made for it.
    ///
    /// # Panics
    /// If there is no Service, or no certificate.
    #[must_use]
    pub fn door(&self) -> Door {
        let (authority, forward) = self.service("aggregator", API);
        let name = format!("{RELEASE}-aggregator");
        Door { api: Api::secure(forward.port(), &format!("{name}.{RELEASE}.svc"), &authority), _forward: forward }
    }

    /// The certificates that clients of Chainscope trust, and a port that leads to one of its Services.
    ///
    /// # Panics
    /// If there is no such Service.
    #[must_use]
    pub fn service(&self, component: &str, port: u16) -> (String, Forward) {
        let service = format!("service {RELEASE}-{component} --namespace {RELEASE}");
        let address =
            self.until("the address of a Service", &service, |found| found["spec"]["clusterIP"].as_str()?.parse().ok());
        let bundle = format!("configmap {RELEASE}-ca --namespace {RELEASE}");
        let authority = self
            .until("the authority's certificate", &bundle, |found| found["data"]["ca.crt"].as_str().map(str::to_owned));
        (authority, self.forward(SocketAddr::new(address, port)))
    }

    /// Waits until a TezosNode's condition is of that status, and returns its reason.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn condition(&self, namespace: &str, node: &str, kind: &str, status: &str) -> String {
        let resource = format!("tezosnode {node} --namespace {namespace}");
        self.until(&format!("{node} to be {kind}={status}"), &resource, |found| {
            let condition = find_condition(found, kind)?;
            (condition["status"] == status).then(|| condition["reason"].as_str().unwrap_or_default().to_owned())
        })
    }

    /// A metric of the first pod of a part of the release, added up over its labels; none while it does not answer.
    #[must_use]
    pub fn metric(&self, component: &str, name: &str) -> Option<f64> {
        let pods = self.find(&pods_of(component))?;
        let address = pods["items"][0]["status"]["podIP"].as_str()?.parse().ok()?;
        let way = self.forward(SocketAddr::new(address, METRICS));
        let (_, page) = Api::new(way.port()).request("/metrics").filter(|(status, _)| *status == 200)?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
            rest.rsplit(' ').next()?.parse::<f64>().ok()
        };
        Some(page.lines().filter_map(value).sum())
    }

    /// Has that many aggregators, none or one, and waits until there is none.
    ///
    /// # Panics
    /// If it goes on.
    pub fn scale_aggregator(&self, replicas: u8) {
        let name = format!("statefulset/{RELEASE}-aggregator");
        self.kubectl(&format!("scale {name} --namespace {RELEASE} --replicas {replicas}"));
        if replicas == 0 {
            self.until("the aggregator to be gone", &pods_of("aggregator"), |found| {
                found["items"].as_array()?.is_empty().then_some(())
            });
        }
    }

    /// Kills the program of a pod of the release with SIGKILL, and waits until its container runs again.
    ///
    /// # Panics
    /// If there is no such pod, or it does not come back.
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
        let host = self.hosts().iter().find(|host| host.name == host_name).expect("a host of ours");
        run(host.command("ctr").args(["--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id]));
        until(&format!("{component} to be restarted"), || restarts(&self.find(&pods)?).filter(|&count| count > before));
    }
}

/// What `kubectl get` calls the pods of a part of the release.
#[must_use]
pub fn pods_of(component: &str) -> String {
    format!("pods --namespace {RELEASE} --selector app.kubernetes.io/component={component}")
}

impl Cluster {
    /// A token of a ServiceAccount, as people get one.
    ///
    /// # Panics
    /// If there is no such account.
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
