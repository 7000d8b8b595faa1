//! The memory limit of this process: the least of its cgroup and of those above it.

use std::{fs, path::Path};

/// The limit in bytes; none if there is none, or no cgroup of version 2.
pub(crate) fn memory_limit() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(&cgroups, Path::new("/sys/fs/cgroup"))
}

/// The limit of the process with these lines of `/proc/PID/cgroup`. In a cgroup namespace the path begins at its root,
/// which the mount shows.
fn limit_of(cgroups: &str, mount: &Path) -> Option<u64> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| fs::read_to_string(mount.join(group).join("memory.max")).ok()?.trim().parse().ok();
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
        assert_eq!(limit_of("5:memory:/a\n", mount.path()), None);
    }
}
