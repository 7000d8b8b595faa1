//! Network namespaces for tests.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::run;

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
