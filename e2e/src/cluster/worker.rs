//! Components of a worker node: containerd, kubelet, kube-proxy.

use std::process::Command;

use serde_json::json;

use super::control_plane::{Plan, option, write};
use super::host::Host;

/// Image of the pause container.
pub const PAUSE: &str = "localhost/chainscope/pause:1";
/// Directory of the CNI plugins in Debian.
const PLUGINS: &str = "/usr/lib/cni";

/// containerd with runc and the CNI bridge plugin.
#[must_use]
pub fn containerd(host: &Host) -> Command {
    let networks = host.path("cni");
    std::fs::create_dir_all(&networks).expect("directory of networks");
    let network = json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": host.pod_cidr()}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
            {"type": "firewall", "backend": "iptables"},
        ],
    });
    write(&networks.join("10-pods.conflist"), &network.to_string());
    write(&networks.join("99-loopback.conf"), r#"{"cniVersion": "0.4.0", "name": "lo", "type": "loopback"}"#);
    let file = host.path("containerd.toml");
    // restrict_oom_score_adj: lowering it requires CAP_SYS_RESOURCE, without which containers would not start.
    let content = format!(
        "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\noom_score = 0\n\
         [grpc]\naddress = \"/run/containerd/containerd.sock\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{PAUSE}\"\nrestrict_oom_score_adj = true\n\
         disable_apparmor = true\ntolerate_missing_hugetlb_controller = true\ndisable_hugetlb_controller = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"overlayfs\"\ndefault_runtime_name = \"runc\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = false\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{PLUGINS}\"\nconf_dir = \"{}\"\n",
        networks.display()
    );
    write(&file, &content);
    let mut command = host.command("containerd");
    command.arg("--config").arg(file);
    command
}

/// kubelet. Image garbage collection is off: images are imported once. Log files are rotated at `log_size`.
#[must_use]
pub fn kubelet(plan: &Plan, host: &Host, log_size: Option<&str>) -> Command {
    let name = &host.name;
    let server = plan.ca.server(&format!("{name}-kubelet"), &[name, &host.address.to_string()]);
    let client = plan.component_kubeconfig(
        &format!("{name}-kubelet-client"),
        &format!("system:node:{name}"),
        Some("system:nodes"),
    );
    let resolver = host.path("resolv.conf");
    write(&resolver, "");
    let file = host.path("kubelet.json");
    let content = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": plan.ca.own().certificate},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": server.certificate, "tlsPrivateKeyFile": server.key,
        "clusterDomain": "cluster.local", "clusterDNS": [plan.server.0], "resolvConf": resolver,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%",
        },
        "enforceNodeAllocatable": ["pods"], "volumePluginDir": "/var/lib/kubelet/plugins",
        // Changed Secrets and ConfigMaps reach running pods within seconds.
        "syncFrequency": "5s", "nodeStatusUpdateFrequency": "4s",
        "shutdownGracePeriod": "0s",
        "containerLogMaxSize": log_size.unwrap_or("10Mi"), "containerLogMonitorInterval": "3s",
    });
    write(&file, &content.to_string());
    let mut command = plan.command(Some(host), "kubelet");
    command.arg(option("config", &file)).arg(option("kubeconfig", &client));
    command.arg(format!("--hostname-override={name}")).arg(format!("--node-ip={}", host.address));
    command.args(["--root-dir=/var/lib/kubelet", "--v=2"]);
    command
}

/// kube-proxy in iptables mode. It leaves the machine's limits of connection tracking alone.
#[must_use]
pub fn proxy(plan: &Plan, host: &Host) -> Command {
    let config = plan.component_kubeconfig(&format!("{}-proxy", host.name), "system:kube-proxy", None);
    let mut command = plan.command(Some(host), "kube-proxy");
    command.arg(option("kubeconfig", &config)).arg(format!("--hostname-override={}", host.name));
    command.args(["--cluster-cidr=10.244.0.0/16", "--proxy-mode=iptables", "--oom-score-adj=0"]);
    command.args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"]);
    command.args(["--conntrack-tcp-timeout-close-wait=0"]);
    command
}

/// Imports an OCI archive.
#[must_use]
pub fn import(host: &Host, archive: &std::path::Path) -> Command {
    let mut command = host.command("ctr");
    command.args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
    command
}
