//! The demo node as a child program.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::api::Api;
use super::binary;
use super::namespace::Namespace;
use super::program::Program;
use super::wait;

/// Command line of a demo node.
pub struct Demo {
    command: Command,
    name: String,
}

impl Demo {
    /// `chainscope-demo-node <what>`, in this network namespace.
    #[must_use]
    pub fn new(what: &str) -> Self {
        let mut command = Command::new(binary("chainscope-demo-node"));
        command.arg(what).arg("--commands");
        Self { command, name: format!("demo node ({what})") }
    }

    /// The same in another network namespace.
    #[must_use]
    pub fn inside(namespace: &Namespace, what: &str) -> Self {
        let mut command = namespace.command(&binary("chainscope-demo-node"));
        command.arg(what).arg("--commands");
        Self { command, name: format!("demo node ({what}, in a namespace)") }
    }

    /// Adds options, separated by white space.
    #[must_use]
    pub fn with(mut self, options: &str) -> Self {
        self.command.args(options.split_whitespace());
        self
    }

    /// Listens there, as a node does.
    #[must_use]
    pub fn listen(self, port: u16) -> Self {
        self.with(&format!("--listen [::]:{port}"))
    }

    /// Connects to that port of this machine.
    #[must_use]
    pub fn peer(self, port: u16) -> Self {
        self.with(&format!("--peer 127.0.0.1:{port}"))
    }

    /// Where its identity.json is.
    #[must_use]
    pub fn identity(self, path: &Path) -> Self {
        self.option("--identity", path)
    }

    /// An option whose value is a path.
    #[must_use]
    pub fn option(mut self, name: &str, path: &Path) -> Self {
        self.command.arg(name).arg(path);
        self
    }

    /// Starts it and waits until it listens, if it is to.
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

impl Demo {
    /// Starts it as the node that Chainscope records: it connects to nobody before Chainscope says that it observes this process.
    ///
    /// # Panics
    /// If Chainscope does not find it.
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
            program.tell("go");
        }
        program
    }
}

/// A field of an event: a path of names separated by dots.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn field<'a>(event: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(event, |value, name| value.get(name).unwrap_or_else(|| panic!("no {path} in {event}")))
}

/// A number in an event.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn number(event: &Value, path: &str) -> u64 {
    field(event, path).as_u64().unwrap_or_else(|| panic!("{path} is no number in {event}"))
}

/// A text in an event.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn text<'a>(event: &'a Value, path: &str) -> &'a str {
    field(event, path).as_str().unwrap_or_else(|| panic!("{path} is no text in {event}"))
}

/// The remote address of the observed node's connection, as an address.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn address(event: &Value, path: &str) -> SocketAddr {
    text(event, path).parse().unwrap_or_else(|e| panic!("{path} of {event}: {e}"))
}
