//! The codec of the gRPC service. It bounds the memory of a request before it is decoded: a record takes two bytes in a request
//! and hundreds once it is decoded.

use bytes::Buf as _;
use chainscope_proto::v1::{RecordReply, RecordRequest};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::{Received, SessionError};

/// Maximum number of records of a batch. A record has a time and a kind, so that an agent, which charges 6 bytes for the tag
/// and the length of each, puts at most 61,680 into a batch of 1 MiB; about half as many with the name of a process.
pub(super) const MAX_RECORDS: usize = 1 << 16;

/// Field of a batch in a request.
const BATCH: u32 = 2;

/// Field of a record in a batch.
const RECORD: u32 = 3;

/// Decodes requests and encodes replies.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordCodec;

impl Codec for RecordCodec {
    type Encode = RecordReply;
    type Decode = Received;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RecordCodec {
    type Item = RecordReply;
    type Error = Status;

    fn encode(&mut self, reply: RecordReply, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        reply.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for RecordCodec {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        let request = buffer.copy_to_bytes(buffer.remaining());
        let mut records = 0;
        // A request that is no valid message is decoded up to the same place, which is the error.
        let _ = count_records(&request, &mut records);
        if records > MAX_RECORDS {
            return Ok(Some(Err(SessionError::TooManyRecords { max: MAX_RECORDS })));
        }
        let request = RecordRequest::decode(request).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(Ok(request)))
    }
}

/// Adds the number of records in an encoded request, also if it has more than one batch: these are merged.
fn count_records(mut request: &[u8], records: &mut usize) -> Result<(), DecodeError> {
    while !request.is_empty() {
        let (field, wire_type) = decode_key(&mut request)?;
        if (field, wire_type) != (BATCH, WireType::LengthDelimited) {
            skip_field(wire_type, field, &mut request, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut request)?).unwrap_or(usize::MAX);
        let (mut batch, rest) = request.split_at(length.min(request.len()));
        request = rest;
        while !batch.is_empty() {
            let (field, wire_type) = decode_key(&mut batch)?;
            *records += usize::from(field == RECORD);
            skip_field(wire_type, field, &mut batch, DecodeContext::default())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{Batch, Hello, Record, record::Kind, record_request::Request};

    use super::*;

    fn counted(request: &[u8]) -> usize {
        let mut records = 0;
        let _ = count_records(request, &mut records);
        records
    }

    fn encoded(request: Request) -> Vec<u8> {
        RecordRequest { request: Some(request) }.encode_to_vec()
    }

    fn batch(records: usize) -> Vec<u8> {
        let records =
            vec![Record { time_ns: 7, kind: Some(Kind::Chunk(Default::default())), ..Record::default() }; records];
        encoded(Request::Batch(Batch { node: "n".into(), first_sequence: 5, records }))
    }

    #[test]
    fn the_records_of_all_batches_of_a_request_are_counted() {
        assert_eq!(counted(&batch(0)), 0);
        assert_eq!(counted(&batch(300)), 300);
        assert_eq!(counted(&[batch(3), batch(4)].concat()), 7);
        let decoded = RecordRequest::decode(&*[batch(3), batch(4)].concat()).unwrap();
        assert!(matches!(decoded.request, Some(Request::Batch(batch)) if batch.records.len() == 7));
        assert_eq!(counted(&encoded(Request::Hello(Hello { nodes: vec!["n".into(); 9], ..Hello::default() }))), 0);
    }

    #[test]
    fn records_before_an_invalid_byte_are_counted() {
        let whole = batch(1_000);
        assert_eq!(counted(&whole[..whole.len() - 1]), 1_000);
        // 1,000,000 empty records, and then a field without a value.
        let empty = [[0x1a, 0].repeat(1_000_000), vec![0x1a]].concat();
        let mut request = vec![0x12];
        prost::encoding::encode_varint(empty.len() as u64, &mut request);
        request.extend(empty);
        assert!(counted(&request) >= 1_000_000);
    }

    #[test]
    fn a_full_batch_of_the_smallest_records_of_an_agent_has_fewer() {
        let smallest = Record { time_ns: 7, kind: Some(Kind::Chunk(Default::default())), ..Record::default() };
        let tag = 6;
        assert!((1 << 20) / (smallest.encoded_len() + tag) < MAX_RECORDS);
    }
}
