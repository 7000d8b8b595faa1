//! Options of recording log messages.

use std::{borrow::Cow, net::SocketAddr, path::PathBuf};

use bytesize::ByteSize;
use regex::bytes::{NoExpand, Regex, RegexBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Error, NodeConfig, Retention};

/// Log messages of the node, shared by `chainscope.toml` and `TezosNode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Whether log messages are recorded.
    #[serde(default = "crate::default_true")]
    pub enabled: bool,
    /// Regular expressions, in a syntax like that of RE2. What they match is replaced by "[redacted]" before it leaves the
    /// host. If one is invalid, no log messages are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "patterns")]
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

/// Bounds for a resource, which anyone in its namespace may write and each agent of its pods compiles.
fn patterns(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": { "type": "string", "minLength": 1, "maxLength": 512 },
        "x-kubernetes-list-type": "atomic",
    })
}

/// Patterns whose matches are replaced before a log message leaves the host.
#[derive(Debug, Clone, Default)]
pub struct Redaction(Vec<Regex>);

/// A pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedactionError {
    /// More patterns than [`MAX_PATTERNS`].
    #[error("{0} patterns, at most {MAX_PATTERNS} can be used")]
    TooMany(usize),
    /// Not a regular expression, or one that is too large.
    #[error("invalid pattern {pattern:?}: {cause}")]
    Invalid {
        /// The pattern.
        pattern: String,
        /// The fault.
        cause: String,
    },
    /// It matches where there is nothing to replace.
    #[error("the pattern {0:?} matches empty text")]
    MatchesEmpty(String),
}

/// Most patterns of one node: each is applied to each message.
const MAX_PATTERNS: usize = 64;
/// Memory that one compiled pattern may take.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// What a match is replaced by.
const REDACTED: NoExpand<'static> = NoExpand(b"[redacted]");

impl Redaction {
    /// Compiles patterns.
    ///
    /// # Errors
    /// A [`RedactionError`] that names the pattern.
    pub fn new(patterns: &[String]) -> Result<Self, RedactionError> {
        if patterns.len() > MAX_PATTERNS {
            return Err(RedactionError::TooMany(patterns.len()));
        }
        let compile = |pattern: &String| {
            let compiled = RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build();
            let cause = |error: regex::Error| match error {
                // The message repeats the pattern, over several lines.
                regex::Error::Syntax(text) => text.lines().last().unwrap_or_default().to_owned(),
                other => other.to_string(),
            };
            match compiled {
                Err(error) => Err(RedactionError::Invalid { pattern: pattern.clone(), cause: cause(error) }),
                Ok(regex) if regex.is_match(b"") => Err(RedactionError::MatchesEmpty(pattern.clone())),
                Ok(regex) => Ok(regex),
            }
        };
        patterns.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// The message with every match of every pattern replaced by `[redacted]`, one pattern after the other.
    #[must_use]
    pub fn apply(&self, message: Vec<u8>) -> Vec<u8> {
        self.0.iter().fold(message, |message, pattern| {
            let redacted = match pattern.replace_all(&message, REDACTED) {
                Cow::Owned(redacted) => Some(redacted),
                Cow::Borrowed(_) => None,
            };
            redacted.unwrap_or(message)
        })
    }
}

impl PartialEq for Redaction {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(Regex::as_str).eq(other.0.iter().map(Regex::as_str))
    }
}

impl Eq for Redaction {}

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Only messages with this host name in the header, or from this IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// The table `logs` of a `[[nodes]]` entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLogs {
    #[serde(default = "crate::default_true", skip_serializing_if = "is_true")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    redact: Vec<String>,
    #[serde(default = "five_gibibytes", skip_serializing_if = "is_five_gibibytes")]
    retention: Retention,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syslog: Option<Syslog>,
}

impl FileLogs {
    /// What the keys of the original stand for: a syslog server, and a number of messages to keep.
    pub(crate) fn legacy(listen: SocketAddr, rows: Option<u64>) -> Self {
        let retention = rows.map_or_else(five_gibibytes, |rows| Retention { rows: Some(rows), bytes: None, age: None });
        let syslog = Some(Syslog { listen, app: None, host: None });
        Self { enabled: true, redact: Vec::new(), retention, file: None, syslog }
    }

    pub(crate) fn split(self) -> (Logs, LogSources) {
        let Self { enabled, redact, retention, file, syslog } = self;
        (Logs { enabled, redact, retention }, LogSources { file, syslog })
    }
}

/// Checks the log options of a node with those before it.
pub(crate) fn validate(index: usize, node: &NodeConfig, earlier: &[NodeConfig]) -> Result<(), Error> {
    let Some(logs) = &node.observe.logs else { return Ok(()) };
    Redaction::new(&logs.redact).map_err(|cause| Error::Redaction { index, cause })?;
    let recorded =
        earlier.iter().enumerate().filter(|(_, node)| node.observe.logs.as_ref().is_some_and(|logs| logs.enabled));
    let LogSources { file, syslog } = &node.log_sources;
    for (earlier, other) in recorded.filter(|_| logs.enabled) {
        if let Some(path) = file.as_ref().filter(|path| other.log_sources.file.as_ref() == Some(*path)) {
            return Err(Error::SameLogFile { index, earlier, path: path.clone() });
        }
        if let (Some(one), Some(two)) = (syslog, &other.log_sources.syslog)
            && one.listen == two.listen
            && !one.is_told_apart_from(two)
        {
            return Err(Error::SameSyslog { index, earlier, listen: one.listen });
        }
    }
    match (file, syslog) {
        (Some(path), _) if !path.is_absolute() => Err(Error::RelativeLogFile { index, path: path.clone() }),
        (_, Some(syslog)) if syslog.listen.port() == 0 => Err(Error::ZeroPort { index, key: "logs.syslog.listen" }),
        _ => Ok(()),
    }
}

impl Syslog {
    /// Whether a message can be for one of the two nodes only: both name an application or both a host, and not the same.
    fn is_told_apart_from(&self, other: &Self) -> bool {
        let differ = |one: &Option<String>, two: &Option<String>| one.is_some() && two.is_some() && one != two;
        differ(&self.app, &other.app) || differ(&self.host, &other.host)
    }
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_five_gibibytes(retention: &Retention) -> bool {
    *retention == five_gibibytes()
}

fn five_gibibytes() -> Retention {
    Retention { bytes: Some(ByteSize::gib(5)), rows: None, age: None }
}
