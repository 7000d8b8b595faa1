//! Wire types of Chainscope: the record path and the session journal, generated from `proto/`.
//!
//! The rules of change are at the top of `record.proto`: additive only, held by a golden test of the descriptor.

/// Version 1 of the protocol.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)] // generated; the comments are in the .proto files
pub mod v1 {
    tonic::include_proto!("chainscope.v1");
}

/// Versions of the record path that this build speaks, least and greatest.
pub const VERSIONS: (u32, u32) = (1, 1);

/// The compiled descriptor of every `.proto` file, as a serialised `FileDescriptorSet`.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));
