//! A host of the cluster: a set of namespaces on this machine, connected to the others by a bridge.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cgroup;
use super::folder::Folder;
use crate::harness::namespace::sleeping_child;
use crate::harness::{run, wait};

/// Script that creates the namespaces.
const OUTSIDE: &str = include_str!("outside.sh");
/// Script that prepares mounts and the network inside of them.
const INSIDE: &str = include_str!("inside.sh");

/// A host: a Kubernetes node.
pub struct Host {
    /// Its name in Kubernetes.
    pub name: String,
    /// Its address on the bridge.
    pub address: Ipv4Addr,
    /// Its number from 0; the pod CIDR is `10.244.<number>.0/24`.
    pub number: u8,
    folder: PathBuf,
    // The process that holds the namespaces, as this process sees it.
    pid: u32,
    is_nested: bool,
    groups: Vec<PathBuf>,
}

impl Host {
    /// Creates a host. The first one has the bridge, to which later ones are connected. Those have a PID namespace of their own, as
    /// hosts that are containers have.
    ///
    /// # Panics
    /// If a namespace, cgroup or device cannot be created.
    #[must_use]
    pub fn new(cluster: &Folder, number: u8, first: Option<&Host>) -> (Self, std::process::Child) {
        let name = format!("host{}", u16::from(number) + 1);
        let folder = cluster.join(&name);
        std::fs::create_dir_all(&folder).expect("directory of the host");
        for (file, text) in [("outside.sh", OUTSIDE), ("inside.sh", INSIDE)] {
            std::fs::write(folder.join(file), text).expect("write");
        }
        let groups = cgroup::create(&format!("chainscope-{}-{name}", cluster.name()));
        cluster.record_groups(&groups);
        let mut command = Command::new("sh");
        let is_nested = first.is_some();
        let pids = if is_nested { "NESTED" } else { "SHARED" };
        command.arg(folder.join("outside.sh")).args([pids, &name]).arg(&folder).args(&groups);
        let mut child = cluster.spawn(&name, &mut command);
        wait::until(&format!("namespaces of {name}"), || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("no namespaces for {name}: {status}\n{}", cluster.tail(&name, 20));
            }
            folder.join("ready").exists().then_some(())
        });
        let address = Ipv4Addr::new(192, 168, 77, 2 + number);
        let pid = match is_nested {
            true => wait::until("process 1 of the host", || sleeping_child(child.id())),
            false => child.id(),
        };
        let host = Self { name, address, number, folder, pid, is_nested, groups };
        host.join_network(first);
        (host, child)
    }

    fn join_network(&self, first: Option<&Host>) {
        let address = format!("{}/24", self.address);
        let ip = |host: &Host, arguments: &str| {
            run(host.command("ip").args(arguments.split(' ')));
        };
        match first {
            None => {
                ip(self, "link add eth0 type bridge");
                ip(self, &format!("addr add {address} dev eth0"));
                ip(self, "link set eth0 up");
                // Kubernetes requires a default route to determine the address of the node.
                ip(self, "route add default via 192.168.77.1 dev eth0");
            }
            Some(first) => {
                let port = format!("to-{}", self.name);
                ip(first, &format!("link add {port} type veth peer name eth0 netns {}", self.pid));
                ip(first, &format!("link set {port} master eth0 up"));
                ip(self, &format!("addr add {address} dev eth0"));
                ip(self, "link set eth0 up");
                ip(self, &format!("route add default via {}", first.address));
                ip(self, &format!("route add {} via {}", first.pod_cidr(), first.address));
                ip(first, &format!("route add {} via {}", self.pod_cidr(), self.address));
            }
        }
        // Requests to the metadata service of clouds fail at once instead of timing out.
        ip(self, "route replace unreachable 169.254.0.0/16");
    }

    /// Its pod CIDR.
    #[must_use]
    pub fn pod_cidr(&self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    /// A command that runs in the namespaces of this host. The pid of the child is the program's, unless the host has a PID namespace of
    /// its own: then it is that of `nsenter`, which waits for the program.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        // Entering a cgroup namespace does not move the process into the cgroup.
        const ENTER: &str = "pid=$1; shift; while [ \"$1\" != -- ]; do echo $$ >\"$1/cgroup.procs\"; shift; done; shift; \
                             exec nsenter --target \"$pid\" --mount --cgroup --net --uts --wd=/ \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-euc", ENTER, "enter", &self.pid.to_string()]);
        for group in &self.groups {
            let leaf = group.join("system");
            command.arg(if leaf.is_dir() { &leaf } else { group });
        }
        command.arg("--").args(self.is_nested.then_some("--pid")).arg("--").arg(program);
        command
    }

    /// The path on this machine of a file of the host: `lib` is its `/var/lib`, `log` its `/var/log`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of its network namespace.
    #[must_use]
    pub fn network(&self) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("ns/net")
    }

    /// Cgroups of the host, one per hierarchy.
    #[must_use]
    pub fn groups(&self) -> &[PathBuf] {
        &self.groups
    }
}
