//! `chainscope run` as a child process with its own configuration and directories.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::api::Api;
use super::namespace::{Namespace, NestedHost};
use super::program::Program;
use super::{binary, free_port, require_root};

/// Configuration and data directory of Chainscope, which outlive single runs of it.
pub struct Machine {
    directory: TempDir,
    port: u16,
    /// The capture mode: "auto", "sock" or "syscall".
    pub capture: String,
    /// Additional lines at the top of the configuration.
    pub options: String,
    nodes: Vec<String>,
}

/// A running Chainscope.
pub struct Recorder {
    /// Its API, dropped before the process is killed.
    pub api: DiagnosticsGuard,
    /// The process.
    pub program: Program,
}

/// The API. When dropped while a test fails, it prints the connections and counters that the API reports.
pub struct DiagnosticsGuard(Api);

impl std::ops::Deref for DiagnosticsGuard {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0
    }
}

impl Drop for DiagnosticsGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for path in ["/v3/connections?limit=30", "/v2/stats"] {
                if let Some((_, body)) = self.0.request(path) {
                    eprintln!("--- {path}:\n{body:.8000}");
                }
            }
        }
    }
}

impl Machine {
    /// A machine without nodes.
    ///
    /// # Panics
    /// If the test does not run as root.
    #[must_use]
    pub fn new(capture: &str) -> Self {
        require_root();
        let directory = tempfile::Builder::new().prefix("chainscope-e2e-").tempdir().expect("a temporary directory");
        let capture = std::env::var("CHAINSCOPE_CAPTURE").unwrap_or_else(|_| capture.to_owned());
        Self { directory, port: free_port(), capture, options: String::new(), nodes: Vec::new() }
    }

    /// A path in the directory of this machine.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Directory of the database and the session journal.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Path of the node's identity: `<name>.identity.json`.
    #[must_use]
    pub fn identity(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.identity.json"))
    }

    /// Adds a node that listens on that port.
    pub fn observe(&mut self, name: &str, port: u16) {
        self.observe_with(name, port, "");
    }

    /// Adds a node with additional lines of configuration.
    pub fn observe_with(&mut self, name: &str, port: u16, options: &str) {
        let identity = self.identity(name);
        let lines = format!(
            "[[nodes]]\nname = {name:?}\np2p_port = {port}\nidentity = {:?}\n{options}\n",
            identity.display().to_string()
        );
        self.nodes.push(lines);
    }

    /// Adds a node that consists of every process that executes this file, to observe its memory with a snapshot every 5 s.
    pub fn observe_memory(&mut self, name: &str, exe: &Path) {
        self.observe_program(name, exe, "memory = { snapshots = { every = \"5s\" } }");
    }

    /// Adds a node that consists of every process that executes this file, with additional lines of configuration.
    pub fn observe_program(&mut self, name: &str, exe: &Path, options: &str) {
        self.nodes.push(format!("[[nodes]]\nname = {name:?}\nexe = {:?}\n{options}\n", exe.display().to_string()));
    }

    /// Removes all nodes.
    pub fn observe_nothing(&mut self) {
        self.nodes.clear();
    }

    /// Adds a node that listens on that port in a network namespace.
    pub fn observe_in_namespace(&mut self, name: &str, port: u16, namespace: &Namespace) {
        self.observe_with(name, port, &format!("netns = {:?}", namespace.path()));
    }

    /// The text of chainscope.toml.
    #[must_use]
    pub fn configuration(&self) -> String {
        format!(
            "listen = \"127.0.0.1:{}\"\ndata_dir = {:?}\ncapture = {:?}\n{}\n\n{}",
            self.port,
            self.data_dir().display().to_string(),
            self.capture,
            self.options,
            self.nodes.join("\n")
        )
    }

    /// Starts Chainscope and waits until its probes are attached and it serves the API.
    ///
    /// # Panics
    /// If it exits before, or after a timeout.
    #[must_use]
    pub fn start(&self) -> Recorder {
        self.wait_for(self.launch())
    }

    /// Starts Chainscope in the pid namespace of a nested host, as [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_in(&self, host: &NestedHost) -> Recorder {
        self.wait_for(self.launch_by(host.command(&binary("chainscope"))))
    }

    fn wait_for(&self, program: Program) -> Recorder {
        let api = Api::new(self.port);
        // Logged once the probes are attached; the API is served a little earlier.
        program.wait_stderr("\"API on\"", |lines| lines.iter().any(|line| line.contains("API on http")).then_some(()));
        Recorder { api: DiagnosticsGuard(api), program }
    }

    /// Starts Chainscope without waiting.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn launch(&self) -> Program {
        self.launch_by(Command::new(binary("chainscope")))
    }

    fn launch_by(&self, mut command: Command) -> Program {
        let file = self.path("chainscope.toml");
        std::fs::write(&file, self.configuration()).expect("the configuration can be written");
        std::fs::create_dir_all(self.data_dir()).expect("the data directory can be made");
        command.arg("run").arg("--config").arg(file);
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "info");
        }
        Program::start("chainscope", &mut command)
    }

    /// The port of the API.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of everything that Chainscope writes on this machine.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}
