//! What is recorded of a node, and how long it is kept: shared by `chainscope.toml` and `TezosNode`.

use std::time::Duration;

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Pattern of sizes in a resource: each match is a valid size other than 0.
pub const BYTES: &str = "^[1-9][0-9]{0,11}([kKMGTP](i?B?)?|B)?$";
/// Pattern of ages in a `TezosNode`: each match is a valid duration other than 0.
const AGE: &str = "^([1-9][0-9]{0,8}[smhdw])+$";

/// What is observed of one node. Each pillar has its own table, but for latency, which is a part of `trace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserveSpec {
    /// Peer-to-peer messages of Tezos.
    #[serde(default)]
    pub network: Network,
    /// Memory profiles. Disabled without the table; `memory = {}` enables them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Log messages. Disabled without the table; `logs = {}` enables them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<crate::Logs>,
    /// Events of static tracepoints. Disabled without the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<crate::Trace>,
    /// Retention of records.
    #[serde(default)]
    pub retention: Retention,
}

/// Options of recording peer-to-peer messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Whether they are recorded.
    #[serde(default = "crate::default_true")]
    pub enabled: bool,
    /// Which bytes of a chunk are stored.
    #[serde(default)]
    pub store: Stored,
}

impl Default for Network {
    fn default() -> Self {
        Self { enabled: true, store: Stored::default() }
    }
}

/// Which bytes of a chunk are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stored {
    /// The encrypted and the decrypted bytes.
    #[default]
    Both,
    /// The decrypted bytes only: about half the space; `original_bytes` is then empty for decrypted chunks.
    Plain,
}

/// Memory profiles: which code holds the node's resident memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Whether memory is profiled.
    #[serde(default = "crate::default_true")]
    pub enabled: bool,
    /// Snapshots, for trees of earlier times and for comparisons.
    #[serde(default)]
    #[schemars(extend("default" = { "every": "5m", "age": "7d", "bytes": "1GiB" }))]
    pub snapshots: MemorySnapshots,
}

/// Interval and retention of memory snapshots. The first limit that is reached applies; the oldest snapshots are
/// deleted first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySnapshots {
    /// Interval between snapshots, such as "5m" or "30s".
    #[serde(default = "five_minutes", deserialize_with = "read_duration", serialize_with = "write_duration")]
    #[schemars(with = "String", length(max = 64), regex(pattern = AGE), extend("default" = "5m"))]
    pub every: Duration,
    /// Maximum age of a snapshot, such as "7d".
    #[serde(default = "seven_days", deserialize_with = "read_duration", serialize_with = "write_duration")]
    #[schemars(with = "String", length(max = 64), regex(pattern = AGE), extend("default" = "7d"))]
    pub age: Duration,
    /// Maximum size of all snapshots, such as "1GiB"; in a file also a number of bytes.
    #[serde(default = "one_gibibyte")]
    #[schemars(with = "String", length(max = 32), regex(pattern = BYTES), extend("default" = "1GiB"))]
    pub bytes: ByteSize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { enabled: true, snapshots: MemorySnapshots::default() }
    }
}

impl Default for MemorySnapshots {
    fn default() -> Self {
        Self { every: five_minutes(), age: seven_days(), bytes: one_gibibyte() }
    }
}

fn five_minutes() -> Duration {
    Duration::from_secs(5 * 60)
}

fn seven_days() -> Duration {
    Duration::from_secs(7 * 86_400)
}

fn one_gibibyte() -> ByteSize {
    ByteSize::gib(1)
}

pub(crate) fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map_err(|cause| D::Error::custom(format!("{text:?} is not a duration such as \"5m\": {cause}")))
}

pub(crate) fn write_duration<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*duration))
}

/// Limits of retention; the first that is reached applies. The oldest records are deleted first, a sixteenth of the
/// limit at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Maximum number of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub rows: Option<u64>,
    /// Maximum size on disk, such as "20GiB"; in a file also a number of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32), regex(pattern = BYTES))]
    pub bytes: Option<ByteSize>,
    /// Maximum age of a record, such as "14d" or "36h".
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "read_age",
        serialize_with = "write_age"
    )]
    #[schemars(with = "Option<String>", length(max = 64), regex(pattern = AGE))]
    pub age: Option<Duration>,
}

impl Default for Retention {
    /// 20 GiB per node, so that the disk usage is bounded without a configured limit.
    fn default() -> Self {
        Self { rows: None, bytes: Some(ByteSize::gib(20)), age: None }
    }
}

fn read_age<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map(Some)
        .map_err(|cause| D::Error::custom(format!("{text:?} is not an age such as \"14d\": {cause}")))
}

fn write_age<S: Serializer>(age: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match age {
        Some(age) => to.collect_str(&humantime::format_duration(*age)),
        None => to.serialize_none(),
    }
}

impl JsonSchema for Stored {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Stored".into()
    }

    // Inline, because schemas of the API server have no references.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": ["both", "plain"] })
    }
}
