//! Parts shared by several messages: hashes, block header, locator, operation, path.
use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    hash::{Base58, HashKind, blake2b_256},
    json::{Hex, Timestamp},
    reader::{Cause, Decode, Dynamic, Fault, List, Reader},
};

macro_rules! hashes {
    ($($(#[$doc:meta])* $name:ident: $length:literal bytes, $kind:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a>(pub &'a [u8; $length]);

        impl<'a> Decode<'a> for $name<'a> {
            fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
                reader.array().map(Self)
            }
        }

        impl Serialize for $name<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Base58 { kind: HashKind::$kind, bytes: self.0 }.serialize(serializer)
            }
        }
    )*};
}

hashes! {
    /// Hash of a block: Blake2b-256 of its header.
    BlockHash: 32 bytes, Block;
    /// Hash of an operation: Blake2b-256 of it.
    OperationHash: 32 bytes, Operation;
    /// Root of the Merkle tree of a block's operations.
    OperationListListHash: 32 bytes, OperationListList;
    /// Root of the context tree.
    ContextHash: 32 bytes, Context;
    /// Hash of a protocol's sources.
    ProtocolHash: 32 bytes, Protocol;
    /// Peer id: Blake2b-128 of a public key.
    PeerId: 16 bytes, Peer;
    /// Chain id: first bytes of the genesis block's hash.
    ChainId: 4 bytes, Chain;
}

/// Bytes up to the end of the reader.
impl<'a> Decode<'a> for Hex<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self(reader.rest()))
    }
}

/// Shell header of a block (Octez `block_header.ml`); the protocol data is not decoded.
#[derive(Clone, Debug)]
pub struct BlockHeader<'a> {
    /// Height.
    pub level: i32,
    /// Number of the protocol in the chain.
    pub proto: u8,
    /// Hash of the preceding block.
    pub predecessor: BlockHash<'a>,
    /// Seconds since 1970.
    pub timestamp: Timestamp,
    /// Number of lists of operations.
    pub validation_pass: u8,
    /// Root of the Merkle tree of the operations.
    pub operations_hash: OperationListListHash<'a>,
    fitness: List<'a, Dynamic<Hex<'a>>>,
    /// Root of the context tree after the block (before it, in later protocols).
    pub context: ContextHash<'a>,
    /// Protocol-specific data; ends with the signature.
    pub protocol_data: Hex<'a>,
    raw: &'a [u8],
}

impl<'a> Decode<'a> for BlockHeader<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let raw = reader.clone().rest();
        Ok(Self {
            level: reader.i32()?,
            proto: reader.u8()?,
            predecessor: Decode::decode(reader)?,
            timestamp: Timestamp(reader.i64()?),
            validation_pass: reader.u8()?,
            operations_hash: Decode::decode(reader)?,
            fitness: List::decode_dynamic(reader)?,
            context: Decode::decode(reader)?,
            protocol_data: Hex(reader.rest()),
            raw,
        })
    }
}

impl BlockHeader<'_> {
    /// Computes the block's hash.
    pub fn hash(&self) -> [u8; 32] {
        blake2b_256(&[self.raw])
    }
}

impl Serialize for BlockHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("BlockHeader", 10)?;
        fields.serialize_field("level", &self.level)?;
        fields.serialize_field("proto", &self.proto)?;
        fields.serialize_field("predecessor", &self.predecessor)?;
        fields.serialize_field("timestamp", &self.timestamp)?;
        fields.serialize_field("validation_pass", &self.validation_pass)?;
        fields.serialize_field("operations_hash", &self.operations_hash)?;
        fields.serialize_field("fitness", &self.fitness)?;
        fields.serialize_field("context", &self.context)?;
        fields.serialize_field("protocol_data", &self.protocol_data)?;
        fields.serialize_field("hash", &BlockHash(&self.hash()))?;
        fields.end()
    }
}

/// The head of a chain and a sample of the blocks before it (Octez `block_locator.ml`).
#[derive(Clone, Debug, Serialize)]
pub struct Locator<'a> {
    /// Header of the newest block.
    pub current_head: BlockHeader<'a>,
    /// Hashes of earlier blocks, newest first, at increasing distances.
    pub history: List<'a, BlockHash<'a>>,
}

impl<'a> Decode<'a> for Locator<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self { current_head: Dynamic::decode(reader)?.0, history: List::decode_rest(reader)? })
    }
}

/// An operation (Octez `operation.ml`): shell header and data, which are not decoded.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    /// Recent block on which the operation is valid.
    pub branch: BlockHash<'a>,
    /// Protocol-specific contents and signature.
    pub data: Hex<'a>,
    raw: &'a [u8],
}

impl<'a> Decode<'a> for Operation<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let raw = reader.clone().rest();
        Ok(Self { branch: Decode::decode(reader)?, data: Hex(reader.rest()), raw })
    }
}

impl Operation<'_> {
    /// Computes the operation's hash.
    pub fn hash(&self) -> [u8; 32] {
        blake2b_256(&[self.raw])
    }

    /// Name of the first content in Octez; the byte in hexadecimal if it is unknown. `None` without data.
    pub fn kind(&self) -> Option<String> {
        let tag = *self.data.0.first()?;
        Some(content_kind(tag).map_or_else(|| format!("0x{tag:02x}"), str::to_owned))
    }
}

/// Names of operation contents in protocol 025, and in older protocols where a tag was not reused.
fn content_kind(tag: u8) -> Option<&'static str> {
    Some(match tag {
        0x00 => "endorsement",
        0x01 => "seed_nonce_revelation",
        0x02 => "double_attestation_evidence",
        0x03 => "double_baking_evidence",
        0x04 => "activate_account",
        0x05 => "proposals",
        0x06 => "ballot",
        0x07 => "double_preattestation_evidence",
        0x08 => "vdf_revelation",
        0x09 => "drain_delegate",
        0x0a => "endorsement_with_slot",
        0x11 => "failing_noop",
        0x14 => "preattestation",
        0x15 => "attestation",
        0x17 => "attestation_with_dal",
        0x18 => "dal_entrapment_evidence",
        0x1e => "preattestations_aggregate",
        0x1f => "attestations_aggregate",
        0x6b => "reveal",
        0x6c => "transaction",
        0x6d => "origination",
        0x6e => "delegation",
        0x6f => "register_global_constant",
        0x70 => "set_deposits_limit",
        0x71 => "increase_paid_storage",
        0x72 => "update_consensus_key",
        0x73 => "update_companion_key",
        0x9e => "transfer_ticket",
        0xc8 => "smart_rollup_originate",
        0xc9 => "smart_rollup_add_messages",
        0xca => "smart_rollup_cement",
        0xcb => "smart_rollup_publish",
        0xcc => "smart_rollup_refute",
        0xcd => "smart_rollup_timeout",
        0xce => "smart_rollup_execute_outbox_message",
        0xcf => "smart_rollup_recover_bond",
        0xe6 => "dal_publish_commitment",
        _ => return None,
    })
}

impl Serialize for Operation<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Operation", 4)?;
        fields.serialize_field("branch", &self.branch)?;
        fields.serialize_field("data", &self.data)?;
        fields.serialize_field("hash", &OperationHash(&self.hash()))?;
        fields.serialize_field("kind", &self.kind())?;
        fields.end()
    }
}

/// One of the lists of operations of a block.
#[derive(Clone, Debug, Serialize)]
pub struct BlockPass<'a> {
    /// Hash of the block.
    pub hash: BlockHash<'a>,
    /// Number of the list: consensus, votes, anonymous, managers.
    pub validation_pass: i8,
}

impl<'a> Decode<'a> for BlockPass<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self { hash: Decode::decode(reader)?, validation_pass: reader.i8()? })
    }
}

/// Path from the root of a Merkle tree to one leaf (Octez `operation_list_list_hash.path`).
///
/// ```text
/// path = 00 | f0 path right[32] | 0f left[32] path
/// ```
/// The encoding nests without a limit; it is decoded without recursion, up to a depth of [`MAX_DEPTH`].
#[derive(Clone, Debug)]
pub struct Path<'a> {
    /// Encoded steps from the root down, without the end mark.
    down: &'a [u8],
    /// Right hashes of the steps to the left, from the leaf up.
    up: &'a [[u8; 32]],
}

/// Maximum depth of a path: that of a tree with 2^64 leaves.
pub const MAX_DEPTH: usize = 64;

/// One step of a path, with the hash of the sibling.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub enum Step<'a> {
    /// The path continues to the left.
    Left {
        /// Hash of the right subtree.
        right: &'a [u8; 32],
    },
    /// The path continues to the right.
    Right {
        /// Hash of the left subtree.
        left: &'a [u8; 32],
    },
}

impl<'a> Decode<'a> for Path<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let all = reader.clone().rest();
        let mut lefts = 0;
        let mut depth = 0;
        let mut length = 0;
        loop {
            let here = reader.clone();
            match reader.u8()? {
                0x00 => break,
                0xf0 => {
                    lefts += 1;
                    length += 1;
                }
                0x0f => {
                    reader.take(32)?;
                    length += 33;
                }
                tag => return Err(here.fault(Cause::Tag { what: "path", tag })),
            }
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(here.fault(Cause::Deep(MAX_DEPTH)));
            }
        }
        let (up, _) = reader.take(32 * lefts)?.as_chunks();
        Ok(Self { down: all.get(..length).unwrap_or_default(), up })
    }
}

impl<'a> Path<'a> {
    /// The steps, from the root down.
    pub fn steps(&self) -> impl Iterator<Item = Step<'a>> + use<'a> {
        let mut down = Reader::new(self.down, 0);
        let mut up = self.up.iter().rev();
        std::iter::from_fn(move || match down.u8().ok()? {
            0xf0 => Some(Step::Left { right: up.next()? }),
            _ => Some(Step::Right { left: down.array().ok()? }),
        })
    }
}

impl Serialize for Path<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.steps())
    }
}
