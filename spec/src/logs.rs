//! Options of recording log messages.

use std::{net::SocketAddr, path::PathBuf};

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Retention;

/// Log messages of the node, shared by `chainscope.toml` and `TezosNode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Whether log messages are recorded.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Regular expressions. What they match is replaced by "[redacted]" before it leaves the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redact: Vec<String>,
    /// Retention of the log messages; the first limit that is reached applies. Defaults to 5 GiB; an empty object means no
    /// limit.
    #[serde(default = "five_gibibytes")]
    #[schemars(extend("default" = { "bytes": "5GiB" }))]
    pub retention: Retention,
}

impl Default for Logs {
    fn default() -> Self {
        Self { enabled: true, redact: Vec::new(), retention: five_gibibytes() }
    }
}

/// Where the log of a node is read, besides the output of its container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogSources {
    /// A log file of the host, followed through rotation and truncation.
    pub file: Option<PathBuf>,
    /// A syslog server.
    pub syslog: Option<Syslog>,
}

/// A syslog server on UDP and TCP. Nodes may share an address if `app` or `host` tell their messages apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Syslog {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Only messages with this application name.
    #[serde(default)]
    pub app: Option<String>,
    /// Only messages with this host name in the header, or from this IP address.
    #[serde(default)]
    pub host: Option<String>,
}

/// The table `logs` of a `[[nodes]]` entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLogs {
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    redact: Vec<String>,
    #[serde(default = "five_gibibytes")]
    retention: Retention,
    file: Option<PathBuf>,
    syslog: Option<Syslog>,
}

impl FileLogs {
    pub(crate) fn split(self) -> (Logs, LogSources) {
        let Self { enabled, redact, retention, file, syslog } = self;
        (Logs { enabled, redact, retention }, LogSources { file, syslog })
    }
}

fn yes() -> bool {
    true
}

fn five_gibibytes() -> Retention {
    Retention { bytes: Some(ByteSize::gib(5)), rows: None, age: None }
}
