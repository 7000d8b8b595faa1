//! Options of recording log messages.

use std::{borrow::Cow, net::SocketAddr, path::PathBuf};

use bytesize::ByteSize;
use regex::bytes::{NoExpand, Regex, RegexBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Retention;

/// Log messages of the node, shared by `chainscope.toml` and `TezosNode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// Whether log messages are recorded.
    #[serde(default = "yes")]
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
