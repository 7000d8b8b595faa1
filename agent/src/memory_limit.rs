//! The memory that this process may use: the memory of the machine, or the least limit of its cgroups and of those above them.

use std::{fs, path::Path};

/// Values of `memory.limit_in_bytes` from which on there is no limit: the kernel shows the greatest number of pages.
const V1_UNLIMITED: u64 = 1 << 62;

/// The limit in bytes.
pub(crate) fn memory_limit() -> u64 {
    let of_cgroups = fs::read_to_string("/proc/self/cgroup").ok();
    let of_cgroups = of_cgroups.and_then(|cgroups| limit_of(&cgroups, Path::new("/sys/fs/cgroup")));
    of_cgroups.unwrap_or(u64::MAX).min(total_memory())
}

/// Memory of the machine in bytes.
fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// The limit of the process with these lines of `/proc/PID/cgroup`. In a cgroup namespace the path begins at its root,
/// which the mount shows.
fn limit_of(cgroups: &str, mount: &Path) -> Option<u64> {
    let limits = cgroups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
        match controllers {
            "" => least(mount, path, "memory.max"),
            // A controller of version 1 has a hierarchy of its own.
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                least(&mount.join("memory"), path, "memory.limit_in_bytes").filter(|limit| *limit < V1_UNLIMITED)
            }
            _ => None,
        }
    });
    limits.min()
}

/// The least value of a file in a group and in those above it.
fn least(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let limit = |group: &Path| fs::read_to_string(mount.join(group).join(file)).ok()?.trim().parse().ok();
    Path::new(path).ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_ancestors_counts() {
        let mount = tempfile::tempdir().expect("a folder");
        let group = mount.path().join("a/b");
        fs::create_dir_all(&group).expect("folders");
        let set =
            |path: &str, limit: &str| fs::write(mount.path().join(path).join("memory.max"), limit).expect("a limit");
        let limit = || limit_of("1:name=systemd:/x\n0::/a/b\n", mount.path());
        assert_eq!(limit(), None);
        set("a/b", "max\n");
        assert_eq!(limit(), None);
        set("a", "2048\n");
        assert_eq!(limit(), Some(2048));
        set("a/b", "4096\n");
        assert_eq!(limit(), Some(2048));
        set("", "1024\n");
        assert_eq!(limit_of("0::/\n", mount.path()), Some(1024));
        assert_eq!(limit_of("5:cpu:/a\n", mount.path()), None);
    }

    #[test]
    fn the_memory_controller_of_version_1_counts() {
        let mount = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(mount.path().join("memory/a/b")).expect("folders");
        let set = |path: &str, limit: &str| {
            let file = mount.path().join("memory").join(path).join("memory.limit_in_bytes");
            fs::write(file, limit).expect("a limit");
        };
        let limit = || limit_of("4:cpu,memory:/a/b\n1:name=systemd:/a\n0::/\n", mount.path());
        assert_eq!(limit(), None);
        for path in ["", "a", "a/b"] {
            set(path, "9223372036854771712\n");
        }
        assert_eq!(limit(), None);
        set("a", "2048\n");
        assert_eq!(limit(), Some(2048));
        // In a container the mount may begin at its own group.
        set("", "1024\n");
        assert_eq!(limit_of("4:memory:/kubepods/pod1/x\n", mount.path()), Some(1024));
        fs::write(mount.path().join("memory.max"), "512\n").expect("a limit");
        assert_eq!(limit(), Some(512));
    }
}
