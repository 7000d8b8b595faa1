//! What decides: etcd, the API server, controllers, the scheduler, and names.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::folder::Folder;
use super::host::Host;
use super::pki::{Authority, Pair};
use crate::harness::free_port;

/// Cluster addresses of Services.
const SERVICES: &str = "10.96.0.0/16";
/// The API server's own Service: the first of them.
const KUBERNETES: &str = "10.96.0.1";
/// Where the first host is, or would be: Kubernetes refuses to advertise a loopback address.
const FIRST_HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// Addresses and files that the parts of a cluster share.
pub struct Plan {
    /// Folder of the programs.
    pub programs: PathBuf,
    /// Who vouches for whom.
    pub authority: Authority,
    /// Address and port of the API server, from inside.
    pub server: (Ipv4Addr, u16),
    etcd: (u16, u16),
    folder: PathBuf,
}

impl Plan {
    /// For a cluster on hosts of its own, or (`false`) for one that shares this machine's network.
    #[must_use]
    pub fn new(folder: &Folder, programs: PathBuf, hosts: bool) -> Self {
        let address = if hosts { FIRST_HOST } else { Ipv4Addr::LOCALHOST };
        Self {
            programs,
            authority: Authority::new(&folder.join("pki")),
            server: (address, free_port()),
            etcd: (free_port(), free_port()),
            folder: folder.path().to_owned(),
        }
    }

    /// A program on that host, or here.
    #[must_use]
    pub fn command(&self, host: Option<&Host>, program: &str) -> Command {
        let path = self.programs.join(program);
        host.map_or_else(|| Command::new(&path), |host| host.command(&path))
    }

    /// Writes a configuration for clients of the API server.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn kubeconfig(&self, name: &str, server: (Ipv4Addr, u16), client: &Pair) -> PathBuf {
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "chainscope",
            "contexts": [{"name": "chainscope", "context": {"cluster": "chainscope", "user": name}}],
            "clusters": [{"name": "chainscope", "cluster": {
                "server": format!("https://{}:{}", server.0, server.1),
                "certificate-authority": self.authority.own().certificate,
            }}],
            "users": [{"name": name, "user": {
                "client-certificate": client.certificate, "client-key": client.key,
            }}],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        write(&path, &content.to_string());
        path
    }

    /// A configuration for a part of the cluster: that user, in that group.
    #[must_use]
    pub fn part(&self, name: &str, user: &str, group: Option<&str>) -> PathBuf {
        self.kubeconfig(name, self.server, &self.authority.client(name, user, group))
    }

    /// The store.
    #[must_use]
    pub fn etcd(&self, host: Option<&Host>) -> Command {
        let (client, peer) = self.etcd;
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = self.command(host, "etcd");
        command.args(["--log-level", "warn", "--unsafe-no-fsync"]).arg("--data-dir").arg(self.folder.join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command
    }

    /// The API server. `audit`: every request is a JSON line in this file.
    #[must_use]
    pub fn api_server(&self, host: Option<&Host>, audit: Option<&Path>) -> Command {
        let (address, port) = self.server;
        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "127.0.0.1",
            KUBERNETES,
            &address.to_string(),
        ];
        let server = self.authority.server("api-server", &names);
        let kubelet = self.authority.client("api-server-kubelet", "api-server", Some("system:masters"));
        let tokens = self.authority.signing_key("tokens");
        let mut command = self.command(host, "kube-apiserver");
        command.arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd.0));
        command.arg(format!("--secure-port={port}")).arg(format!("--advertise-address={FIRST_HOST}"));
        if host.is_none() {
            command.arg("--bind-address=127.0.0.1");
        }
        command.arg(option("tls-cert-file", &server.certificate)).arg(option("tls-private-key-file", &server.key));
        command.arg(option("client-ca-file", &self.authority.own().certificate));
        command.arg(format!("--service-cluster-ip-range={SERVICES}"));
        command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
        command.args(["--allow-privileged=true", "--service-account-issuer=https://kubernetes.default.svc"]);
        command.arg(option("service-account-signing-key-file", &tokens.key));
        command.arg(option("service-account-key-file", &tokens.certificate));
        command.arg(option("kubelet-client-certificate", &kubelet.certificate));
        command.arg(option("kubelet-client-key", &kubelet.key));
        command.arg(option("kubelet-certificate-authority", &self.authority.own().certificate));
        command.arg("--kubelet-preferred-address-types=InternalIP,Hostname");
        if let Some(log) = audit {
            let policy = self.folder.join("audit-policy.yaml");
            write(
                &policy,
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
            );
            command.arg(option("audit-policy-file", &policy)).arg(option("audit-log-path", log));
        }
        command
    }

    /// Controllers: StatefulSets, DaemonSets, service accounts, garbage collection.
    #[must_use]
    pub fn controllers(&self, host: Option<&Host>) -> Command {
        let config = self.part("controllers", "system:kube-controller-manager", None);
        let own = self.authority.own();
        let mut command = self.command(host, "kube-controller-manager");
        for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(option(name, &config));
        }
        command.arg(option("service-account-private-key-file", &self.folder.join("pki/tokens.key")));
        command.arg(option("root-ca-file", &own.certificate));
        command.arg(option("cluster-signing-cert-file", &own.certificate));
        command.arg(option("cluster-signing-key-file", &own.key));
        command.args(["--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"]);
        // A dead host is noticed within a test's patience.
        command.args(["--node-monitor-grace-period=20s", "--node-monitor-period=2s"]);
        command.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        command
    }

    /// The scheduler.
    #[must_use]
    pub fn scheduler(&self, host: Option<&Host>) -> Command {
        let config = self.part("scheduler", "system:kube-scheduler", None);
        let file = self.folder.join("scheduler.json");
        let content = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": config, "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": false},
        });
        write(&file, &content.to_string());
        let mut command = self.command(host, "kube-scheduler");
        command.arg(option("config", &file)).arg("--secure-port=0");
        command
    }

    /// Names of Services, on the first host's own address: kubelets tell it to their pods.
    #[must_use]
    pub fn names(&self, host: &Host) -> Command {
        let config = self.part("names", "names", Some("system:masters"));
        let file = self.folder.join("Corefile");
        let content = format!(
            ".:53 {{\n  bind {}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {} chainscope\n    \
             ttl 1\n  }}\n}}\n",
            host.address,
            config.display()
        );
        write(&file, &content);
        let mut command = self.command(Some(host), "coredns");
        command.arg("-conf").arg(file);
        command
    }
}

/// `--name=path`.
pub(super) fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

pub(super) fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
