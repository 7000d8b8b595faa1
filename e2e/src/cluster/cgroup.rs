//! Cgroups of a cluster's hosts.
//!
//! Each host has one cgroup in every hierarchy, with its processes and all its pods below it. Pods cannot exceed the limits of
//! the launcher, and the teardown finds every process of the cluster, whatever its parent is.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit for killed processes to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates the cgroup `name`: in each hierarchy of version 1 below the caller's own; with version 2 alone at its root, because a
/// cgroup with processes cannot have children with controllers there.
///
/// # Panics
/// If cgroups are not mounted or cannot be created.
#[must_use]
pub fn create(name: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("/proc/self/cgroup");
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if !controllers.is_empty() {
            let parent = mounted(&mounts, controllers, path)
                .unwrap_or_else(|| panic!("the cgroup hierarchy {controllers} is not mounted"));
            let group = parent.join(name);
            std::fs::create_dir_all(&group).unwrap_or_else(|e| panic!("{}: {e}", group.display()));
            // A new cpuset is empty; the kernel admits no process to it.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = std::fs::read(parent.join(file)) {
                    std::fs::write(group.join(file), value).unwrap_or_else(|e| panic!("{}: {e}", group.display()));
                }
            }
            groups.push(group);
        }
    }
    if groups.is_empty() {
        let group = Path::new("/sys/fs/cgroup").join(name);
        std::fs::create_dir_all(&group).unwrap_or_else(|e| panic!("{}: {e}", group.display()));
        groups.push(group);
    }
    groups
}

/// The directory of the own cgroup in a mounted hierarchy.
fn mounted(mounts: &str, controllers: &str, own: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let options = kind.next().filter(|&k| k == "cgroup").and(kind.nth(1))?;
        let matches = controllers.split(',').all(|controller| options.split(',').any(|option| option == controller));
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        matches.then(|| Path::new(point).join(below))
    })
}

/// Kills every process of a cgroup and its descendants, and removes them.
pub fn kill_and_remove(group: &Path) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    while group.exists() {
        let mut alive = 0;
        for below in tree(group).iter().rev() {
            let processes = std::fs::read_to_string(below.join("cgroup.procs")).unwrap_or_default();
            for pid in processes.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
                alive += 1;
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = std::fs::remove_dir(below);
        }
        if Instant::now() > deadline {
            eprintln!("cannot remove {}: {alive} processes in it", group.display());
            return;
        }
        if group.exists() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// The cgroup and its descendants, parents first.
fn tree(group: &Path) -> Vec<PathBuf> {
    let mut all = vec![group.to_owned()];
    let mut next = 0;
    while let Some(group) = all.get(next) {
        let below: Vec<_> =
            std::fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        all.extend(below.into_iter().filter(|path| path.is_dir()));
        next += 1;
    }
    all
}
