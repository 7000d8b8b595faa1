//! Mapping of a decoded message of the vectors to the API's `message` (`vectors/tezos/INDEX.md`), and comparison of both.

use serde_json::{Map, Value, json};

/// The API's type name of an expected `type`: "Get_current_branch" is "get_current_branch".
#[must_use]
pub fn kind(expected_type: &str) -> String {
    expected_type.to_lowercase()
}

/// The API's `message` for the output of the independent decoder.
#[must_use]
pub fn message(expected_type: &str, decoded: &Value) -> Value {
    let variant: String = expected_type.split('_').map(capitalised).collect();
    let inner = inner(&variant, convert(decoded));
    match &inner {
        Value::Object(fields) if fields.is_empty() => Value::String(variant),
        _ => json!({ variant: inner }),
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Applies the differences in nesting and names.
fn inner(variant: &str, decoded: Value) -> Value {
    match (variant, decoded) {
        ("BlockHeader", header) => json!({ "block_header": header }),
        ("Operation", operation) => json!({ "operation": operation }),
        ("Protocol", protocol) => json!({ "protocol": protocol }),
        ("Deactivate", Value::Object(fields)) => json!({ "deactivate": fields.get("chain_id") }),
        ("GetOperationHashesForBlocks", list) => json!({ "get_operation_hashes_for_blocks": list }),
        ("OperationHashesForBlocks", Value::Object(fields)) => json!({
            "operation_hashes_for_block": { "hash": fields.get("hash"), "validation_pass": fields.get("validation_pass") },
            "operation_hashes_path": fields.get("operation_hashes_path"),
            "operation_hashes": fields.get("operation_hashes"),
        }),
        (_, other) => other,
    }
}

fn convert(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| field(name, value)).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(convert).collect()),
        other => other.clone(),
    }
}

fn field(name: &str, value: &Value) -> (String, Value) {
    match (name, value) {
        ("_hash", hash) => ("hash".to_owned(), hash.clone()),
        ("timestamp", Value::Number(seconds)) => {
            let time = seconds.as_i64().and_then(|s| jiff::Timestamp::from_second(s).ok());
            (name.to_owned(), time.map_or(value.clone(), |t| Value::String(t.to_string())))
        }
        ("operation_hashes_path", path) => (name.to_owned(), Value::Array(steps(path))),
        (_, value) => (name.to_owned(), convert(value)),
    }
}

/// A nested path as the API's list of steps from the root, with hashes as numbers.
fn steps(path: &Value) -> Vec<Value> {
    let mut steps = Vec::new();
    let mut here = path;
    while let Value::Object(fields) = here {
        let bytes = |side: &str| fields.get(side).and_then(Value::as_str).map(hash_bytes);
        match (bytes("left"), bytes("right")) {
            (Some(left), _) => steps.push(json!({ "Right": { "left": left } })),
            (_, Some(right)) => steps.push(json!({ "Left": { "right": right } })),
            _ => break,
        }
        here = fields.get("path").unwrap_or(&Value::Null);
    }
    steps
}

fn hash_bytes(text: &str) -> Vec<u8> {
    let bytes = bs58::decode(text).with_check(None).into_vec().unwrap_or_default();
    bytes.get(3..).unwrap_or_default().to_vec()
}

/// The first place where `actual` lacks a value of `expected` or has another one. Additional fields are not a difference.
#[must_use]
pub fn difference(expected: &Value, actual: &Value) -> Option<String> {
    match (expected, actual) {
        (Value::Object(wanted), Value::Object(got)) => wanted.iter().find_map(|(name, value)| match got.get(name) {
            Some(actual) => difference(value, actual).map(|d| format!("{name}.{d}")),
            None => Some(format!("{name} is missing")),
        }),
        (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
            let pairs = wanted.iter().zip(got).enumerate();
            pairs.into_iter().find_map(|(i, (w, g))| difference(w, g).map(|d| format!("{i}.{d}")))
        }
        (wanted, got) if wanted == got => None,
        (wanted, got) => Some(format!(" expected {wanted}, got {got}").chars().take(400).collect()),
    }
}
