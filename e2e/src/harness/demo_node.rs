//! The demo node as a child process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::api::Api;
use super::binary;
use super::namespace::{Namespace, NestedHost};
use super::program::Program;
use super::wait;

/// The command line of a demo node.
pub struct DemoNode {
    command: Command,
    name: String,
}

impl DemoNode {
    /// `chainscope-demo-node <mode>`, in this network namespace.
    #[must_use]
    pub fn new(mode: &str) -> Self {
        let mut command = Command::new(binary("chainscope-demo-node"));
        command.arg(mode).arg("--commands");
        Self { command, name: format!("demo node ({mode})") }
    }

    /// `chainscope-demo-node <mode>`, in another network namespace.
    #[must_use]
    pub fn in_namespace(namespace: &Namespace, mode: &str) -> Self {
        let mut command = namespace.command(&binary("chainscope-demo-node"));
        command.arg(mode).arg("--commands");
        Self { command, name: format!("demo node ({mode}, in a namespace)") }
    }

    /// `chainscope-demo-node <mode>`, in a nested host.
    #[must_use]
    pub fn in_host(host: &NestedHost, mode: &str) -> Self {
        let mut command = host.command_in_network(&binary("chainscope-demo-node"));
        command.arg(mode).arg("--commands");
        Self { command, name: format!("demo node ({mode}, in a nested host)") }
    }

    /// Adds options, separated by whitespace.
    #[must_use]
    pub fn with(mut self, options: &str) -> Self {
        self.command.args(options.split_whitespace());
        self
    }

    /// Listens on that port of every address.
    #[must_use]
    pub fn listen(self, port: u16) -> Self {
        self.with(&format!("--listen [::]:{port}"))
    }

    /// Connects to that port of the loopback address.
    #[must_use]
    pub fn peer(self, port: u16) -> Self {
        self.with(&format!("--peer 127.0.0.1:{port}"))
    }

    /// Sets the path of its identity.json.
    #[must_use]
    pub fn identity(self, path: &Path) -> Self {
        self.option("--identity", path)
    }

    /// Adds an option whose value is a path.
    #[must_use]
    pub fn option(mut self, name: &str, path: &Path) -> Self {
        self.command.arg(name).arg(path);
        self
    }

    /// Starts the node and waits until it listens, if it has --listen.
    #[must_use]
    pub fn start(mut self) -> Program {
        let listens = self.command.get_args().any(|a| a == "--listen");
        let program = Program::start(&self.name, &mut self.command);
        if listens {
            program.wait_events("listening", 1);
        }
        program
    }
}

impl DemoNode {
    /// Starts the node that Chainscope records: it does not connect before Chainscope reports that it observes the process.
    ///
    /// # Panics
    /// If Chainscope does not observe it in time.
    #[must_use]
    pub fn start_observed(self, api: &Api, node: &str) -> Program {
        let connects = self.command.get_args().any(|a| a == "--peer");
        let mut program = if connects { self.with("--hold connect").start() } else { self.start() };
        wait::until(&format!("{node} to be observed as pid {}", program.pid()), || {
            let nodes = api.get("/nodes");
            let node = nodes.as_array()?.iter().find(|n| n["name"] == node)?;
            node["targets"].as_array()?.iter().any(|t| t["pid"] == program.pid()).then_some(())
        });
        if connects {
            program.write_line("go");
        }
        program
    }
}

/// A field of an event; `path` is a list of names separated by dots.
///
/// # Panics
/// If it does not exist.
#[must_use]
pub fn field<'a>(event: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(event, |value, name| value.get(name).unwrap_or_else(|| panic!("no {path} in {event}")))
}

/// A number of an event.
///
/// # Panics
/// If it is not a number.
#[must_use]
pub fn number(event: &Value, path: &str) -> u64 {
    field(event, path).as_u64().unwrap_or_else(|| panic!("{path} is not a number in {event}"))
}

/// A string of an event.
///
/// # Panics
/// If it is not a string.
#[must_use]
pub fn text<'a>(event: &'a Value, path: &str) -> &'a str {
    field(event, path).as_str().unwrap_or_else(|| panic!("{path} is not a string in {event}"))
}

/// A socket address of an event.
///
/// # Panics
/// If it is not an address.
#[must_use]
pub fn address(event: &Value, path: &str) -> SocketAddr {
    text(event, path).parse().unwrap_or_else(|e| panic!("{path} of {event}: {e}"))
}
