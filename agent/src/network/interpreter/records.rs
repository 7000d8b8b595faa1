//! Protobuf records, made from the outputs of the tezos crate. Pure.

use std::net::{IpAddr, SocketAddr};

use chainscope_ebpf::network::KernelAccount;
use chainscope_proto::v1::{self, Record, connection_event::Event as ConnectionKind, record::Kind};
use chainscope_tezos::{Category, Chunk, ChunkState, Direction, Gap, Message, Role};

/// The side that opened the connection.
pub(super) fn initiator(role: Option<Role>) -> v1::Initiator {
    match role {
        Some(Role::Initiator) => v1::Initiator::Local,
        Some(Role::Responder) => v1::Initiator::Remote,
        None => v1::Initiator::Unspecified,
    }
}

/// An address of the socket's family: a v4-mapped address stays 16 bytes long.
pub(crate) fn address(address: SocketAddr) -> v1::SocketAddress {
    v1::SocketAddress { ip: ip_bytes(address.ip()), port: address.port().into() }
}

pub(crate) fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn record(time_ns: i64, target: &str, kind: Kind) -> Record {
    Record { time_ns, target: target.to_owned(), kind: Some(kind) }
}

pub(crate) fn connection_event(time_ns: i64, target: &str, connection: u64, event: ConnectionKind) -> Record {
    record(time_ns, target, Kind::Connection(v1::ConnectionEvent { connection, event: Some(event) }))
}

pub(crate) fn closed(time_ns: i64, target: &str, connection: u64, by: &str, sent: u64, received: u64) -> Record {
    let closed = v1::ConnectionClosed { by: by.to_owned(), sent_bytes: sent, received_bytes: received };
    connection_event(time_ns, target, connection, ConnectionKind::Closed(closed))
}

pub(crate) fn target_event(time_ns: i64, target: &str, event: &str, pid: u32, detail: String) -> Record {
    record(time_ns, target, Kind::TargetEvent(v1::TargetEvent { event: event.to_owned(), pid, detail }))
}

/// What the kernel dropped between two accounts of a target, one record per reason.
pub(super) fn kernel_losses(
    (from_ns, to_ns): (i64, i64),
    target: &str,
    before: &KernelAccount,
    after: &KernelAccount,
) -> Vec<Record> {
    let earlier =
        |reason: &str| before.dropped.iter().find(|(known, _)| *known == reason).map_or(0, |(_, bytes)| *bytes);
    let new = after.dropped.iter().filter_map(|(reason, bytes)| {
        let bytes = bytes.saturating_sub(earlier(reason));
        (bytes > 0).then(|| {
            let loss = v1::Loss {
                stage: "kernel".to_owned(),
                reason: (*reason).to_owned(),
                bytes,
                from_ns,
                to_ns,
                ..Default::default()
            };
            record(to_ns, target, Kind::Loss(loss))
        })
    });
    new.collect()
}

pub(super) fn chunk(
    time_ns: i64,
    target: &str,
    connection: u64,
    chunk: Chunk,
    is_plain_only: bool,
    is_net: bool,
) -> Record {
    let state = match chunk.state {
        ChunkState::Clear => v1::ChunkState::Clear,
        ChunkState::Opened => v1::ChunkState::Opened,
        ChunkState::Undecryptable => v1::ChunkState::Undecryptable,
    };
    // A chunk that could not be opened has only its wire bytes; a clear chunk is short and kept too.
    let is_wire_kept = !is_plain_only || state != v1::ChunkState::Opened;
    let kind = v1::Chunk {
        connection,
        incoming: chunk.direction == Direction::Received,
        counter: chunk.counter,
        wire: if is_wire_kept { chunk.wire } else { Default::default() },
        plain: chunk.plain,
        state: state.into(),
        net: is_net,
    };
    record(time_ns, target, Kind::Chunk(kind))
}

/// The connection that a message belongs to.
pub(super) struct Of<'a> {
    pub(super) connection: u64,
    pub(super) protocol: &'a str,
    pub(super) role: Option<Role>,
    pub(super) remote: SocketAddr,
    pub(super) peer_id: &'a str,
}

pub(super) fn message(time_ns: i64, target: &str, of: &Of<'_>, message: Message) -> Record {
    let category = match message.category {
        Category::Connection => "connection",
        Category::Meta => "meta",
        Category::Ack => "ack",
        Category::P2p => "p2p",
    };
    let kind = v1::Message {
        connection: of.connection,
        incoming: message.direction == Direction::Received,
        protocol: of.protocol.to_owned(),
        category: category.to_owned(),
        kind: message.kind.to_owned(),
        first_chunk: message.first_chunk,
        last_chunk: message.last_chunk,
        length: message.length,
        sha256: bytes::Bytes::copy_from_slice(&message.sha256),
        preview: message.preview,
        error: message.error,
        initiator: initiator(of.role).into(),
        remote: Some(address(of.remote)),
        peer_id: of.peer_id.to_owned(),
    };
    record(time_ns, target, Kind::Message(kind))
}

pub(super) fn gap(gap: Gap, reason: &str) -> v1::Gap {
    v1::Gap {
        incoming: gap.direction == Direction::Received,
        lost_bytes: gap.lost_bytes,
        skipped_bytes: gap.skipped_bytes,
        first_chunk: gap.first_chunk,
        missed_chunks: gap.missed_chunks,
        recovered: gap.recovered,
        reason: if gap.lost_bytes > 0 { reason.to_owned() } else { String::new() },
    }
}
