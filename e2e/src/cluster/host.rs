//! A host of the cluster: namespaces of its own on this machine, joined by a bridge.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cgroup;
use super::folder::Folder;
use crate::harness::run;

/// Makes the namespaces.
const OUTSIDE: &str = include_str!("outside.sh");
/// Mounts and so on inside of them.
const INSIDE: &str = include_str!("inside.sh");

/// A host.
pub struct Host {
    /// As Kubernetes knows it.
    pub name: String,
    /// On the bridge between hosts.
    pub address: Ipv4Addr,
    /// First two bytes, then the number, of its pods' addresses: `10.244.<number>.0/24`.
    pub number: u8,
    folder: PathBuf,
    // The process that keeps the namespaces.
    pid: u32,
    groups: Vec<PathBuf>,
}

impl Host {
    /// A new one: the first has the bridge, later ones hang on it.
    ///
    /// # Panics
    /// If the machine does not let us.
    #[must_use]
    pub fn new(cluster: &Folder, number: u8, first: Option<&Host>) -> (Self, std::process::Child) {
        let name = format!("host{}", u16::from(number) + 1);
        let folder = cluster.join(&name);
        std::fs::create_dir_all(&folder).expect("a folder of the host");
        for (file, text) in [("outside.sh", OUTSIDE), ("inside.sh", INSIDE)] {
            std::fs::write(folder.join(file), text).expect("a script can be written");
        }
        let groups = cgroup::make(&format!("chainscope-{}-{name}", cluster.name()));
        cluster.note_groups(&groups);
        let mut command = Command::new("sh");
        command.arg(folder.join("outside.sh")).arg(&name).arg(&folder).args(&groups);
        let mut child = cluster.spawn(&name, &mut command);
        crate::harness::wait::until(&format!("namespaces of {name}"), || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("no namespaces for {name}: {status}\n{}", cluster.tail(&name, 20));
            }
            folder.join("ready").exists().then_some(())
        });
        let address = Ipv4Addr::new(192, 168, 77, 2 + number);
        let host = Self { name, address, number, folder, pid: child.id(), groups };
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
                // Kubernetes wants to know which device leads out; nothing does.
                ip(self, "route add default via 192.168.77.1 dev eth0");
            }
            Some(first) => {
                let port = format!("to-{}", self.name);
                ip(first, &format!("link add {port} type veth peer name eth0 netns {}", self.pid));
                ip(first, &format!("link set {port} master eth0 up"));
                ip(self, &format!("addr add {address} dev eth0"));
                ip(self, "link set eth0 up");
                ip(self, &format!("route add default via {}", first.address));
                ip(self, &format!("route add {} via {}", first.pods(), first.address));
                ip(first, &format!("route add {} via {}", self.pods(), self.address));
            }
        }
        // Nobody answers for link-local addresses, where clouds have their metadata: fail at once.
        ip(self, "route replace unreachable 169.254.0.0/16");
    }

    /// Addresses of its pods.
    #[must_use]
    pub fn pods(&self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    /// A program on this host. It becomes the process that is started, so its pid is the program's.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        // Entering a namespace of control groups does not move the process into the group.
        const ENTER: &str = "pid=$1; shift; while [ \"$1\" != -- ]; do echo $$ >\"$1/cgroup.procs\"; shift; done; \
                             exec nsenter --target \"$pid\" --mount --cgroup --net --uts --wd=/ \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-euc", ENTER, "enter", &self.pid.to_string()]);
        for group in &self.groups {
            let leaf = group.join("system");
            command.arg(if leaf.is_dir() { &leaf } else { group });
        }
        command.arg("--").arg(program);
        command
    }

    /// A file or folder of the host, as this process sees it: below `lib` is its `/var/lib`, below `log` its `/var/log`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Its network namespace.
    #[must_use]
    pub fn network(&self) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("ns/net")
    }

    /// Control groups of the host, one a hierarchy.
    #[must_use]
    pub fn groups(&self) -> &[PathBuf] {
        &self.groups
    }
}
