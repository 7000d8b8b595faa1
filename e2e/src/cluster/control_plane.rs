//! The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, CoreDNS.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::folder::Folder;
use super::host::Host;
use super::pki::{CertificateAuthority, Pair};
use crate::harness::free_port;

/// Cluster IP range of Services.
const SERVICES: &str = "10.96.0.0/16";
/// Cluster IP of the API server's own Service, the first of the range.
const KUBERNETES: &str = "10.96.0.1";
/// Address of the first host, advertised also without hosts: Kubernetes rejects a loopback address.
const FIRST_HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// Addresses and files that the components of a cluster share.
pub struct Plan {
    /// Directory of the binaries.
    pub programs: PathBuf,
    /// The cluster's CA.
    pub ca: CertificateAuthority,
    /// Address and port of the API server, as seen by the hosts.
    pub server: (Ipv4Addr, u16),
    etcd: (u16, u16),
    folder: PathBuf,
}

impl Plan {
    /// `hosts`: the cluster has hosts; otherwise it shares this machine's network.
    #[must_use]
    pub fn new(folder: &Folder, programs: PathBuf, hosts: bool) -> Self {
        let address = if hosts { FIRST_HOST } else { Ipv4Addr::LOCALHOST };
        Self {
            programs,
            ca: CertificateAuthority::new(&folder.join("pki")),
            server: (address, free_port()),
            etcd: (free_port(), free_port()),
            folder: folder.path().to_owned(),
        }
    }

    /// A program on that host, or on this machine.
    #[must_use]
    pub fn command(&self, host: Option<&Host>, program: &str) -> Command {
        let path = self.programs.join(program);
        host.map_or_else(|| Command::new(&path), |host| host.command(&path))
    }

    /// Writes a kubeconfig.
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
                "certificate-authority": self.ca.own().certificate,
            }}],
            "users": [{"name": name, "user": {
                "client-certificate": client.certificate, "client-key": client.key,
            }}],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        write(&path, &content.to_string());
        path
    }

    /// Writes the kubeconfig of a component: that user, in that group.
    #[must_use]
    pub fn component_kubeconfig(&self, name: &str, user: &str, group: Option<&str>) -> PathBuf {
        self.kubeconfig(name, self.server, &self.ca.client(name, user, group))
    }

    /// etcd.
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

    /// kube-apiserver. `audit`: path of the audit log, one JSON line a request.
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
        let server = self.ca.server("api-server", &names);
        let kubelet = self.ca.client("api-server-kubelet", "api-server", Some("system:masters"));
        let tokens = self.ca.signing_key("tokens");
        let mut command = self.command(host, "kube-apiserver");
        command.arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd.0));
        command.arg(format!("--secure-port={port}")).arg(format!("--advertise-address={FIRST_HOST}"));
        if host.is_none() {
            command.arg("--bind-address=127.0.0.1");
        }
        command.arg(option("tls-cert-file", &server.certificate)).arg(option("tls-private-key-file", &server.key));
        command.arg(option("client-ca-file", &self.ca.own().certificate));
        command.arg(format!("--service-cluster-ip-range={SERVICES}"));
        command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
        command.args(["--allow-privileged=true", "--service-account-issuer=https://kubernetes.default.svc"]);
        command.arg(option("service-account-signing-key-file", &tokens.key));
        command.arg(option("service-account-key-file", &tokens.certificate));
        command.arg(option("kubelet-client-certificate", &kubelet.certificate));
        command.arg(option("kubelet-client-key", &kubelet.key));
        command.arg(option("kubelet-certificate-authority", &self.ca.own().certificate));
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

    /// kube-controller-manager.
    #[must_use]
    pub fn controller_manager(&self, host: Option<&Host>) -> Command {
        let config = self.component_kubeconfig("controllers", "system:kube-controller-manager", None);
        let own = self.ca.own();
        let mut command = self.command(host, "kube-controller-manager");
        for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(option(name, &config));
        }
        command.arg(option("service-account-private-key-file", &self.folder.join("pki/tokens.key")));
        command.arg(option("root-ca-file", &own.certificate));
        command.arg(option("cluster-signing-cert-file", &own.certificate));
        command.arg(option("cluster-signing-key-file", &own.key));
        command.args(["--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"]);
        // A dead host is detected within the timeout of a test.
        command.args(["--node-monitor-grace-period=20s", "--node-monitor-period=2s"]);
        command.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        command
    }

    /// kube-scheduler.
    #[must_use]
    pub fn scheduler(&self, host: Option<&Host>) -> Command {
        let config = self.component_kubeconfig("scheduler", "system:kube-scheduler", None);
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

    /// CoreDNS on the first host's address, which kubelets pass to their pods as the resolver.
    #[must_use]
    pub fn coredns(&self, host: &Host) -> Command {
        let config = self.component_kubeconfig("coredns", "coredns", Some("system:masters"));
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
