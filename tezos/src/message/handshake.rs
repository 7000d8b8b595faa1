//! Messages of the handshake: connection, metadata, acknowledgement (Octez `p2p_connect_handler.ml`, `p2p_socket.ml`).
use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    json::Text,
    message::{DecodeError, peer::Texts},
    pow,
    reader::{Cause, Decode, Dynamic, Fault, List, Reader},
};

/// The unencrypted message that begins a direction. Layout, without the chunk's u16 length prefix:
///
/// ```text
/// port u16 | public key 32 | proof-of-work stamp 24 | nonce 24 | (chain name dyn | ddb version u16 | p2p version u16)+
/// ```
/// Until 2019 the message ended with a list of versions; a list of one version has the same layout as today.
#[derive(Clone, Debug)]
pub struct ConnectionMessage<'a> {
    /// P2P port of the sender, 0 for none.
    pub port: u16,
    /// X25519 public key.
    pub public_key: &'a [u8; 32],
    /// Proof-of-work stamp; see [`pow::check`].
    pub proof_of_work_stamp: &'a [u8; pow::STAMP_BYTES],
    /// Random bytes, so that the nonces of each session differ.
    pub message_nonce: &'a [u8; 24],
    /// Network and protocol versions.
    pub version: Version<'a>,
    /// Further versions, sent by nodes older than 2019.
    pub other_versions: List<'a, Version<'a>>,
}

/// A network and the versions of its protocols.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub struct Version<'a> {
    /// Name of the network, such as `TEZOS_MAINNET`; DAL nodes use the prefix `DAL_`.
    pub chain_name: Text<'a>,
    /// Version of the distributed database protocol, 0 to 2.
    pub distributed_db_version: u16,
    /// Version of the P2P protocol, 0 or 1.
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
    /// Decodes the content of a connection chunk: the bytes after its length prefix.
    ///
    /// # Errors
    /// If the content is not a connection message.
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

    /// Whether the sender is a DAL node.
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

/// Preferences of a peer for the connection (Octez `connection_metadata.ml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// Whether the peer wants no operations.
    pub disable_mempool: bool,
    /// Whether the peer must not be advertised to others.
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
    /// Rejected, without a reason.
    NackV0,
    /// Rejected.
    Nack {
        /// Reason.
        motive: Motive,
        /// Addresses of other peers.
        #[expect(private_interfaces, reason = "serialised only")]
        potential_peers_to_connect: Texts<'a>,
    },
}

/// Reason of a rejection (Octez `p2p_rejection.ml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are those of Octez")]
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
