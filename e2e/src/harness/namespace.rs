//! Network namespaces and nested pid namespaces for tests.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{run, wait};

/// A network namespace with its loopback device up. It is deleted on drop.
pub struct Namespace {
    name: String,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    /// Creates a network namespace.
    ///
    /// # Panics
    /// If `ip` fails.
    #[must_use]
    pub fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = Self { name: format!("chainscope-{}-{number}", std::process::id()) };
        run(Command::new("ip").args(["netns", "add", &namespace.name]));
        run(Command::new("ip").args(["-n", &namespace.name, "link", "set", "lo", "up"]));
        namespace
    }

    /// A command that runs in the namespace. `ip` executes the program, so the pid is the program's.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Its path, as in chainscope.toml.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

/// A host that is a container itself, as in kind: a pid namespace with a `/proc` of its own, and a network namespace with its
/// loopback device up. Everything in it is killed on drop.
pub struct NestedHost {
    unshare: Child,
    /// Process id of its process 1, as this process sees it.
    init: u32,
}

impl NestedHost {
    /// Starts its process 1.
    ///
    /// # Panics
    /// If `unshare` fails.
    #[must_use]
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--net"]);
        command.args(["sh", "-c", "ip link set lo up && exec sleep infinity"]).stdin(Stdio::null());
        let unshare = command.spawn().expect("unshare");
        let init = wait::until("process 1 of a nested pid namespace", || sleeping_child(unshare.id()));
        Self { unshare, init }
    }

    /// A command that runs in its pid namespace and with its `/proc`, but in the network namespace of this process.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        self.enter(&["--pid", "--mount"], program)
    }

    /// A command that runs in all its namespaces.
    #[must_use]
    pub fn command_in_network(&self, program: &Path) -> Command {
        self.enter(&["--pid", "--mount", "--net"], program)
    }

    fn enter(&self, namespaces: &[&str], program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init)).args(namespaces).arg("--").arg(program);
        command
    }
}

impl Default for NestedHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for NestedHost {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// The child of a process, once it executes `sleep`.
pub(crate) fn sleeping_child(parent: u32) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.split_once(" (sleep) ").map(|(_, fields)| fields);
        fields.and_then(|fields| fields.split(' ').nth(1)) == Some(parent.to_string().as_str())
    })
}
