//! Events and accounting as JSON.

use std::time::{Duration, UNIX_EPOCH};

use chainscope_usdt::Kind;
use serde_json::{Map, Value as Json, json};

use crate::{
    accounting::{Accounting, Counts},
    event::{Event, Incomplete, Timestamp, Value},
    show::reversed_hex,
};

/// An event as an object. Arguments are by name; what is not as the program passed it is listed beside them.
///
/// Hashes are in the order of display, other bytes hexadecimal. `with_bytes`: whether bytes are included.
#[must_use]
pub fn event(event: &Event, with_bytes: bool) -> Map<String, Json> {
    let mut arguments = Map::new();
    let (mut names, mut incomplete) = (Map::new(), Map::new());
    let (mut truncated, mut unreadable, mut unsupported) = (Vec::new(), Vec::new(), Vec::new());
    for (argument, value) in event.attachment.arguments.iter().zip(&event.arguments) {
        let meaning = &argument.meaning;
        let is_hash = meaning.kind == Kind::Hash32;
        let value = match value {
            Value::Signed(number) => json!(number),
            Value::Unsigned(number) => json!(number),
            // JSON has no NaN and no infinity.
            Value::Float(number) if number.is_finite() => json!(number),
            Value::Float(number) => json!(number.to_string()),
            Value::Bool(is_true) => json!(is_true),
            Value::Text { bytes, is_truncated } => {
                if *is_truncated {
                    truncated.push(json!(meaning.name));
                }
                match str::from_utf8(bytes) {
                    Ok(text) => json!(text),
                    Err(_) => json!({ "hex": hex::encode(bytes) }),
                }
            }
            Value::Bytes { bytes, claimed, incomplete: cause } => {
                if let Some(cause) = cause {
                    let found = json!({ "captured": bytes.len(), "claimed": claimed, "reason": reason(*cause) });
                    incomplete.insert(meaning.name.clone(), found);
                }
                match (is_hash, with_bytes) {
                    (true, _) if cause.is_none() => json!(reversed_hex(bytes)),
                    (true, _) => Json::Null,
                    (false, true) => json!(hex::encode(bytes)),
                    (false, false) => {
                        incomplete.remove(&meaning.name);
                        continue;
                    }
                }
            }
            Value::Unreadable { address } => {
                unreadable.push(json!({ "name": meaning.name, "address": format!("{address:#x}") }));
                Json::Null
            }
            Value::Unsupported => {
                unsupported.push(json!({ "name": meaning.name, "raw": argument.raw }));
                Json::Null
            }
        };
        let named = value.as_i64().and_then(|number| meaning.values.get(&number));
        if let Some(name) = named {
            names.insert(meaning.name.clone(), json!(name));
        }
        arguments.insert(meaning.name.clone(), value);
    }
    let mut object = Map::new();
    object.insert("sequence".to_owned(), json!(event.sequence));
    object.insert("monotonic_ns".to_owned(), json!(event.time.monotonic_ns));
    object.insert("time".to_owned(), json!(rfc3339(event.time.wall_ns)));
    object.insert("pid".to_owned(), json!(event.pid));
    object.insert("tid".to_owned(), json!(event.tid));
    object.insert("cpu".to_owned(), json!(event.cpu));
    object.insert("comm".to_owned(), json!(event.comm));
    object.insert("tracepoint".to_owned(), json!(event.attachment.full_name()));
    object.insert("arguments".to_owned(), Json::Object(arguments));
    for (key, found) in [("value_names", names), ("incomplete", incomplete)] {
        if !found.is_empty() {
            object.insert(key.to_owned(), Json::Object(found));
        }
    }
    for (key, found) in [("truncated", truncated), ("unreadable", unreadable), ("unsupported", unsupported)] {
        if !found.is_empty() {
            object.insert(key.to_owned(), Json::Array(found));
        }
    }
    object
}

fn reason(incomplete: Incomplete) -> &'static str {
    match incomplete {
        Incomplete::Limit => "limit",
        Incomplete::Unreadable => "unreadable",
        Incomplete::Dropped => "dropped",
    }
}

/// Accounting as an object: the sum, and by tracepoint.
#[must_use]
pub fn accounting(accounting: &Accounting) -> Json {
    let counts = |counts: &Counts| {
        json!({
            "hits": counts.hits,
            "delivered": counts.delivered,
            "incomplete": counts.incomplete,
            "dropped": counts.dropped,
            "residual": counts.residual(),
        })
    };
    let by_name = |(name, found): (&String, &Counts)| (name.clone(), counts(found));
    let time = |time: Timestamp| json!({ "time": rfc3339(time.wall_ns), "monotonic_ns": time.monotonic_ns });
    json!({
        "from": time(accounting.from),
        "until": time(accounting.until),
        "total": counts(&accounting.total()),
        "tracepoints": accounting.tracepoints.iter().map(by_name).collect::<Map<_, _>>(),
    })
}

/// Date and time in UTC with nanoseconds; before 1970 or after 9999 the number of nanoseconds since 1970.
#[must_use]
pub fn rfc3339(wall_ns: i64) -> String {
    match u64::try_from(wall_ns) {
        Ok(since) => humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(since)).to_string(),
        Err(_) => wall_ns.to_string(),
    }
}
