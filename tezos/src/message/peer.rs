//! Messages between peers after the handshake (Octez `p2p_message.ml`, `distributed_db_message.ml`; Octez 7 for tags
//! 0x50 and 0x51).
use serde::Serialize;

use crate::{
    json::Text,
    message::parts::{
        BlockHash, BlockHeader, BlockPass, ChainId, Locator, Operation, OperationHash, Path, PeerId, ProtocolHash,
    },
    reader::{Cause, Decode, Dynamic, Fault, List, Reader},
};

/// A list of points (`ip:port`).
pub(crate) type Texts<'a> = List<'a, Dynamic<Text<'a>>>;

impl<'a> Decode<'a> for Text<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self(reader.rest()))
    }
}

/// A message between peers. Its JSON is an object with the variant's name as the only key, or the name.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "the names are those of Octez")]
pub enum PeerMessage<'a> {
    Disconnect,
    Bootstrap,
    Advertise(Advertise<'a>),
    SwapRequest(Swap<'a>),
    SwapAck(Swap<'a>),
    GetCurrentBranch {
        chain_id: ChainId<'a>,
    },
    CurrentBranch {
        chain_id: ChainId<'a>,
        current_branch: Locator<'a>,
    },
    Deactivate {
        deactivate: ChainId<'a>,
    },
    GetCurrentHead {
        chain_id: ChainId<'a>,
    },
    CurrentHead {
        chain_id: ChainId<'a>,
        current_block_header: BlockHeader<'a>,
        current_mempool: Mempool<'a>,
    },
    GetBlockHeaders {
        get_block_headers: List<'a, BlockHash<'a>>,
    },
    BlockHeader {
        block_header: BlockHeader<'a>,
    },
    GetOperations {
        get_operations: List<'a, OperationHash<'a>>,
    },
    Operation {
        operation: Operation<'a>,
    },
    GetProtocols {
        get_protocols: List<'a, ProtocolHash<'a>>,
    },
    Protocol {
        protocol: Protocol<'a>,
    },
    GetOperationHashesForBlocks {
        get_operation_hashes_for_blocks: List<'a, BlockPass<'a>>,
    },
    OperationHashesForBlocks {
        operation_hashes_for_block: BlockPass<'a>,
        operation_hashes_path: Path<'a>,
        operation_hashes: List<'a, OperationHash<'a>>,
    },
    GetOperationsForBlocks {
        get_operations_for_blocks: List<'a, BlockPass<'a>>,
    },
    OperationsForBlocks(OperationsForBlocks<'a>),
    GetCheckpoint {
        chain_id: ChainId<'a>,
    },
    Checkpoint {
        chain_id: ChainId<'a>,
        header: BlockHeader<'a>,
    },
    GetProtocolBranch {
        chain: ChainId<'a>,
        proto_level: u8,
    },
    ProtocolBranch {
        chain: ChainId<'a>,
        proto_level: u8,
        locator: Locator<'a>,
    },
    GetPredecessorHeader {
        block: BlockHash<'a>,
        offset: i32,
    },
    PredecessorHeader {
        block: BlockHash<'a>,
        offset: i32,
        header: BlockHeader<'a>,
    },
}

/// Addresses of known peers.
#[derive(Debug, Serialize)]
pub struct Advertise<'a> {
    id: Texts<'a>,
}

/// A peer offered in exchange for another.
#[derive(Debug, Serialize)]
pub struct Swap<'a> {
    point: Text<'a>,
    peer_id: PeerId<'a>,
}

/// Pending operations (Octez `mempool.ml`).
#[derive(Debug, Serialize)]
pub struct Mempool<'a> {
    known_valid: List<'a, OperationHash<'a>>,
    pending: List<'a, OperationHash<'a>>,
}

/// Sources of a protocol (Octez `protocol.ml`).
#[derive(Debug, Serialize)]
pub struct Protocol<'a> {
    expected_env_version: u16,
    components: List<'a, Component<'a>>,
}

/// A module of a protocol.
#[derive(Debug, Serialize)]
pub struct Component<'a> {
    name: Text<'a>,
    interface: Option<Text<'a>>,
    implementation: Text<'a>,
}

/// One list of operations of a block, with its Merkle proof.
#[derive(Debug, Serialize)]
pub struct OperationsForBlocks<'a> {
    operations_for_block: BlockPass<'a>,
    operation_hashes_path: Path<'a>,
    operations: List<'a, Dynamic<Operation<'a>>>,
}

impl<'a> Decode<'a> for Component<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self {
            name: Dynamic::decode(reader)?.0,
            interface: if reader.boolean()? { Some(Dynamic::decode(reader)?.0) } else { None },
            implementation: Dynamic::decode(reader)?.0,
        })
    }
}

impl<'a> Decode<'a> for Mempool<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let known_valid = List::decode_dynamic(reader)?;
        // The list has two nested length prefixes.
        let mut pending = reader.dynamic()?;
        let list = List::decode_dynamic(&mut pending)?;
        pending.finish()?;
        Ok(Self { known_valid, pending: list })
    }
}

impl<'a> Decode<'a> for Swap<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self { point: Dynamic::decode(reader)?.0, peer_id: Decode::decode(reader)? })
    }
}

impl<'a> PeerMessage<'a> {
    /// Decodes the body of a message; the caller checks that all bytes were read.
    pub(crate) fn decode(tag: u16, r: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(match tag {
            0x01 => Self::Disconnect,
            0x02 => Self::Bootstrap,
            0x03 => Self::Advertise(Advertise { id: List::decode_rest(r)? }),
            0x04 => Self::SwapRequest(Decode::decode(r)?),
            0x05 => Self::SwapAck(Decode::decode(r)?),
            0x10 => Self::GetCurrentBranch { chain_id: Decode::decode(r)? },
            0x11 => Self::CurrentBranch { chain_id: Decode::decode(r)?, current_branch: Decode::decode(r)? },
            0x12 => Self::Deactivate { deactivate: Decode::decode(r)? },
            0x13 => Self::GetCurrentHead { chain_id: Decode::decode(r)? },
            0x14 => Self::CurrentHead {
                chain_id: Decode::decode(r)?,
                current_block_header: Dynamic::decode(r)?.0,
                current_mempool: Decode::decode(r)?,
            },
            0x20 => Self::GetBlockHeaders { get_block_headers: List::decode_dynamic(r)? },
            0x21 => Self::BlockHeader { block_header: Decode::decode(r)? },
            0x30 => Self::GetOperations { get_operations: List::decode_dynamic(r)? },
            0x31 => Self::Operation { operation: Decode::decode(r)? },
            0x40 => Self::GetProtocols { get_protocols: List::decode_dynamic(r)? },
            0x41 => Self::Protocol {
                protocol: Protocol { expected_env_version: r.u16()?, components: List::decode_dynamic(r)? },
            },
            0x50 => Self::GetOperationHashesForBlocks { get_operation_hashes_for_blocks: List::decode_dynamic(r)? },
            0x51 => Self::OperationHashesForBlocks {
                operation_hashes_for_block: Decode::decode(r)?,
                operation_hashes_path: Decode::decode(r)?,
                operation_hashes: List::decode_rest(r)?,
            },
            0x60 => Self::GetOperationsForBlocks { get_operations_for_blocks: List::decode_dynamic(r)? },
            0x61 => Self::OperationsForBlocks(OperationsForBlocks {
                operations_for_block: Decode::decode(r)?,
                operation_hashes_path: Decode::decode(r)?,
                operations: List::decode_rest(r)?,
            }),
            0x70 => Self::GetCheckpoint { chain_id: Decode::decode(r)? },
            0x71 => Self::Checkpoint { chain_id: Decode::decode(r)?, header: Decode::decode(r)? },
            0x80 => Self::GetProtocolBranch { chain: Decode::decode(r)?, proto_level: r.u8()? },
            0x81 => {
                Self::ProtocolBranch { chain: Decode::decode(r)?, proto_level: r.u8()?, locator: Decode::decode(r)? }
            }
            0x90 => Self::GetPredecessorHeader { block: Decode::decode(r)?, offset: r.i32()? },
            0x91 => Self::PredecessorHeader { block: Decode::decode(r)?, offset: r.i32()?, header: Decode::decode(r)? },
            _ => return Err(r.fault(Cause::UnknownTag)),
        })
    }
}
