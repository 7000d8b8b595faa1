//! JSON of `/v2/trace`.

use chainscope_proto::v1::TraceEvent;
use chainscope_trace::{Event, json};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::time::shown_time;

/// An event of a tracepoint.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TraceRow {
    /// Position among the node's events, dense from 0.
    #[schema(example = 9999)]
    id: u64,
    /// When the tracepoint was hit: nanoseconds since 1970, in whole milliseconds.
    #[schema(example = 1_626_273_999_000_000_000_i64)]
    timestamp: i64,
    /// The same time, in nanoseconds.
    #[schema(example = "2021-07-14T14:46:39.000123456Z")]
    time: String,
    /// The monotonic clock of the host, in nanoseconds: durations are differences of it.
    monotonic_ns: u64,
    /// Provider and name of the tracepoint.
    #[schema(example = "net:inbound_message")]
    tracepoint: String,
    /// The observed process or pod.
    #[schema(example = "pid 4711")]
    target: String,
    /// Process id.
    pid: u32,
    /// Thread id.
    tid: u32,
    /// Processor.
    cpu: u32,
    /// Name of the thread.
    #[schema(example = "b-msghand")]
    comm: String,
    /// Contract that describes the arguments; null if none does, and the arguments are `arg1`, `arg2`, ….
    #[schema(example = "bitcoin-core-v31")]
    contract: Option<String>,
    /// Values of the arguments by name. Hashes are in the order of display, bytes hexadecimal, text that is not UTF-8 an object
    /// with `hex`, a value that was not captured null. Payloads only with `payload=true`.
    #[schema(value_type = Object, example = json!({ "peer_id": 7, "address": "203.0.113.7:8333", "message_type": "inv" }))]
    arguments: Map<String, Value>,
    /// Names of values that have one, by argument.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Object>)]
    value_names: Value,
    /// Arguments of which not all bytes were captured: `captured` of `claimed`, and the `reason`.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Object>)]
    incomplete: Value,
    /// Names of arguments whose text goes on.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Vec<String>>)]
    truncated: Value,
    /// Arguments that point to memory that could not be read: `name` and `address`.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Vec<Object>>)]
    unreadable: Value,
    /// Arguments that the probe cannot locate: `name`, and `raw` as in the note.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Option<Vec<Object>>)]
    unsupported: Value,
    /// Why the arguments of the record cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl TraceRow {
    pub(super) fn new(target: String, event: &Event, with_payload: bool) -> Self {
        let mut object = json::event(event, with_payload);
        let mut take = |key: &str| object.remove(key).unwrap_or_default();
        let arguments = match take("arguments") {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        Self {
            id: event.sequence,
            timestamp: shown_time(event.time.wall_ns),
            time: json::rfc3339(event.time.wall_ns),
            monotonic_ns: event.time.monotonic_ns,
            tracepoint: event.attachment.full_name(),
            target,
            pid: event.pid,
            tid: event.tid,
            cpu: event.cpu,
            comm: event.comm.clone(),
            contract: event.attachment.contract.clone(),
            arguments,
            value_names: take("value_names"),
            incomplete: take("incomplete"),
            truncated: take("truncated"),
            unreadable: take("unreadable"),
            unsupported: take("unsupported"),
            error: None,
        }
    }

    /// A record whose arguments cannot be read: an agent of a later version may have sent it.
    pub(super) fn unreadable(id: u64, time_ns: i64, target: String, event: TraceEvent, error: String) -> Self {
        Self {
            id,
            timestamp: shown_time(time_ns),
            time: json::rfc3339(time_ns),
            monotonic_ns: event.monotonic_ns,
            tracepoint: format!("{}:{}", event.provider, event.name),
            target,
            pid: event.pid,
            tid: event.tid,
            cpu: event.cpu,
            comm: event.comm,
            contract: None,
            arguments: Map::new(),
            value_names: Value::Null,
            incomplete: Value::Null,
            truncated: Value::Null,
            unreadable: Value::Null,
            unsupported: Value::Null,
            error: Some(error),
        }
    }
}
