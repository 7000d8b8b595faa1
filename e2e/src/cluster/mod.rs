//! A Kubernetes cluster from binaries, on this machine, for the duration of a test.
//!
//! Three levels; each includes the ones before:
//!
//! | level | components | for tests of |
//! | --- | --- | --- |
//! | [`Level::Api`] | etcd, API server | schemas, RBAC, writes of a controller |
//! | [`Level::Control`] | controllers, scheduler | owner references, rollouts, simulated hosts |
//! | [`Level::Hosts`] | containerd, kubelet, kube-proxy, CoreDNS | pods |
//!
//! The first two share this machine's network on free ports and need no root. Each host has its own mount, cgroup, network and UTS
//! namespaces ([`host`]), so that clusters are isolated and leave nothing behind; [`forward`] forwards ports into them. Every host but
//! the first has a PID namespace of its own, as a host that is a container of kind has.
//!
//! A [`Cluster`] kills its processes when it is dropped, also by a failing test; after a killed launcher the next one cleans up
//! ([`folder`]). A missing prerequisite is a failure with its reason, never a skipped test.

pub mod cgroup;
pub mod control_plane;
pub mod folder;
pub mod forward;
pub mod host;
pub mod pki;
pub mod rbac;
pub mod release;
pub mod scene;
pub mod traced_pod;
pub mod worker;

mod command_line;
mod kubectl;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;

use self::control_plane::Plan;
use self::folder::Folder;
use self::forward::Forward;
use self::host::Host;
use crate::harness::{require_root, run};

/// Time limit for a component to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// PersistentVolumes of each host.
const VOLUMES: u8 = 4;

/// The components of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// etcd and the API server.
    Api,
    /// Also the controller manager and the scheduler.
    Control,
    /// Also this number of hosts that run pods.
    Hosts(u8),
}

/// Options of a cluster.
pub struct Setup {
    level: Level,
    audit: bool,
    images: Vec<PathBuf>,
    log_size: Option<&'static str>,
}

impl Setup {
    /// A cluster of that level.
    #[must_use]
    pub fn new(level: Level) -> Self {
        Self { level, audit: false, images: Vec::new(), log_size: None }
    }

    /// Enables the audit log of the API server: [`Cluster::audit`].
    #[must_use]
    pub fn audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Imports these OCI archives on each host.
    #[must_use]
    pub fn images(mut self, archives: impl IntoIterator<Item = PathBuf>) -> Self {
        self.images.extend(archives);
        self
    }

    /// Rotates the log file of a container when it has this size, such as `64Ki`.
    #[must_use]
    pub fn rotate_logs_at(mut self, size: &'static str) -> Self {
        self.log_size = Some(size);
        self
    }

    /// Starts the cluster and waits until it is ready.
    ///
    /// # Panics
    /// If a component does not start; with the end of its log.
    #[must_use]
    pub fn start(self) -> Cluster {
        let programs = programs();
        let hosts = if let Level::Hosts(hosts) = self.level { hosts } else { 0 };
        if hosts > 0 {
            require_root();
        }
        let folder = Folder::create();
        let plan = Plan::new(&folder, programs, hosts > 0);
        let mut cluster = Cluster {
            kubeconfig: PathBuf::new(),
            audit: folder.join("logs/audit.log"),
            api: None,
            hosts: Vec::new(),
            components: Vec::new(),
            plan,
            folder,
        };
        for number in 0..hosts {
            let (host, child) = Host::new(&cluster.folder, number, cluster.hosts.first());
            cluster.components.push((host.name.clone(), child));
            cluster.hosts.push(host);
        }
        cluster.start_api(self.audit);
        if self.level != Level::Api {
            cluster.start_control_plane();
        }
        if hosts > 0 {
            cluster.start_hosts(&self.images, self.log_size);
        }
        cluster
    }
}

/// A running cluster. It is killed on drop; if the test is failing, its logs are kept.
pub struct Cluster {
    kubeconfig: PathBuf,
    audit: PathBuf,
    api: Option<Forward>,
    hosts: Vec<Host>,
    // In start order, by the name of the log.
    components: Vec<(String, Child)>,
    plan: Plan,
    folder: Folder,
}

impl Cluster {
    /// The path of the kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The directory of the cluster, removed on drop.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client program (`kubectl`, `helm`) with its `KUBECONFIG`.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.plan.programs.join(name));
        command.env("KUBECONFIG", &self.kubeconfig).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        command
    }

    /// Forwards a port of this machine to an address in the first host's network, of a pod or a Service.
    ///
    /// # Panics
    /// If the cluster has no hosts.
    #[must_use]
    pub fn forward(&self, target: SocketAddr) -> Forward {
        let first = self.hosts.first().expect("a cluster with hosts");
        Forward::new(&first.network(), target)
    }

    fn start_api(&mut self, audit: bool) {
        let host = self.hosts.first();
        let etcd = self.plan.etcd(host);
        let api = self.plan.api_server(host, audit.then_some(self.audit.as_path()));
        self.start("etcd", etcd);
        self.start("kube-apiserver", api);
        let (address, port) = self.plan.server;
        self.api = (!self.hosts.is_empty()).then(|| self.forward((address, port).into()));
        let port = self.api.as_ref().map_or(port, Forward::port);
        let admin = self.plan.ca.client("admin", "admin", Some("system:masters"));
        self.kubeconfig = self.plan.kubeconfig("admin", (Ipv4Addr::LOCALHOST, port), &admin);
        self.wait("the API server to be ready", |cluster| {
            let answer = cluster.program("kubectl").args(["get", "--raw", "/readyz"]).output().ok()?;
            answer.status.success().then_some(())
        });
    }

    fn start_control_plane(&mut self) {
        let host = self.hosts.first();
        let (controllers, scheduler) = (self.plan.controller_manager(host), self.plan.scheduler(host));
        self.start("kube-controller-manager", controllers);
        self.start("kube-scheduler", scheduler);
        self.wait("the default service account", |cluster| {
            cluster.try_kubectl("get serviceaccount default --namespace default")
        });
    }

    fn start_hosts(&mut self, images: &[PathBuf], log_size: Option<&str>) {
        let mut archives = vec![pause(&self.folder)];
        archives.extend_from_slice(images);
        for number in 0..self.hosts.len() {
            let Some(host) = self.hosts.get(number) else { break };
            let name = host.name.clone();
            let containerd = worker::containerd(host);
            self.start(&format!("{name}-containerd"), containerd);
            self.wait(&format!("containerd of {name}"), |cluster| {
                let answer = cluster.hosts.get(number)?.command("ctr").arg("version").output().ok()?;
                answer.status.success().then_some(())
            });
            let Some(host) = self.hosts.get(number) else { break };
            for archive in &archives {
                run(&mut worker::import(host, archive));
            }
            let (kubelet, proxy) = (worker::kubelet(&self.plan, host, log_size), worker::proxy(&self.plan, host));
            let coredns = (number == 0).then(|| self.plan.coredns(host));
            self.start(&format!("{name}-kubelet"), kubelet);
            self.start(&format!("{name}-kube-proxy"), proxy);
            if let Some(coredns) = coredns {
                self.start("coredns", coredns);
            }
        }
        for number in 0..self.hosts.len() {
            let Some(name) = self.hosts.get(number).map(|host| host.name.clone()) else { break };
            self.wait(&format!("{name} to be ready"), |cluster| {
                let path = "{.status.conditions[?(@.type=='Ready')].status}";
                let ready = cluster.try_kubectl_output(&["get", "node", &name, "-o", &format!("jsonpath={path}")])?;
                (ready == "True").then_some(())
            });
        }
        self.apply(&self.volumes().to_string());
    }

    /// A default StorageClass and local PersistentVolumes on the hosts.
    fn volumes(&self) -> serde_json::Value {
        let mut items = vec![json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        })];
        for host in &self.hosts {
            for number in 0..VOLUMES {
                let name = format!("{}-{number}", host.name);
                std::fs::create_dir_all(host.path("lib").join("volumes").join(&name)).expect("directory of a volume");
                items.push(json!({
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                    "spec": {
                        "capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                        "local": {"path": format!("/var/lib/volumes/{name}")},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host.name]},
                        ]}]}},
                    },
                }));
            }
        }
        json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    fn start(&mut self, name: &str, mut command: Command) {
        let child = self.folder.spawn(name, &mut command);
        self.components.push((name.to_owned(), child));
    }

    /// Waits until `probe` finds something; fails at once if a component has exited.
    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(answer) = probe(self) {
                return answer;
            }
            let exited =
                self.components.iter_mut().find_map(|(name, child)| Some((name.clone(), child.try_wait().ok()??)));
            if let Some((name, status)) = exited {
                panic!("waiting for {what}, {name} exited: {status}\n{}", self.folder.tail(&name, 30));
            }
            if Instant::now() > deadline {
                let last = self.components.last().map(|(name, _)| self.folder.tail(name, 30)).unwrap_or_default();
                panic!("no {what} within {START_TIMEOUT:?}\n{last}");
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Kills a component without restarting it, for example the `kubelet` of a host.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn kill_component(&mut self, name: &str) {
        let index = self.components.iter().position(|(component, _)| component == name);
        let (_, mut child) = self.components.remove(index.unwrap_or_else(|| panic!("no component {name}")));
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            self.describe();
        }
        // In reverse order: a component that restarts others is killed before them.
        for (_, child) in self.components.iter_mut().rev() {
            let _ = child.kill();
        }
        for host in &self.hosts {
            host.groups().iter().for_each(|group| cgroup::kill_and_remove(group));
        }
        for (_, child) in &mut self.components {
            let _ = child.wait();
        }
        if failed && let Some(kept) = self.folder.keep_logs() {
            eprintln!("--- logs of the cluster are kept in {}", kept.display());
        }
        self.folder.remove();
    }
}

/// Directory of the binaries of Kubernetes.
///
/// # Panics
/// If they are not built.
#[must_use]
pub fn programs() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kubernetes-tools");
    let folder = PathBuf::from(run(Command::new(script).arg("--bin")).trim());
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        assert!(folder.join(name).is_file(), "{name} is not built: run scripts/kubernetes-tools (`make e2e` does)");
    }
    folder
}

/// Writes the image of the pause container, which holds the namespaces of a pod.
fn pause(folder: &Folder) -> PathBuf {
    let archive = folder.join("pause.tar");
    let files = vec![chainscope_images::Entry::file("bin/busybox", "/bin/busybox")];
    let mut image = crate::image::image(worker::PAUSE, "/bin/busybox", chainscope_images::NONROOT, files);
    image.entry.extend(["sleep", "2147483647"].map(str::to_owned));
    image.write(&archive).unwrap_or_else(|e| panic!("{}: {e:#}", archive.display()));
    archive
}
