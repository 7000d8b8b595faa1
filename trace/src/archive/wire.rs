//! The entries of a recording, as messages of Protocol Buffers. Numbers of fields are never used again.

use std::collections::BTreeMap;

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4")]
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
    #[prost(message, tag = "1")]
    Header(Header),
    #[prost(message, tag = "2")]
    Attachment(Attachment),
    #[prost(message, tag = "3")]
    Event(Event),
    #[prost(message, tag = "4")]
    Trailer(Trailer),
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

/// Events refer to it by its position among the attachments of the file, from 0.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attachment {
    #[prost(string, tag = "1")]
    pub(super) provider: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) file: String,
    #[prost(uint64, tag = "4")]
    pub(super) location: u64,
    #[prost(string, optional, tag = "5")]
    pub(super) contract: Option<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) arguments: Vec<Argument>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Argument {
    #[prost(string, tag = "1")]
    pub(super) raw: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// As in contract files: `i64`, `cstr`, `hash32`, `bytes`, `pointer`.
    #[prost(string, tag = "3")]
    pub(super) kind: String,
    /// Of `cstr`.
    #[prost(uint64, optional, tag = "4")]
    pub(super) max: Option<u64>,
    /// Of `bytes`: their number, or the index of the argument that has it.
    #[prost(oneof = "Length", tags = "5, 6")]
    pub(super) length: Option<Length>,
    /// Of `pointer`.
    #[prost(string, optional, tag = "7")]
    pub(super) to: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub(super) unit: Option<String>,
    #[prost(btree_map = "sint64, string", tag = "9")]
    pub(super) values: BTreeMap<i64, String>,
    #[prost(string, optional, tag = "10")]
    pub(super) note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(super) enum Length {
    #[prost(uint64, tag = "5")]
    Fixed(u64),
    #[prost(uint32, tag = "6")]
    Argument(u32),
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
    pub(super) arguments: Vec<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Value {
    #[prost(oneof = "ValueKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub(super) kind: Option<ValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ValueKind {
    #[prost(sint64, tag = "1")]
    Signed(i64),
    #[prost(uint64, tag = "2")]
    Unsigned(u64),
    #[prost(double, tag = "3")]
    Float(f64),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(bytes, tag = "5")]
    Text(Bytes),
    #[prost(bytes, tag = "6")]
    TruncatedText(Bytes),
    #[prost(message, tag = "7")]
    Bytes(PartialBytes),
    /// The address.
    #[prost(uint64, tag = "8")]
    Unreadable(u64),
    #[prost(message, tag = "9")]
    Unsupported(Unsupported),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PartialBytes {
    #[prost(bytes, tag = "1")]
    pub(super) bytes: Bytes,
    #[prost(uint64, tag = "2")]
    pub(super) claimed: u64,
    /// 0: whole; 1: limit; 2: unreadable; 3: dropped.
    #[prost(uint32, tag = "3")]
    pub(super) incomplete: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Unsupported {}

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
}
