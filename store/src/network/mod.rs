//! What network traffic leaves in the store: messages with their chunks, connections, and what was lost of both.
//!
//! The kinds of fact are declared here; chunks are the payload of messages and have tables and rules of their own.

mod accounts;
mod chunks;
mod connections;
mod messages;
mod stored_message;

use std::net::{IpAddr, SocketAddr};

use chainscope_proto::v1::{Message, Record, SocketAddress, record::Kind};

pub use accounts::Account;
#[cfg(test)]
pub(crate) use accounts::MAX_ACCOUNTS;
pub(crate) use accounts::{Accounts, accounts};
pub use chunks::ChunkQuery;
#[cfg(test)]
pub(crate) use chunks::MAX_REMEMBERED;
pub(crate) use chunks::{
    CHUNKS, Chunk, ChunkRange, ChunkRuns, chunk, each_chunk, greatest_older, list, plan_copy, verify,
};
pub use connections::{Connection, ConnectionQuery};
pub(crate) use connections::{LiveConnections, connection, connections};
#[cfg(test)]
pub(crate) use connections::{MAX_COMMENTS, MAX_LIVE, MORE_COMMENTS, fold, keyframe};
pub use messages::MessageQuery;
pub use stored_message::StoredMessage;

use crate::kind::{FactKind, Index, RetentionClass};

/// Messages of peers.
pub(crate) static MESSAGES: FactKind = FactKind {
    name: "message",
    table: 16,
    accepts: |record| matches!(record.kind, Some(Kind::Message(_))),
    time: |record| record.time_ns,
    indexes: &[BY_KIND, BY_INCOMING, BY_INITIATOR, BY_REMOTE, BY_PEER, BY_TARGET],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Records,
    counted: true,
    total: |totals, _| totals.messages += 1,
};

/// Positions in the list of indexes of [`MESSAGES`].
pub(crate) mod index {
    pub(crate) const KIND: usize = 0;
    pub(crate) const INCOMING: usize = 1;
    pub(crate) const INITIATOR: usize = 2;
    pub(crate) const REMOTE: usize = 3;
    pub(crate) const PEER: usize = 4;
    pub(crate) const TARGET: usize = 5;
}

const BY_KIND: Index = Index { values: |record, add| with(record, |message| add(message.kind.as_bytes())) };
const BY_INCOMING: Index = Index { values: |record, add| with(record, |message| add(&[u8::from(message.incoming)])) };
const BY_INITIATOR: Index = Index { values: |record, add| with(record, |message| add(&[message.initiator() as u8])) };
const BY_REMOTE: Index = Index {
    values: |record, add| {
        with(record, |message| {
            if let Some(remote) = message.remote.as_ref().and_then(remote_value) {
                add(&remote);
            }
        });
    },
};
const BY_PEER: Index = Index { values: |record, add| with(record, |message| add(message.peer_id.as_bytes())) };
const BY_TARGET: Index = Index { values: |record, add| add(record.target.as_bytes()) };

fn with(record: &Record, add: impl FnOnce(&Message)) {
    if let Some(Kind::Message(message)) = &record.kind {
        add(message);
    }
}

/// Events of connections, folded to connections when they are read.
pub(crate) static CONNECTION_EVENTS: FactKind = FactKind {
    name: "connection event",
    table: 32,
    accepts: |record| matches!(record.kind, Some(Kind::Connection(_))),
    time: |record| record.time_ns,
    indexes: &[],
    text: None,
    position: None,
    group: Some(connections::connection_of),
    retention: RetentionClass::Records,
    counted: false,
    total: |totals, _| totals.connection_events += 1,
};

/// What was lost on the way here, at any stage.
pub(crate) static LOSSES: FactKind = FactKind {
    name: "loss",
    table: 48,
    accepts: |record| matches!(record.kind, Some(Kind::Loss(_))),
    time: |record| record.time_ns,
    indexes: &[],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Records,
    counted: false,
    total: |totals, record| {
        totals.losses += 1;
        if let Some(Kind::Loss(loss)) = &record.kind {
            totals.lost_records = totals.lost_records.saturating_add(loss.records);
            totals.lost_bytes = totals.lost_bytes.saturating_add(loss.bytes);
        }
    },
};

/// Starts, ends and attachments of targets.
pub(crate) static TARGET_EVENTS: FactKind = FactKind {
    name: "target event",
    table: 64,
    accepts: |record| matches!(record.kind, Some(Kind::TargetEvent(_))),
    time: |record| record.time_ns,
    indexes: &[],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Records,
    counted: false,
    total: |totals, _| totals.target_events += 1,
};

/// Address as 16 bytes and port; none if it is not an address.
fn remote_value(address: &SocketAddress) -> Option<[u8; 18]> {
    let ip = match address.ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address.ip.as_slice()).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(address.ip.as_slice()).ok()?),
        _ => return None,
    };
    Some(socket_value(SocketAddr::new(ip, u16::try_from(address.port).ok()?)))
}

/// As [`remote_value`]: an IPv4 address equals the IPv6 address that it is mapped to.
fn socket_value(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut value = [0; 18];
    value[..16].copy_from_slice(&ip.octets());
    value[16..].copy_from_slice(&address.port().to_be_bytes());
    value
}
