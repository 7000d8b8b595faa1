//! A Kubernetes cluster from plain programs, on this machine, for as long as a test runs.
//!
//! Three levels, each with all of the ones before:
//!
//! | level | programs | for |
//! | --- | --- | --- |
//! | [`Level::Api`] | etcd, API server | schemas, rights, what a controller writes |
//! | [`Level::Control`] | controllers, scheduler | owners, rollouts, hosts that are only pretended |
//! | [`Level::Hosts`] | containerd, kubelet, kube-proxy, CoreDNS | pods |
//!
//! The first two share this machine's network on free ports and need no root. Hosts have namespaces of their own for mounts, control
//! groups, network and host name ([`host`]), so that clusters neither see each other nor leave anything behind; [`forward`] leads
//! into their network. The process ids are the machine's: eBPF reports those.
//!
//! The launcher owns everything: a [`Cluster`] that is dropped, also by a failing test, ends what it started; after a launcher that
//! was killed the next one cleans ([`folder`]). Nothing is skipped: what is missing fails, with the reason.

pub mod cgroup;
pub mod control;
pub mod folder;
pub mod forward;
pub mod host;
pub mod pki;
pub mod release;
pub mod rights;
pub mod scene;
pub mod worker;

mod ask;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;

use self::control::Plan;
use self::folder::Folder;
use self::forward::Forward;
use self::host::Host;
use crate::harness::{require_root, run};

/// How long a part of the cluster may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Volumes that wait on each host.
const VOLUMES: u8 = 4;

/// How much of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// etcd and the API server.
    Api,
    /// Controllers and the scheduler, too.
    Control,
    /// And that many hosts that run pods.
    Hosts(u8),
}

/// What cluster to start.
pub struct Setup {
    level: Level,
    audit: bool,
    images: Vec<PathBuf>,
}

impl Setup {
    /// A cluster of that level.
    #[must_use]
    pub fn new(level: Level) -> Self {
        Self { level, audit: false, images: Vec::new() }
    }

    /// Notes every request to the API server: [`Cluster::audit`].
    #[must_use]
    pub fn audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Loads these OCI archives on each host.
    #[must_use]
    pub fn images(mut self, archives: impl IntoIterator<Item = PathBuf>) -> Self {
        self.images.extend(archives);
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// If a part does not start; with the end of its log.
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
            parts: Vec::new(),
            plan,
            folder,
        };
        for number in 0..hosts {
            let (host, child) = Host::new(&cluster.folder, number, cluster.hosts.first());
            cluster.parts.push((host.name.clone(), child));
            cluster.hosts.push(host);
        }
        cluster.start_api(self.audit);
        if self.level != Level::Api {
            cluster.start_control();
        }
        if hosts > 0 {
            cluster.start_hosts(&self.images);
        }
        cluster
    }
}

/// A running cluster. Dropped, all of it ends; if a test is failing then, the logs are kept.
pub struct Cluster {
    kubeconfig: PathBuf,
    audit: PathBuf,
    api: Option<Forward>,
    hosts: Vec<Host>,
    // In the order of their start, with the names of their logs.
    parts: Vec<(String, Child)>,
    plan: Plan,
    folder: Folder,
}

impl Cluster {
    /// Configuration of a client that may do everything: `KUBECONFIG`.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Its folder, gone when the cluster is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A program of the cluster (`kubectl`, `helm`), set up to speak to it.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.plan.programs.join(name));
        command.env("KUBECONFIG", &self.kubeconfig).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        command
    }

    /// A port of this machine that leads to an address of the first host's network: a pod's, or a Service's.
    ///
    /// # Panics
    /// Without hosts.
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
        let admin = self.plan.authority.client("admin", "admin", Some("system:masters"));
        self.kubeconfig = self.plan.kubeconfig("admin", (Ipv4Addr::LOCALHOST, port), &admin);
        self.wait("the API server to be ready", |cluster| {
            let answer = cluster.program("kubectl").args(["get", "--raw", "/readyz"]).output().ok()?;
            answer.status.success().then_some(())
        });
    }

    fn start_control(&mut self) {
        let host = self.hosts.first();
        let (controllers, scheduler) = (self.plan.controllers(host), self.plan.scheduler(host));
        self.start("kube-controller-manager", controllers);
        self.start("kube-scheduler", scheduler);
        self.wait("the default service account", |cluster| {
            cluster.try_kubectl("get serviceaccount default --namespace default")
        });
    }

    fn start_hosts(&mut self, images: &[PathBuf]) {
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
            let (kubelet, proxy) = (worker::kubelet(&self.plan, host), worker::proxy(&self.plan, host));
            let names = (number == 0).then(|| self.plan.names(host));
            self.start(&format!("{name}-kubelet"), kubelet);
            self.start(&format!("{name}-kube-proxy"), proxy);
            if let Some(names) = names {
                self.start("coredns", names);
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

    /// Folders of the hosts as volumes of the default storage class: who claims one gets it.
    fn volumes(&self) -> serde_json::Value {
        let mut items = vec![json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        })];
        for host in &self.hosts {
            for number in 0..VOLUMES {
                let name = format!("{}-{number}", host.name);
                std::fs::create_dir_all(host.path("lib").join("volumes").join(&name)).expect("a folder of a volume");
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
        self.parts.push((name.to_owned(), child));
    }

    /// Waits for a part of the cluster: fails at once when any part has ended.
    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = probe(self) {
                return answer;
            }
            let ended = self.parts.iter_mut().find_map(|(name, child)| Some((name.clone(), child.try_wait().ok()??)));
            if let Some((name, status)) = ended {
                panic!("waiting for {what}, {name} ended: {status}\n{}", self.folder.tail(&name, 30));
            }
            if Instant::now() > deadline {
                let last = self.parts.last().map(|(name, _)| self.folder.tail(name, 30)).unwrap_or_default();
                panic!("waited {PATIENCE:?} in vain for {what}\n{last}");
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Ends a part and starts nothing in its place: a host whose `kubelet` is dead, for instance.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn end_part(&mut self, name: &str) {
        let place = self.parts.iter().position(|(part, _)| part == name);
        let (_, mut child) = self.parts.remove(place.unwrap_or_else(|| panic!("no part {name}")));
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
        // Backwards: who would restart something goes before it.
        for (_, child) in self.parts.iter_mut().rev() {
            let _ = child.kill();
        }
        for host in &self.hosts {
            host.groups().iter().for_each(|group| cgroup::end(group));
        }
        for (_, child) in &mut self.parts {
            let _ = child.wait();
        }
        if failed && let Some(kept) = self.folder.keep_logs() {
            eprintln!("--- logs of the cluster are kept in {}", kept.display());
        }
        self.folder.remove();
    }
}

/// Folder of the programs of Kubernetes.
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

/// The container that keeps a pod's namespaces does nothing for a long time.
fn pause(folder: &Folder) -> PathBuf {
    let archive = folder.join("pause.tar");
    let image = crate::image::Image {
        name: worker::PAUSE.to_owned(),
        entry: ["/bin/busybox", "sleep", "2147483647"].map(str::to_owned).to_vec(),
        user: "65532:65532".to_owned(),
        files: vec![crate::image::Entry::file("bin/busybox", "/bin/busybox")],
    };
    image.write(&archive).unwrap_or_else(|e| panic!("{}: {e:#}", archive.display()));
    archive
}
