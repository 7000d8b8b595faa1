//! Messages of the handshake: connection, metadata, acknowledgement (Octez `p2p_connect_handler.ml`, `p2p_socket.ml`).
use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    json::Text,
    message::{DecodeError, peer::Texts},
    pow,
    reader::{Cause, Decode, Dynamic, Fault, List, Reader},
};

/// The clear message that opens a direction. Layout, without the chunk's own u16 length:
///
/// ```text
/// port u16 | public key 32 | proof-of-work stamp 24 | nonce 24 | (chain name dyn | ddb version u16 | p2p version u16)+
/// ```
/// Until 2019 the tail was a list of versions; a list of one has the layout of today.
#[derive(Clone, Debug)]
pub struct ConnectionMessage<'a> {
    /// The sender's P2P port, 0 if it has none.
    pub port: u16,
    /// X25519.
    pub public_key: &'a [u8; 32],
    /// For [`pow::check`].
    pub proof_of_work_stamp: &'a [u8; pow::STAMP_BYTES],
    /// Random, so that each session has its own nonces.
    pub message_nonce: &'a [u8; 24],
    /// Network and versions.
    pub version: Version<'a>,
    /// More of them, from nodes older than 2019.
    pub other_versions: List<'a, Version<'a>>,
}

/// A network, and the versions of its protocols.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub struct Version<'a> {
    /// Such as `TEZOS_MAINNET`; a DAL node's begins with `DAL_`.
    pub chain_name: Text<'a>,
    /// 0 to 2.
    pub distributed_db_version: u16,
    /// 0 or 1.
    pub p2p_version: u16,
}

impl<'a> Decode<'a> for Version<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self {
            chain_name: Dynamic::decode(reader)?.0,
            distributed_db_version: reader.u16()?,
            p2p_version: reader.u16()?,
        })
    }
}

impl<'a> ConnectionMessage<'a> {
    /// Reads a connection chunk's content: the bytes after its length.
    pub fn from_plain(plain: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(plain, 0);
        Self::decode(&mut reader).map_err(|fault| DecodeError::new(None, fault))
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self {
            port: reader.u16()?,
            public_key: reader.array()?,
            proof_of_work_stamp: reader.array()?,
            message_nonce: reader.array()?,
            version: Decode::decode(reader)?,
            other_versions: List::decode_rest(reader)?,
        })
    }

    /// Did a DAL node send it?
    pub fn is_dal(&self) -> bool {
        self.version.chain_name.0.starts_with(b"DAL_")
    }
}

impl Serialize for ConnectionMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let others = !self.other_versions.is_empty();
        let mut fields = serializer.serialize_struct("ConnectionMessage", 5 + usize::from(others))?;
        fields.serialize_field("port", &self.port)?;
        fields.serialize_field("public_key", self.public_key)?;
        fields.serialize_field("proof_of_work_stamp", self.proof_of_work_stamp)?;
        fields.serialize_field("message_nonce", self.message_nonce)?;
        fields.serialize_field("version", &self.version)?;
        if others {
            fields.serialize_field("other_versions", &self.other_versions)?;
        }
        fields.end()
    }
}

/// What a peer wants of the connection (Octez `connection_metadata.ml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// Send no operations.
    pub disable_mempool: bool,
    /// Do not tell others of this node.
    pub private_node: bool,
}

impl<'a> Decode<'a> for Metadata {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(Self { disable_mempool: reader.boolean()?, private_node: reader.boolean()? })
    }
}

/// The end of the handshake (Octez `p2p_socket.ml`, `Ack`).
#[derive(Debug, Serialize)]
pub enum Ack<'a> {
    /// Accepted.
    Ack,
    /// Refused, without a reason.
    NackV0,
    /// Refused.
    Nack {
        /// Why.
        motive: Motive,
        /// Where to try instead.
        #[expect(private_interfaces, reason = "shown only")]
        potential_peers_to_connect: Texts<'a>,
    },
}

/// Why a peer refuses (Octez `p2p_rejection.ml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "names are Octez's own")]
pub enum Motive {
    NoMotive,
    TooManyConnections,
    UnknownChainName,
    DeprecatedP2pVersion,
    DeprecatedDistributedDbVersion,
    AlreadyConnected,
    Unknown(u16),
}

impl<'a> Decode<'a> for Ack<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let here = reader.clone();
        Ok(match reader.u8()? {
            0x00 => Self::Ack,
            0xff => Self::NackV0,
            0x01 => Self::Nack {
                motive: match reader.u16()? {
                    0 => Motive::NoMotive,
                    1 => Motive::TooManyConnections,
                    2 => Motive::UnknownChainName,
                    3 => Motive::DeprecatedP2pVersion,
                    4 => Motive::DeprecatedDistributedDbVersion,
                    5 => Motive::AlreadyConnected,
                    other => Motive::Unknown(other),
                },
                potential_peers_to_connect: List::decode_dynamic(reader)?,
            },
            tag => return Err(here.fault(Cause::Tag { what: "ack", tag })),
        })
    }
}
