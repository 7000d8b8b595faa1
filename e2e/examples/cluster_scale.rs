//! Scale benchmark of the operator: 1,000 TezosNodes with ten pods each on 300 simulated hosts. Prints a Markdown table of the
//! operator's latency, its requests to the API server and its memory; fails if something does not become ready.
//!
//! The API server, etcd and the controllers are real; kwok simulates hosts and pods. Agents are simulated here: each subscribes to its
//! host's configuration with its own token and reports every pod as recorded. Needs the binaries of `scripts/kubernetes-tools kwok`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::{binary, free_port, run, wait};
use chainscope_e2e::image::REGISTRY;
use chainscope_proto::v1::configuration_client::ConfigurationClient;
use chainscope_proto::v1::{HostHello, HostReport, HostStatus, PodReport, PodState, host_report};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

const HOSTS: usize = 300;
const NODES: usize = 1_000;
const PODS: usize = 10;
/// Time limit for steps that create thousands of objects.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);
/// Concurrent requests of the setup.
const CONCURRENCY: usize = 8;

fn main() {
    let cluster = Setup::new(Level::Control).audit().start();
    let proxy = Proxy::start(&cluster);
    let _kwok = kwok(&cluster);
    create_hosts(&proxy);
    let agents = install(&cluster);
    let operator = Operator::start(&cluster);
    create_pods(&proxy);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let tokens = each(&agents, |agent| proxy.token(agent));
    let received = Arc::new(AtomicUsize::new(0));
    for token in tokens {
        let (bundle, port, received) = (operator.ca_bundle.clone(), operator.port, Arc::clone(&received));
        runtime.spawn(async move { agent(&bundle, port, &token, &received).await });
    }
    wait::until_within(STEP_TIMEOUT, "every agent to be connected", || {
        (operator.metric("chainscope_operator_config_stream_open{") >= HOSTS as f64).then_some(())
    });

    let mut table = Table::new(&cluster, &operator);
    table.measure("1,000 TezosNodes are created", || {
        each(&(0..NODES).collect::<Vec<_>>(), |&number| {
            proxy.post("/apis/chainscope.dev/v1alpha1/namespaces/scale/tezosnodes", &node(number, "first"))
        });
        until_ready(&cluster, NODES);
    });
    assert_eq!(received.load(Ordering::Relaxed), NODES * PODS, "pods that agents received");
    table.measure("one TezosNode is changed", || {
        proxy.merge(
            "/apis/chainscope.dev/v1alpha1/namespaces/scale/tezosnodes/n-500",
            &json!({"spec": {"aliases": ["second"]}}),
        );
        cluster.until("the change", "tezosnode n-500 --namespace scale", |found| {
            (found["status"]["observedGeneration"] == 2 && ready(found)).then_some(())
        });
    });
    table.measure("one pod is deleted", || {
        cluster.kubectl("delete pod n-7-0 --namespace scale --grace-period 0 --force");
        cluster.until("the count of pods", "tezosnode n-7 --namespace scale", |found| {
            (found["status"]["podCount"] == PODS - 1).then_some(())
        });
    });
    table.measure("idle for 30 s", || thread::sleep(Duration::from_secs(30)));
    let _ = std::io::stdout().write_all(table.text.as_bytes());
}

/// `kubectl proxy`, which has no client-side rate limit.
struct Proxy {
    base: String,
    agent: ureq::Agent,
    _program: Program,
}

impl Proxy {
    fn start(cluster: &Cluster) -> Self {
        let program = Program::start("proxy", cluster.program("kubectl").args(["proxy", "--port", "0"]));
        let port = program.wait_stdout("a port", |lines| {
            lines.iter().find_map(|line| line.rsplit_once(':')?.1.trim().parse::<u16>().ok())
        });
        Self { base: format!("http://127.0.0.1:{port}"), agent: ureq::Agent::new_with_defaults(), _program: program }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.agent.post(format!("{}{path}", self.base)).send_json(body);
        let mut answer = answer.unwrap_or_else(|e| panic!("POST {path}: {e}"));
        answer.body_mut().read_json().expect("JSON")
    }

    fn merge(&self, path: &str, body: &Value) {
        let request = self.agent.patch(format!("{}{path}", self.base));
        let request = request.header("Content-Type", "application/merge-patch+json");
        request.send(body.to_string()).unwrap_or_else(|e| panic!("PATCH {path}: {e}"));
    }

    /// A token bound to an agent's pod.
    fn token(&self, agent: &(String, String)) -> String {
        let (name, uid) = agent;
        let path = format!("/api/v1/namespaces/{RELEASE}/serviceaccounts/{RELEASE}-agent/token");
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
        let answer = self.post(
            &path,
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                    "spec": {"audiences": ["chainscope"], "expirationSeconds": 3600, "boundObjectRef": bound}}),
        );
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }
}

/// Runs `action` for each item, several at once; returns the results in order.
fn each<T: Sync, R: Send>(items: &[T], action: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let action = &action;
    thread::scope(|scope| {
        let size = items.len().div_ceil(CONCURRENCY).max(1);
        let threads: Vec<_> =
            items.chunks(size).map(|part| scope.spawn(move || part.iter().map(action).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("thread")).collect()
    })
}

fn kwok(cluster: &Cluster) -> Program {
    let mut command = cluster.program("kwok");
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--config", "e2e/manifests/kwok.yaml", "--manage-all-nodes", "--node-lease-duration-seconds", "200"]);
    Program::start("kwok", &mut command)
}

fn create_hosts(proxy: &Proxy) {
    each(&(0..HOSTS).collect::<Vec<_>>(), |number| {
        let name = format!("fake-{number}");
        let capacity = json!({"cpu": "64", "memory": "256Gi", "pods": "250"});
        proxy.post(
            "/api/v1/nodes",
            &json!({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}},
                    "status": {"allocatable": capacity, "capacity": capacity}}),
        )
    });
}

/// Installs the chart, whose pods kwok simulates; returns names and uids of the agents' pods.
fn install(cluster: &Cluster) -> Vec<(String, String)> {
    cluster.kubectl("create namespace scale");
    cluster.make_namespace();
    let registry = format!("image.registry={REGISTRY}");
    let arguments = ["install", RELEASE, "charts/chainscope", "--namespace", RELEASE, "--set", &registry];
    run(cluster.program("helm").args(arguments));
    wait::until_within(STEP_TIMEOUT, "an agent on each host", || {
        let found = cluster.find(&pods_of("agent"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let placed = found["items"].as_array()?.iter().filter(|pod| pod["spec"]["nodeName"].is_string());
        let agents: Vec<_> =
            placed.map(|pod| (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]))).collect();
        (agents.len() == HOSTS).then_some(agents)
    })
}

/// The operator under test, with the chart's ServiceAccount.
struct Operator {
    program: Program,
    ca_bundle: String,
    port: u16,
    metrics: u16,
}

impl Operator {
    fn start(cluster: &Cluster) -> Self {
        let token = cluster.token(RELEASE, &format!("{RELEASE}-operator"));
        let config = cluster.folder().join("operator.kubeconfig");
        std::fs::copy(cluster.kubeconfig(), &config).expect("a copy");
        let mut with = cluster.program("kubectl");
        with.env("KUBECONFIG", &config).args(["config", "set-credentials", "operator", "--token"]).arg(token.trim());
        run(&mut with);
        let mut with = cluster.program("kubectl");
        run(with.env("KUBECONFIG", &config).args(["config", "set-context", "--current", "--user", "operator"]));
        let (port, metrics) = (free_port(), free_port());
        let mut command = Command::new(binary("chainscope-operator"));
        command.env("KUBECONFIG", &config).args(["run", "--manage-certificates", "--leader-elect"]);
        command.args(["--namespace", RELEASE, "--release", RELEASE]);
        command.args([
            format!("--agent-service-account={RELEASE}-agent"),
            format!("--aggregator-service-account={RELEASE}-aggregator"),
        ]);
        command.args([format!("--config-listen=127.0.0.1:{port}"), format!("--metrics-listen=127.0.0.1:{metrics}")]);
        let program = Program::start("operator", &mut command);
        let config_map = format!("configmap {RELEASE}-ca --namespace {RELEASE}");
        let ca_bundle =
            cluster.until("the CA bundle", &config_map, |found| found["data"]["ca.crt"].as_str().map(str::to_owned));
        Self { program, ca_bundle, port, metrics }
    }

    fn metric(&self, name: &str) -> f64 {
        let answer = ureq::get(format!("http://127.0.0.1:{}/metrics", self.metrics)).call();
        let text = answer.ok().and_then(|mut answer| answer.body_mut().read_to_string().ok()).unwrap_or_default();
        let values = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    }

    /// Proportional set size, in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.program.pid());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("Pss");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    }
}

fn create_pods(proxy: &Proxy) {
    let all: Vec<_> = (0..NODES * PODS).collect();
    each(&all, |number| {
        let (node, pod) = (number / PODS, number % PODS);
        proxy.post(
            "/api/v1/namespaces/scale/pods",
            &json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("n-{node}-{pod}"), "namespace": "scale", "labels": {"node": format!("n-{node}")}},
                    "spec": {"nodeName": format!("fake-{}", number % HOSTS), "containers": [
                        {"name": "octez-node", "image": "octez", "ports": [{"containerPort": 9732, "name": "tezos-net"}]}]}}),
        )
    });
}

fn node(number: usize, alias: &str) -> Value {
    let name = format!("n-{number}");
    json!({"apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode", "metadata": {"name": name, "namespace": "scale"},
           "spec": {"podSelector": {"matchLabels": {"node": name}}, "aliases": [format!("{alias}-{number}")]}})
}

fn ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn until_ready(cluster: &Cluster, count: usize) {
    wait::until_within(STEP_TIMEOUT, "every TezosNode to be ready", || {
        let found = cluster.find("tezosnodes --namespace scale")?;
        (found["items"].as_array()?.iter().filter(|node| ready(node)).count() == count).then_some(())
    });
}

/// An agent that reports every pod of its configuration as recorded at once.
async fn agent(ca_bundle: &str, port: u16, token: &str, received: &AtomicUsize) {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca_bundle))
        .domain_name(format!("{RELEASE}-operator.{RELEASE}.svc"));
    let endpoint = Channel::from_shared(format!("https://127.0.0.1:{port}")).expect("an address");
    let channel = endpoint.tls_config(tls).expect("TLS").connect().await.expect("the operator");
    let (reports, outgoing) = mpsc::channel(16);
    let hello = HostHello { least_version: 1, greatest_version: 1, build: "scale".to_owned() };
    let wrap = |report| HostReport { report: Some(report) };
    reports.send(wrap(host_report::Report::Hello(hello))).await.expect("a stream");
    let mut request = Request::new(ReceiverStream::new(outgoing));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    let mut updates = ConfigurationClient::new(channel).host(request).await.expect("a stream").into_inner();
    let mut pods: BTreeMap<String, PodReport> = BTreeMap::new();
    while let Ok(Some(update)) = updates.message().await {
        for uid in &update.removed {
            pods.remove(uid);
        }
        for pod in update.pods {
            let report = PodReport {
                uid: pod.uid.clone(),
                node: pod.node,
                node_generation: pod.node_generation,
                state: PodState::Recording.into(),
                pid: 1,
                peer_id: "idqjq34sB6uHWdFzJDB97zwXAdHASb".to_owned(),
                process_starts: 1,
                ..PodReport::default()
            };
            if pods.insert(pod.uid, report).is_none() {
                received.fetch_add(1, Ordering::Relaxed);
            }
        }
        let status = HostStatus {
            generation: update.generation,
            pods: pods.values().cloned().collect(),
            ..HostStatus::default()
        };
        if reports.send(wrap(host_report::Report::Status(status))).await.is_err() {
            return;
        }
    }
}

/// The Markdown table.
struct Table<'a> {
    cluster: &'a Cluster,
    operator: &'a Operator,
    text: String,
}

impl<'a> Table<'a> {
    fn new(cluster: &'a Cluster, operator: &'a Operator) -> Self {
        let text = "| step | seconds | requests of the operator to the API server | memory of the operator (PSS) |\n| --- | --- | --- | --- |\n";
        Self { cluster, operator, text: text.to_owned() }
    }

    fn measure(&mut self, what: &str, action: impl FnOnce()) {
        let before = self.requests();
        let start = Instant::now();
        action();
        let seconds = start.elapsed().as_secs_f64();
        let mut requests = Vec::new();
        for (request, count) in self.requests() {
            let more = count - before.get(&request).copied().unwrap_or(0);
            if more > 0 {
                requests.push(format!("{more} {request}"));
            }
        }
        let requests = if requests.is_empty() { "none".to_owned() } else { requests.join(", ") };
        let memory = self.operator.memory() as f64 / f64::from(1 << 20);
        let _ = writeln!(self.text, "| {what} | {seconds:.1} | {requests} | {memory:.0} MiB |");
    }

    /// The operator's requests so far, by verb and resource.
    fn requests(&self) -> BTreeMap<String, usize> {
        let user = format!("system:serviceaccount:{RELEASE}:{RELEASE}-operator");
        let mut counts = BTreeMap::new();
        for request in self.cluster.audit().iter().filter(|request| request["user"]["username"] == user.as_str()) {
            let object = &request["objectRef"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut resource = text(&object["resource"]);
            if let Some(part) = object["subresource"].as_str() {
                let _ = write!(resource, "/{part}");
            }
            *counts.entry(format!("{} {resource}", text(&request["verb"]))).or_insert(0) += 1;
        }
        counts
    }
}
