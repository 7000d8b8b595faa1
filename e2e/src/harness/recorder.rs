//! `chainscope run` as a child program, with a configuration and folders of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::api::Api;
use super::namespace::Namespace;
use super::program::Program;
use super::{binary, free_port, require_root};

/// A machine to record on: outlives single runs of Chainscope.
pub struct Machine {
    folder: TempDir,
    port: u16,
    /// How bytes are taken from the kernel: "auto", "sock" or "syscall".
    pub capture: String,
    /// More lines for the top of the configuration.
    pub options: String,
    nodes: Vec<String>,
}

/// A running Chainscope.
pub struct Recorder {
    /// Its API; dropped before the process is killed.
    pub api: Witness,
    /// The process.
    pub program: Program,
}

/// The API. Dropped while a test fails, it tells what Chainscope knew of the connections.
pub struct Witness(Api);

impl std::ops::Deref for Witness {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for path in ["/v3/connections?limit=30", "/v2/stats"] {
                if let Some((_, body)) = self.0.ask(path) {
                    eprintln!("--- {path}:\n{body:.8000}");
                }
            }
        }
    }
}

impl Machine {
    /// An empty one.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new(capture: &str) -> Self {
        require_root();
        let folder = tempfile::Builder::new().prefix("chainscope-e2e-").tempdir().expect("a folder");
        let capture = std::env::var("CHAINSCOPE_CAPTURE").unwrap_or_else(|_| capture.to_owned());
        Self { folder, port: free_port(), capture, options: String::new(), nodes: Vec::new() }
    }

    /// A file of this machine.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Folder of the database and the journal.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Where the node's identity is: `<name>.identity.json`.
    #[must_use]
    pub fn identity(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.identity.json"))
    }

    /// Observes the node that listens on that port.
    pub fn observe(&mut self, name: &str, port: u16) {
        self.observe_with(name, port, "");
    }

    /// The same with more lines for the node.
    pub fn observe_with(&mut self, name: &str, port: u16, options: &str) {
        let identity = self.identity(name);
        let lines = format!(
            "[[nodes]]\nname = {name:?}\np2p_port = {port}\nidentity = {:?}\n{options}\n",
            identity.display().to_string()
        );
        self.nodes.push(lines);
    }

    /// Observes the memory of every process that executes this file; a snapshot is kept every few seconds.
    pub fn observe_memory(&mut self, name: &str, exe: &Path) {
        let memory = "memory = { snapshots = { every = \"5s\" } }";
        self.nodes.push(format!("[[nodes]]\nname = {name:?}\nexe = {:?}\n{memory}\n", exe.display().to_string()));
    }

    /// Observes the node that listens on that port in a namespace.
    pub fn observe_inside(&mut self, name: &str, port: u16, namespace: &Namespace) {
        self.observe_with(name, port, &format!("netns = {:?}", namespace.path()));
    }

    /// The configuration.
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

    /// Starts Chainscope and waits until it records and answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(&self) -> Recorder {
        let program = self.launch();
        let api = Api::new(self.port);
        // Said once the probes are attached; the API itself answers a little earlier.
        program.wait_err("\"API on\"", |lines| lines.iter().any(|line| line.contains("API on http")).then_some(()));
        Recorder { api: Witness(api), program }
    }

    /// Starts Chainscope without waiting for anything.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn launch(&self) -> Program {
        let file = self.path("chainscope.toml");
        std::fs::write(&file, self.configuration()).expect("the configuration can be written");
        std::fs::create_dir_all(self.data_dir()).expect("the data folder can be made");
        let mut command = Command::new(binary("chainscope"));
        command.arg("run").arg("--config").arg(file);
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "info");
        }
        Program::start("chainscope", &mut command)
    }

    /// The API's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Everything that this machine's Chainscope has written.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
