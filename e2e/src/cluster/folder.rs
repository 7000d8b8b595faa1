//! The directory of one cluster: certificates, logs, data of its hosts, and a list of its processes.
//!
//! `/var/tmp/chainscope-cluster/run-<random>/`; `/tmp` may be a tmpfs. The launcher holds a lock on the file `lock` while it runs. A
//! directory whose lock is free was left by a killed launcher: the next one kills its processes and removes it. One launcher at a time
//! creates its directory: the lock of a new one is free for a moment.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::cgroup;

const BASE: &str = "/var/tmp/chainscope-cluster";
/// Directory of the logs of failed runs.
const FAILED: &str = "failed";

/// A cluster's directory.
pub struct Folder {
    path: PathBuf,
    // Locked until drop.
    _lock: File,
}

impl Folder {
    /// Creates a directory, after removing those of killed launchers.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn create() -> Self {
        std::fs::create_dir_all(BASE).unwrap_or_else(|e| panic!("{BASE}: {e}"));
        let creating = File::create(Path::new(BASE).join("creating")).expect("lock file");
        creating.lock().expect("lock of the launchers");
        remove_stale();
        let path = tempfile::Builder::new().prefix("run-").tempdir_in(BASE).expect("temporary directory").keep();
        let lock = File::create(path.join("lock")).expect("lock file");
        lock.lock().expect("lock of a new file");
        std::fs::create_dir_all(path.join("logs")).expect("directory of logs");
        // Containers of other users read volumes that are mounted from it.
        set_mode(&path);
        Self { path, _lock: lock }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The last component of the path, unique on this machine.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Starts a program with its output in `logs/<name>.log`, and records its pid for the cleanup.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(&self, name: &str, command: &mut Command) -> Child {
        use std::os::unix::process::CommandExt;
        let log = self.log(name);
        let file = OpenOptions::new().create(true).append(true).open(&log).expect("log file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("duplicated descriptor")).stderr(file);
        // Not in the process group that receives Ctrl-C: the launcher stops its processes in order.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        self.record("processes", &format!("{} {}", child.id(), start_time(child.id()).unwrap_or(0)));
        child
    }

    /// Records cgroups of this cluster for the cleanup.
    pub fn record_groups(&self, groups: &[PathBuf]) {
        for group in groups {
            self.record("groups", &group.display().to_string());
        }
    }

    fn record(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.join(file)).expect("file of records");
        writeln!(file, "{line}").expect("write");
    }

    /// The path of a program's log.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// The last lines of a program's log.
    #[must_use]
    pub fn tail(&self, name: &str, lines: usize) -> String {
        let text = std::fs::read(self.log(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<_> = text.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }

    /// Moves the logs out of the directory and returns their new path.
    #[must_use]
    pub fn keep_logs(&self) -> Option<PathBuf> {
        let kept = Path::new(BASE).join(FAILED).join(self.name());
        std::fs::create_dir_all(kept.parent()?).ok()?;
        std::fs::rename(self.path.join("logs"), &kept).ok()?;
        Some(kept)
    }

    /// Kills all processes of the cluster and removes the directory.
    pub fn remove(&self) {
        remove(&self.path);
    }
}

fn set_mode(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Removes directories whose launcher was killed.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(BASE) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-"));
        let Ok(lock) = File::open(path.join("lock")) else { continue };
        if ours && lock.try_lock().is_ok() {
            eprintln!("removing {}, whose launcher was killed", path.display());
            remove(&path);
        }
    }
}

fn remove(path: &Path) {
    let lines = |file: &str| -> Vec<String> {
        std::fs::read_to_string(path.join(file)).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    for line in lines("processes").iter().rev() {
        let Some((pid, start)) = line.split_once(' ') else { continue };
        let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else { continue };
        // The pid may have been reused, by a process with another start time.
        if start_time(pid) == Some(start)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for group in lines("groups") {
        cgroup::kill_and_remove(Path::new(&group));
    }
    if let Err(error) = std::fs::remove_dir_all(path) {
        eprintln!("cannot remove {}: {error}", path.display());
    }
}

/// The start time of a process in clock ticks since boot; `None` if it does not exist.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses: fields are counted after the last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
