//! The entries of a recording, as messages of Protocol Buffers. Numbers of fields are never used again.

use std::collections::BTreeMap;

use chainscope_proto::v1::{TraceAttachment, TraceValue};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5")]
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
    #[prost(message, tag = "1")]
    Header(Header),
    /// Events refer to it by its position among the attachments of the file, from 0.
    #[prost(message, tag = "2")]
    Attachment(TraceAttachment),
    #[prost(message, tag = "3")]
    Event(Event),
    #[prost(message, tag = "4")]
    Trailer(Trailer),
    /// Before its first event.
    #[prost(message, tag = "5")]
    Process(Process),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Process {
    #[prost(uint32, tag = "1")]
    pub(super) pid: u32,
    /// `CLOCK_MONOTONIC`.
    #[prost(uint64, tag = "2")]
    pub(super) start_ns: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    /// Always the same text.
    #[prost(string, tag = "1")]
    pub(super) format: String,
    #[prost(uint32, tag = "2")]
    pub(super) version: u32,
    /// What wrote the file.
    #[prost(string, tag = "3")]
    pub(super) program: String,
    #[prost(message, optional, tag = "4")]
    pub(super) start: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Timestamp {
    #[prost(uint64, tag = "1")]
    pub(super) monotonic_ns: u64,
    #[prost(sint64, tag = "2")]
    pub(super) wall_ns: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(uint64, tag = "1")]
    pub(super) sequence: u64,
    #[prost(uint64, tag = "2")]
    pub(super) monotonic_ns: u64,
    #[prost(sint64, tag = "3")]
    pub(super) wall_ns: i64,
    #[prost(uint32, tag = "4")]
    pub(super) pid: u32,
    #[prost(uint32, tag = "5")]
    pub(super) tid: u32,
    #[prost(uint32, tag = "6")]
    pub(super) cpu: u32,
    #[prost(string, tag = "7")]
    pub(super) comm: String,
    #[prost(uint32, tag = "8")]
    pub(super) attachment: u32,
    #[prost(message, repeated, tag = "9")]
    pub(super) arguments: Vec<TraceValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Trailer {
    #[prost(message, optional, tag = "1")]
    pub(super) from: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub(super) until: Option<Timestamp>,
    #[prost(btree_map = "string, message", tag = "3")]
    pub(super) tracepoints: BTreeMap<String, Counts>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Counts {
    #[prost(uint64, tag = "1")]
    pub(super) hits: u64,
    #[prost(uint64, tag = "2")]
    pub(super) delivered: u64,
    #[prost(btree_map = "string, uint64", tag = "3")]
    pub(super) dropped: BTreeMap<String, u64>,
    #[prost(uint64, tag = "4")]
    pub(super) incomplete: u64,
}
