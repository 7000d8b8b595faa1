//! Access to the vectors, and a recorder that drives a conversation as the agent does.
use std::{path::PathBuf, sync::Arc};

use chainscope_tezos::{
    Category, Chunk, Conversation, Direction, Gap, Identity, Limits, Message, Output, Piece, Role, State, decode,
};
use serde_json::{Value, json};

pub(crate) fn vector(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos")).join(path)
}

pub(crate) fn read(path: &str) -> Vec<u8> {
    let path = vector(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn read_json(path: &str) -> Value {
    serde_json::from_slice(&read(path)).unwrap()
}

pub(crate) fn json_lines(path: &str) -> Vec<Value> {
    let text = String::from_utf8(read(path)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn unhex(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

pub(crate) fn identity(path: &str) -> Arc<Identity> {
    Arc::new(Identity::from_json(&read(path)).unwrap())
}

pub(crate) struct Session {
    pub(crate) identity: Arc<Identity>,
    pub(crate) payloads: Vec<(Direction, Vec<u8>)>,
    pub(crate) expected: Vec<Value>,
}

pub(crate) fn carthagenet() -> Session {
    let rows = String::from_utf8(read("carthagenet-2020/payloads.csv")).unwrap();
    let payloads = rows
        .lines()
        .skip(1)
        .map(|row| {
            let (direction, hex) = row.split_once(',').unwrap();
            let direction = if direction == "sent" { Direction::Sent } else { Direction::Received };
            (direction, hex::decode(hex).unwrap())
        })
        .collect();
    Session {
        identity: identity("carthagenet-2020/identity.json"),
        payloads,
        expected: json_lines("carthagenet-2020/sent.expected.jsonl"),
    }
}

/// The system calls of a synthetic session that transferred bytes.
pub(crate) fn calls(name: &str) -> Vec<(Direction, Vec<u8>)> {
    json_lines(&format!("synthetic-two-way/{name}.syscalls.jsonl"))
        .iter()
        .filter_map(|call| {
            let direction = match call["op"].as_str()? {
                "write" => Direction::Sent,
                "read" => Direction::Received,
                _ => return None,
            };
            let count = usize::try_from(call["ret"].as_i64()?).ok()?;
            let mut bytes = unhex(&call["data"]);
            bytes.truncate(count);
            (count > 0).then_some((direction, bytes))
        })
        .collect()
}

/// Both byte streams of a session.
pub(crate) fn streams(calls: &[(Direction, Vec<u8>)]) -> (Vec<u8>, Vec<u8>) {
    let of = |direction| calls.iter().filter(|call| call.0 == direction).flat_map(|call| call.1.clone()).collect();
    (of(Direction::Sent), of(Direction::Received))
}

pub(crate) struct Recorder {
    pub(crate) conversation: Conversation,
    pub(crate) identity: Arc<Identity>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) offsets: [u64; 2],
    pub(crate) time_ns: u64,
}

impl Recorder {
    pub(crate) fn new(role: Option<Role>, limits: Limits, identity: Arc<Identity>) -> Self {
        Self::with(Conversation::new(role, limits).with_start(0, 0), identity)
    }

    pub(crate) fn with(conversation: Conversation, identity: Arc<Identity>) -> Self {
        Self { conversation, identity, outputs: Vec::new(), offsets: [0; 2], time_ns: 1_000 }
    }

    pub(crate) fn push(&mut self, piece: Piece<'_>) {
        self.conversation.push(piece, &mut self.identity, &mut |output| self.outputs.push(output));
        assert!(self.conversation.stats().is_balanced(), "{:?}", self.conversation.stats());
    }

    /// Pushes the next bytes of a direction.
    pub(crate) fn next(&mut self, direction: Direction, bytes: &[u8]) {
        let offset = self.offsets[direction as usize];
        self.time_ns += 1_000;
        self.push(Piece::whole(direction, offset, bytes, self.time_ns));
        self.offsets[direction as usize] += bytes.len() as u64;
    }

    /// Skips bytes that are not captured: the next piece has a greater offset.
    pub(crate) fn jump(&mut self, direction: Direction, length: usize) {
        self.offsets[direction as usize] += length as u64;
    }

    /// Pushes a piece without bytes for bytes that are not captured.
    pub(crate) fn lose(&mut self, direction: Direction, length: usize) {
        let offset = self.offsets[direction as usize];
        self.time_ns += 1_000;
        let covers = length as u64;
        let time_ns = self.time_ns;
        self.push(Piece { direction, offset, bytes: &[], covers, call_start: true, time_ns });
        self.offsets[direction as usize] += covers;
    }

    pub(crate) fn finish(&mut self) {
        let [sent, received] = self.offsets;
        self.conversation.finish(Some(sent), Some(received), &mut |output| self.outputs.push(output));
        assert!(self.conversation.stats().is_balanced());
    }

    pub(crate) fn chunks(&self, direction: Direction) -> Vec<Chunk> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::Chunk(chunk) if chunk.direction == direction => Some(chunk.clone()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn messages(&self, direction: Direction) -> Vec<Message> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::Message(message) if message.direction == direction => Some(message.clone()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn gaps(&self) -> Vec<Gap> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::Gap(gap) => Some(*gap),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn comments(&self) -> Vec<&str> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::Comment(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn states(&self) -> Vec<State> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::State { state, .. } => Some(*state),
                _ => None,
            })
            .collect()
    }
}

pub(crate) fn decode_json(category: Category, plain: &[u8]) -> Value {
    let decoded = decode(category, false, plain).unwrap_or_else(|error| panic!("{error}"));
    // Serialised as text to keep the order of fields, as the preview does.
    let text = serde_json::to_string(&decoded).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn json_text(category: Category, plain: &[u8]) -> String {
    serde_json::to_string(&decode(category, false, plain).unwrap()).unwrap()
}

/// Converts this project's JSON to the format of the independent decoder: see vectors/README.md.
pub(crate) fn as_expected(message: &Value) -> Value {
    let inner = match message {
        Value::String(name) if name == "Disconnect" || name == "Bootstrap" => json!({}),
        Value::String(name) if name == "NackV0" => json!("Nack_v_0"),
        Value::Object(fields) if fields.len() == 1 => {
            let (name, inner) = fields.iter().next().unwrap();
            match name.as_str() {
                "BlockHeader" => inner["block_header"].clone(),
                "Operation" => inner["operation"].clone(),
                "Protocol" => inner["protocol"].clone(),
                "Deactivate" => json!({"chain_id": inner["deactivate"]}),
                "GetOperationHashesForBlocks" => inner["get_operation_hashes_for_blocks"].clone(),
                "OperationHashesForBlocks" => json!({
                    "hash": inner["operation_hashes_for_block"]["hash"],
                    "validation_pass": inner["operation_hashes_for_block"]["validation_pass"],
                    "operation_hashes_path": inner["operation_hashes_path"],
                    "operation_hashes": inner["operation_hashes"],
                }),
                _ => inner.clone(),
            }
        }
        other => other.clone(),
    };
    convert(&inner)
}

fn convert(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let computed = fields.contains_key("context") || fields.contains_key("branch");
            let mut converted = serde_json::Map::new();
            for (name, value) in fields {
                match name.as_str() {
                    "hash" if computed => converted.insert("_hash".into(), value.clone()),
                    "kind" if computed => None,
                    "timestamp" => converted.insert(name.clone(), seconds(value.as_str().unwrap()).into()),
                    "operation_hashes_path" => converted.insert(name.clone(), path(value.as_array().unwrap())),
                    _ => converted.insert(name.clone(), convert(value)),
                };
            }
            Value::Object(converted)
        }
        Value::Array(items) => items.iter().map(convert).collect(),
        other => other.clone(),
    }
}

/// Steps from the root down, as nested objects.
fn path(steps: &[Value]) -> Value {
    let Some((step, below)) = steps.split_first() else { return json!([]) };
    let hash = |bytes: &Value| {
        let bytes: Vec<u8> = serde_json::from_value(bytes.clone()).unwrap();
        let kind = chainscope_tezos::hash::HashKind::OperationListList;
        chainscope_tezos::hash::Base58 { kind, bytes: &bytes }.to_string()
    };
    if let Some(left) = step.get("Left") {
        json!({"path": path(below), "right": hash(&left["right"])})
    } else {
        json!({"left": hash(&step["Right"]["left"]), "path": path(below)})
    }
}

/// Seconds since 1970 of an RFC 3339 time in UTC.
fn seconds(text: &str) -> i64 {
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let months = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: i64 = (1970..year).map(|year| 365 + i64::from(leap(year))).sum();
    let days = years + months[..month as usize - 1].iter().sum::<i64>() + day - 1;
    assert!(text.ends_with('Z'));
    days * 86_400 + number(11..13) * 3600 + number(14..16) * 60 + number(17..19)
}
