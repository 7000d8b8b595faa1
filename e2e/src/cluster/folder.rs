//! The folder of one cluster: certificates, logs, data of its hosts, and who was started.
//!
//! `/var/tmp/chainscope-cluster/<random>/`: not `/tmp`, which may be memory. The launcher holds a lock on `lock` as long as it lives,
//! so a folder whose lock is free was left by a launcher that was killed: the next one ends what it had started, and removes it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::cgroup;

const HOME: &str = "/var/tmp/chainscope-cluster";
/// Logs of failed runs that are kept.
const KEPT: &str = "failed";

/// A cluster's folder.
pub struct Folder {
    path: PathBuf,
    // Held, not used.
    _lock: File,
}

impl Folder {
    /// A new one; what killed launchers left is cleaned first.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn create() -> Self {
        std::fs::create_dir_all(HOME).unwrap_or_else(|e| panic!("{HOME}: {e}"));
        sweep();
        let path = tempfile::Builder::new().prefix("run-").tempdir_in(HOME).expect("a folder of the cluster").keep();
        let lock = File::create(path.join("lock")).expect("a lock file");
        lock.lock().expect("a new lock is free");
        std::fs::create_dir_all(path.join("logs")).expect("a folder for logs");
        // Pods of other users read what is mounted from below.
        run_mode(&path);
        Self { path, _lock: lock }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Last part of its path: no other cluster of this machine has the same.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Starts a program whose words go to `logs/<name>.log`, and notes it for those who may have to clean up.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(&self, name: &str, command: &mut Command) -> Child {
        use std::os::unix::process::CommandExt;
        let log = self.log(name);
        let file = OpenOptions::new().create(true).append(true).open(&log).expect("a log file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        // Ctrl-C is for the launcher, which then stops everybody in order.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        self.note("processes", &format!("{} {}", child.id(), started(child.id()).unwrap_or(0)));
        child
    }

    /// Notes control groups that belong to this cluster.
    pub fn note_groups(&self, groups: &[PathBuf]) {
        for group in groups {
            self.note("groups", &group.display().to_string());
        }
    }

    fn note(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.join(file)).expect("a file of notes");
        writeln!(file, "{line}").expect("a note can be written");
    }

    /// Where a program's words are.
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

    /// Moves the logs to where they outlive the folder, and says where that is.
    #[must_use]
    pub fn keep_logs(&self) -> Option<PathBuf> {
        let kept = Path::new(HOME).join(KEPT).join(self.name());
        std::fs::create_dir_all(kept.parent()?).ok()?;
        std::fs::rename(self.path.join("logs"), &kept).ok()?;
        Some(kept)
    }

    /// Ends all that was started and removes the folder.
    pub fn remove(&self) {
        clean(&self.path);
    }
}

fn run_mode(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the folder's mode");
}

/// Cleans folders whose launcher is gone.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(HOME) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-"));
        let Ok(lock) = File::open(path.join("lock")) else { continue };
        if ours && lock.try_lock().is_ok() {
            eprintln!("cleaning {}, whose launcher was killed", path.display());
            clean(&path);
        }
    }
}

fn clean(path: &Path) {
    let lines = |file: &str| -> Vec<String> {
        std::fs::read_to_string(path.join(file)).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    for line in lines("processes").iter().rev() {
        let Some((pid, start)) = line.split_once(' ') else { continue };
        let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else { continue };
        // The number may be another process's by now; its start time is not.
        if started(pid) == Some(start)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for group in lines("groups") {
        cgroup::end(Path::new(&group));
    }
    if let Err(error) = std::fs::remove_dir_all(path) {
        eprintln!("{} stays: {error}", path.display());
    }
}

/// When a process started, in clock ticks since boot; nothing if there is none.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets: fields are counted after its last one.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
