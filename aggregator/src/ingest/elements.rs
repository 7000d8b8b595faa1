//! Counts the elements of a request before it is decoded, by the descriptor of its type.

use std::{collections::HashMap, sync::LazyLock};

use bytes::Buf as _;
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{FileDescriptorSet, field_descriptor_proto::Label};

/// Nested messages that are looked into: no type has as many.
const MAX_DEPTH: u32 = 16;

/// Elements of a request that are delimited by their length: a message or a string takes two bytes in a request and up to
/// hundreds once it is decoded. Numbers take at most eight times of what they take in a request, and are not counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elements {
    /// Records of all batches, also if the request has more than one batch: these are merged.
    pub(super) records: usize,
    /// Elements of all repeated fields, records among them.
    pub(super) all: usize,
}

impl Elements {
    /// Counts the elements of an encoded `RecordRequest`, up to the place where it is no valid message: decoding ends there, too.
    pub(super) fn of_request(request: &[u8]) -> Self {
        static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::new("RecordRequest"));
        let mut elements = Self::default();
        let _ = SCHEMA.count(SCHEMA.root, request, &mut elements, MAX_DEPTH);
        elements
    }
}

/// A field whose value is a message or which is repeated.
struct Field {
    is_repeated: bool,
    /// Index of its type, if that is a message.
    message: Option<usize>,
}

/// The types of messages.
struct Schema {
    /// The fields of each, by their number.
    messages: Vec<HashMap<u32, Field>>,
    root: usize,
    record: usize,
}

impl Schema {
    fn new(root: &str) -> Self {
        let set = FileDescriptorSet::decode(chainscope_proto::DESCRIPTOR).unwrap_or_default();
        let mut types = Vec::new();
        for file in set.file {
            let scope = format!(".{}", file.package());
            let mut nested: Vec<_> = file.message_type.into_iter().map(|message| (scope.clone(), message)).collect();
            while let Some((scope, mut message)) = nested.pop() {
                let name = format!("{scope}.{}", message.name());
                nested.extend(message.nested_type.drain(..).map(|inner| (name.clone(), inner)));
                types.push((name, message));
            }
        }
        let index: HashMap<&str, usize> = types.iter().enumerate().map(|(at, (name, _))| (name.as_str(), at)).collect();
        let messages = types.iter().map(|(_, message)| {
            let fields = message.field.iter().filter_map(|field| {
                let message = index.get(field.type_name()).copied();
                let is_repeated = field.label() == Label::Repeated;
                (is_repeated || message.is_some())
                    .then_some((u32::try_from(field.number()).ok()?, Field { is_repeated, message }))
            });
            fields.collect()
        });
        let of = |name: &str| index.get(format!(".chainscope.v1.{name}").as_str()).copied().unwrap_or(usize::MAX);
        Self { messages: messages.collect(), root: of(root), record: of("Record") }
    }

    /// Adds the elements of an encoded message of a type.
    fn count(&self, message: usize, mut bytes: &[u8], elements: &mut Elements, depth: u32) -> Result<(), DecodeError> {
        let Some(fields) = self.messages.get(message).filter(|_| depth > 0) else { return Ok(()) };
        while !bytes.is_empty() {
            let (number, wire_type) = decode_key(&mut bytes)?;
            let field = match fields.get(&number) {
                Some(field) if wire_type == WireType::LengthDelimited => field,
                _ => {
                    skip_field(wire_type, number, &mut bytes, DecodeContext::default())?;
                    continue;
                }
            };
            let length = usize::try_from(decode_varint(&mut bytes)?).unwrap_or(usize::MAX).min(bytes.len());
            elements.all += usize::from(field.is_repeated);
            if let (Some(message), Some(inner)) = (field.message, bytes.get(..length)) {
                elements.records += usize::from(message == self.record);
                self.count(message, inner, elements, depth - 1)?;
            }
            bytes.advance(length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{
        Batch, Hello, MemoryState, Record, RecordRequest, TraceEvent, TraceValue, record::Kind, record_request::Request,
    };

    use super::*;

    fn encoded(request: Request) -> Vec<u8> {
        RecordRequest { request: Some(request) }.encode_to_vec()
    }

    fn batch(records: usize) -> Vec<u8> {
        let record = Record { time_ns: 7, kind: Some(Kind::Chunk(Default::default())), ..Record::default() };
        encoded(Request::Batch(Batch { node: "n".into(), first_sequence: 5, records: vec![record; records] }))
    }

    fn counted(request: &[u8]) -> (usize, usize) {
        let elements = Elements::of_request(request);
        (elements.records, elements.all)
    }

    #[test]
    fn the_records_of_all_batches_of_a_request_are_counted() {
        assert_eq!(counted(&batch(0)), (0, 0));
        assert_eq!(counted(&batch(300)), (300, 300));
        assert_eq!(counted(&[batch(3), batch(4)].concat()), (7, 7));
        let decoded = RecordRequest::decode(&*[batch(3), batch(4)].concat()).unwrap();
        assert!(matches!(decoded.request, Some(Request::Batch(batch)) if batch.records.len() == 7));
    }

    #[test]
    fn elements_in_records_and_in_other_requests_are_counted() {
        let hello = Hello { nodes: vec!["n".into(); 9], ..Hello::default() };
        assert_eq!(counted(&encoded(Request::Hello(hello))), (0, 9));
        let state =
            MemoryState { strings: vec![String::new(); 5], frames: vec![Default::default(); 6], ..Default::default() };
        assert_eq!(counted(&encoded(Request::Memory(state))), (0, 11));
        let event = TraceEvent {
            peers: vec![String::new(); 2],
            arguments: vec![TraceValue::default(); 3],
            ..TraceEvent::default()
        };
        let record = Record { kind: Some(Kind::TraceEvent(event)), ..Record::default() };
        let batch = Batch { records: vec![record; 4], ..Batch::default() };
        assert_eq!(counted(&encoded(Request::Batch(batch))), (4, 4 * (1 + 2 + 3)));
    }

    #[test]
    fn records_before_an_invalid_byte_are_counted() {
        let whole = batch(1_000);
        assert_eq!(counted(&whole[..whole.len() - 1]).0, 1_000);
        // 1,000,000 empty records, and then a field without a value.
        let empty = [[0x1a, 0].repeat(1_000_000), vec![0x1a]].concat();
        let mut request = vec![0x12];
        prost::encoding::encode_varint(empty.len() as u64, &mut request);
        request.extend(empty);
        assert!(counted(&request).0 >= 1_000_000);
    }
}
