//! Lines that are JSON objects.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::form::Form;
use crate::level::Level;
use crate::time::rfc3339_exact;

/// What an object says.
#[derive(Debug, PartialEq)]
pub(crate) struct JsonLine {
    pub(crate) form: Form,
    pub(crate) level: Option<Level>,
    pub(crate) time: Option<i64>,
    pub(crate) section: Option<String>,
    pub(crate) text: String,
}

/// Reads an object of a form that is known.
pub(crate) fn parse(line: &str) -> Option<JsonLine> {
    if !line.starts_with('{') {
        return None;
    }
    let Ok(Value::Object(object)) = serde_json::from_str(line) else { return None };
    match object.iter().next() {
        Some((name, Value::Object(item))) if name.starts_with("fd-sink-item.") => octez(item),
        _ => slog(&object),
    }
}

fn octez(item: &Map<String, Value>) -> Option<JsonLine> {
    let (name, event) = item.get("event")?.as_object()?.iter().next()?;
    let section = item.get("section").and_then(Value::as_array);
    let section = section.map(|names| names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("."));
    let level = item.get("level").and_then(Value::as_str).and_then(|name| name.parse().ok());
    // Octez writes microseconds, which the number has exactly.
    let time = item.get("time_stamp").and_then(Value::as_f64).map(|seconds| (seconds * 1e6).round());
    let time = time.filter(|micros| micros.abs() < 9e15).map(|micros| micros as i64 * 1000);
    let text = format!("{name} {}", plain(event));
    Some(JsonLine { form: Form::OctezJson, level, time, section, text })
}

/// Fields that are not part of the text.
const SLOG_FIELDS: [&str; 10] = ["msg", "level", "time", "ts", "module", "line", "pid", "hostname", "name", "v"];

fn slog(object: &Map<String, Value>) -> Option<JsonLine> {
    let mut text = object.get("msg")?.as_str()?.to_owned();
    let level = match object.get("level")? {
        Value::Number(number) => Level::from_bunyan(number.as_u64()?),
        Value::String(word) => Level::from_word(word).or_else(|| word.parse().ok()),
        _ => None,
    };
    for (name, value) in object.iter().filter(|(name, _)| !SLOG_FIELDS.contains(&name.as_str())) {
        // Writing to a string cannot fail.
        let _ = write!(text, ", {name}: {}", plain(value));
    }
    let time = object.get("time").or_else(|| object.get("ts")).and_then(Value::as_str).and_then(rfc3339_exact);
    let section = object.get("module").and_then(Value::as_str).map(str::to_owned);
    Some(JsonLine { form: Form::SlogJson, level, time, section, text })
}

/// A string without quotes, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
