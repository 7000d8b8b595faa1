//! The codec of the gRPC service. It bounds the memory of a request before it is decoded: a record takes two bytes in a request
//! and hundreds once it is decoded.

use bytes::Buf as _;
use chainscope_proto::v1::{RecordReply, RecordRequest};
use prost::Message as _;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::{Received, SessionError, elements::Elements};

/// Maximum number of records of a batch. A record has a time and a kind, so that an agent, which charges 6 bytes for the tag
/// and the length of each, puts at most 61,680 into a batch of 1 MiB; about half as many with the name of a process.
pub(super) const MAX_RECORDS: usize = 1 << 16;

/// Maximum number of elements of a request, such as arguments of events or frames of a call tree. An agent puts at most 1 MiB
/// into a batch and 768 KiB of the dictionary into a part of a profile, with three bytes or more for each element.
pub(super) const MAX_ELEMENTS: usize = 1 << 18;

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
        let elements = Elements::of_request(&request);
        for (of, count, max) in [("records", elements.records, MAX_RECORDS), ("elements", elements.all, MAX_ELEMENTS)] {
            if count > max {
                return Ok(Some(Err(SessionError::TooMany { of, max })));
            }
        }
        let request = RecordRequest::decode(request).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(Ok(request)))
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{Record, record::Kind};

    use super::*;

    #[test]
    fn a_full_batch_of_the_smallest_records_of_an_agent_has_fewer() {
        let smallest = Record { time_ns: 7, kind: Some(Kind::Chunk(Default::default())), ..Record::default() };
        let tag = 6;
        assert!((1 << 20) / (smallest.encoded_len() + tag) < MAX_RECORDS);
    }
}
