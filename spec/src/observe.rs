//! What to record of a node, and how long to keep it. The same in `chainscope.toml` and in a `TezosNode`.

use std::time::Duration;

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Sizes that a `TezosNode` takes: all of them are read, none is 0.
const BYTES: &str = "^[1-9][0-9]{0,11}([kKMGTP](i?B?)?|B)?$";
/// Ages that a `TezosNode` takes: all of them are read, none is 0.
const AGE: &str = "^([1-9][0-9]{0,8}[smhdw])+$";

/// What to observe of one node; each pillar has its own table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserveSpec {
    /// Peer-to-peer messages. Always on for a node with a P2P port; the table holds its options.
    #[serde(default)]
    pub network: Network,
    /// Which code holds the resident memory. Off without the table; `memory = {}` switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// How long records are kept.
    #[serde(default)]
    pub retention: Retention,
}

/// Options of the network recorder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Which bytes of a chunk are stored.
    #[serde(default)]
    pub store: Stored,
}

/// Which bytes of a chunk are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stored {
    /// As on the wire, and decrypted.
    #[default]
    Both,
    /// Decrypted only: about half the space, `original_bytes` is then empty for what could be opened.
    Plain,
}

/// Which code holds the node's resident memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Whether it is observed.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Snapshots, for trees of earlier moments and for differences.
    #[serde(default)]
    #[schemars(extend("default" = { "every": "5m", "age": "7d", "bytes": "1GiB" }))]
    pub snapshots: MemorySnapshots,
}

/// Snapshots of the memory tree: how often one is kept, and for how long. The first limit that is reached counts; oldest
/// go first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySnapshots {
    /// Time between two snapshots, as text such as "5m" or "30s".
    #[serde(default = "five_minutes", deserialize_with = "read_duration", serialize_with = "write_duration")]
    #[schemars(with = "String", length(max = 64), regex(pattern = AGE), extend("default" = "5m"))]
    pub every: Duration,
    /// Age of a snapshot, as text such as "7d".
    #[serde(default = "seven_days", deserialize_with = "read_duration", serialize_with = "write_duration")]
    #[schemars(with = "String", length(max = 64), regex(pattern = AGE), extend("default" = "7d"))]
    pub age: Duration,
    /// Bytes of all snapshots together, as text such as "1GiB"; in a file also as a number.
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

fn yes() -> bool {
    true
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

fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map_err(|cause| D::Error::custom(format!("{text:?} is no time such as \"5m\": {cause}")))
}

fn write_duration<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*duration))
}

/// Limits on what is kept; the first that is reached counts. Oldest records go first, a sixteenth of the limit at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Number of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub rows: Option<u64>,
    /// Bytes of disk, as text such as "20GiB"; in a file also as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32), regex(pattern = BYTES))]
    pub bytes: Option<ByteSize>,
    /// Age of a record, as text such as "14d" or "36h".
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
    /// Twenty gibibytes a node: without a table, a disk does not fill up for ever.
    fn default() -> Self {
        Self { rows: None, bytes: Some(ByteSize::gib(20)), age: None }
    }
}

fn read_age<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map(Some)
        .map_err(|cause| D::Error::custom(format!("{text:?} is no age such as \"14d\": {cause}")))
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

    // Flat, as the API server's schemas have it.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": ["both", "plain"] })
    }
}
