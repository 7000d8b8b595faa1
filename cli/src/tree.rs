//! JSON as lines of a tree.

use chainscope_hygiene::Escaped;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

/// The lines of a value: members of an object or a list below one another, lists of small numbers as bytes.
pub(crate) fn lines(value: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    append(&mut lines, "", value);
    lines
}

/// Appends the lines of a value whose own line has been written.
fn append(lines: &mut Vec<String>, indent: &str, value: &Value) {
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, value)| (Escaped(name).to_string(), value)).collect(),
        Value::Array(values) if !is_flat(value) => {
            values.iter().enumerate().map(|(index, value)| (format!("[{index}]"), value)).collect()
        }
        scalar => {
            lines.push(format!("{indent}{}", shown(scalar)));
            return;
        }
    };
    let last = members.len().saturating_sub(1);
    for (index, (name, value)) in members.into_iter().enumerate() {
        let (mark, below) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        if is_flat(value) {
            lines.push(format!("{indent}{mark}{name}: {}", shown(value)));
        } else {
            lines.push(format!("{indent}{mark}{name}"));
            append(lines, &format!("{indent}{below}"), value);
        }
    }
}

/// Whether a value is shown in one line: a scalar, an empty one, or a list of numbers.
fn is_flat(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(values) => values.iter().all(Value::is_number),
        _ => true,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => Escaped(text).to_string(),
        Value::Array(bytes) if !bytes.is_empty() => match bytes.iter().map(byte).collect::<Option<String>>() {
            Some(hex) => format!("{hex} ({} bytes)", bytes.len()),
            None => value.to_string(),
        },
        other => other.to_string(),
    }
}

fn byte(value: &Value) -> Option<String> {
    Some(format!("{:02x}", u8::try_from(value.as_u64()?).ok()?))
}

/// The parts of a line, none wider than `width`; further ones are indented like the first one's text.
pub(crate) fn wrap(line: &str, width: usize) -> Vec<String> {
    let marks: String = line.chars().take_while(|character| "│├└─ ".contains(*character)).collect();
    let indent = marks.replace('├', "│").replace(['└', '─'], " ") + "  ";
    let mut parts = Vec::new();
    let mut part = String::new();
    for character in line.chars() {
        let mut buffer = [0; 4];
        if part.width() + character.encode_utf8(&mut buffer).width() > width && part.width() > indent.width() {
            parts.push(std::mem::replace(&mut part, indent.clone()));
        }
        part.push(character);
    }
    parts.push(part);
    parts
}
