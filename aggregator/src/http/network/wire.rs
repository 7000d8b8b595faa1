//! JSON of `/v2/p2p` and `/v3`, with the fields in the order of the original.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use chainscope_proto::v1::{Chunk, ConnectionState, ConnectionSummary, Initiator, Message, Record, SocketAddress};
use chainscope_store::Connection;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::{
    params::{is_decimal, shown},
    problem::Problem,
    time::shown_time,
};

/// Maximum bytes of a chunk in a list.
const LISTED_BYTES: usize = 65536;

const NS_PER_S: u64 = 1_000_000_000;

/// A message in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Row<'a> {
    /// Position among the node's messages, dense from 0.
    #[schema(example = 6)]
    pub(crate) id: u64,
    /// Time of its last chunk: nanoseconds since 1970, in whole milliseconds.
    #[schema(example = 1_626_264_123_456_000_000_i64)]
    pub(crate) timestamp: i64,
    /// The peer's socket, `ip:port` or `[ip]:port`.
    #[schema(example = "127.0.0.1:29733")]
    pub(crate) remote_addr: String,
    /// The initiator of the connection: `local` or `remote`; null if unknown.
    #[schema(example = "local")]
    pub(crate) source_type: Option<&'static str>,
    /// Whether the peer sent it.
    pub(crate) incoming: bool,
    /// `connection`, `meta`, `ack` or `p2p`.
    #[schema(example = "p2p")]
    pub(crate) category: &'a str,
    /// Its type, if its category is `p2p`.
    #[schema(example = "operation")]
    pub(crate) kind: Option<&'a str>,
    /// The first 100 bytes of the decoded message's JSON; null if it cannot be decoded.
    #[schema(example = "{\"Operation\":{\"operation\":{\"branch\":\"BL")]
    pub(crate) message_preview: Option<&'a str>,
}

impl<'a> Row<'a> {
    pub(crate) fn new(id: u64, record: &Record, message: &'a Message) -> Self {
        Self {
            id,
            timestamp: shown_time(record.time_ns),
            remote_addr: message.remote.as_ref().map_or_else(unknown_address, address),
            source_type: initiator(message.initiator()),
            incoming: message.incoming,
            category: &message.category,
            kind: (message.category == "p2p").then_some(&*message.kind),
            message_preview: message.preview.as_deref(),
        }
    }
}

/// A message in a live stream.
#[derive(Debug, Serialize)]
pub(crate) struct StreamedRow<'a> {
    #[serde(flatten)]
    pub(crate) row: Row<'a>,
    /// Length of the message, framing included.
    pub(crate) plain_bytes: u64,
    /// The peer's identity; empty if it is unknown.
    pub(crate) peer_id: &'a str,
}

/// A connection in `/v3/connections`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionView {
    /// The initiator: `local`, `remote` or `unknown`.
    #[schema(example = "local")]
    initiator: &'static str,
    /// The peer's socket; an IPv4 address is shown as IPv4-mapped IPv6 address.
    #[schema(example = "[::ffff:51.15.220.7]:9732")]
    remote_addr: String,
    /// The peer's identity, or `unknown`.
    #[schema(example = "idssJHDL1z8fkryZaYVF9fQRMktoWg")]
    peer_id: String,
    /// Remarks, such as a bad proof of work.
    comments: Vec<String>,
    /// `handshake`, `decoding`, `undecryptable`, `raw` or `closed`.
    state: &'static str,
    /// Reason of the state; empty if there is none.
    reason: String,
    /// Remedy; empty if there is none.
    remedy: String,
    /// The local socket.
    local_addr: String,
    /// `tezos`, `tezos-dal`, or empty.
    protocol: String,
    /// The network that the peer announced.
    network: String,
    /// The observed process.
    target: String,
    /// Gaps in its streams.
    gaps: u64,
    /// Bytes that were not captured.
    lost_bytes: u64,
    /// Time of its latest event, nanoseconds since 1970.
    last_timestamp: i64,
    /// Its close, if it is closed.
    closed: Option<ClosedView>,
}

/// The close of a connection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClosedView {
    /// `local`, `remote`, `reset`, `process exited` or `capture ended`.
    by: String,
    /// Bytes that the node sent.
    sent_bytes: u64,
    /// Bytes that the peer sent.
    received_bytes: u64,
}

impl ConnectionView {
    pub(crate) fn new(connection: Connection) -> Self {
        let who = connection.initiator();
        let ConnectionSummary { opened, identified, comments, state, closed, gaps, lost_bytes, last_time_ns, target } =
            connection.summary;
        let opened = opened.unwrap_or_default();
        let identified = identified.unwrap_or_default();
        let state = state.unwrap_or_default();
        let mapped = |address: Option<SocketAddress>| {
            address.as_ref().and_then(socket).map_or_else(unknown_address, |socket| mapped(socket).to_string())
        };
        Self {
            initiator: initiator(who).unwrap_or("unknown"),
            remote_addr: mapped(opened.remote),
            peer_id: if identified.peer_id.is_empty() { "unknown".to_owned() } else { identified.peer_id },
            comments,
            state: if closed.is_some() { "closed" } else { state_name(state.state()) },
            reason: state.reason,
            remedy: state.remedy,
            local_addr: mapped(opened.local),
            protocol: identified.protocol,
            network: identified.network,
            target,
            gaps,
            lost_bytes,
            last_timestamp: last_time_ns,
            closed: closed.map(|closed| ClosedView {
                by: closed.by,
                sent_bytes: closed.sent_bytes,
                received_bytes: closed.received_bytes,
            }),
        }
    }
}

/// A chunk in `/v3/chunks`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChunkView {
    /// Whether it was captured from a socket call (sendto, recvmsg, …) instead of read or write.
    net: bool,
    /// Time of its last byte, seconds since 1970.
    #[schema(example = 1_617_005_690)]
    timestamp: i64,
    /// Bytes on the wire with the length prefix, in hex; empty if only plain bytes are stored.
    #[schema(example = "0012…")]
    bytes: String,
    /// Decrypted bytes, in hex; empty if they could not be decrypted.
    #[schema(example = "0000")]
    plain: String,
}

impl ChunkView {
    /// The whole chunk.
    pub(crate) fn whole(time_ns: i64, chunk: &Chunk) -> Self {
        Self::new(time_ns, chunk, |bytes| hex::encode(bytes))
    }

    /// The chunk in a list: long fields are truncated and marked.
    pub(crate) fn listed(time_ns: i64, chunk: &Chunk) -> Self {
        Self::new(time_ns, chunk, |bytes| match bytes.split_at_checked(LISTED_BYTES) {
            Some((shown, rest)) if !rest.is_empty() => {
                format!("{}...truncated {} bytes", hex::encode(shown), rest.len())
            }
            _ => hex::encode(bytes),
        })
    }

    fn new(time_ns: i64, chunk: &Chunk, show: impl Fn(&[u8]) -> String) -> Self {
        Self {
            net: chunk.net,
            timestamp: time_ns.div_euclid(NS_PER_S as i64),
            bytes: show(&chunk.wire),
            plain: show(&chunk.plain),
        }
    }
}

/// A connection's key as text: seconds and nanoseconds, the latter unpadded as in the original.
pub(crate) fn connection_key(key: u64) -> String {
    format!("{}.{}", key / NS_PER_S, key % NS_PER_S)
}

/// Parses a connection's key.
fn parse_connection_key(text: &str) -> Option<u64> {
    let (seconds, nanos) = text.split_once('.')?;
    let number = |text: &str| is_decimal(text).then(|| text.parse::<u64>().ok()).flatten();
    let nanos = number(nanos).filter(|nanos| *nanos < NS_PER_S)?;
    number(seconds)?.checked_mul(NS_PER_S)?.checked_add(nanos)
}

/// A chunk's key as text.
pub(crate) fn chunk_key(chunk: &Chunk) -> String {
    let sender = if chunk.incoming { "remote" } else { "local" };
    format!("{}-{sender}-{}", connection_key(chunk.connection), chunk.counter)
}

/// Parses a chunk's key: connection, whether the remote sent it, and counter.
fn parse_chunk_key(text: &str) -> Option<(u64, bool, u64)> {
    let mut parts = text.splitn(3, '-');
    let connection = parse_connection_key(parts.next()?)?;
    let incoming = match parts.next()? {
        "remote" => true,
        "local" => false,
        _ => return None,
    };
    let counter = parts.next()?;
    is_decimal(counter).then(|| counter.parse().ok()).flatten().map(|counter| (connection, incoming, counter))
}

/// As [`parse_connection_key`], or a 400 that names the parameter.
pub(crate) fn require_connection_key(name: &str, text: &str) -> Result<u64, Problem> {
    parse_connection_key(text)
        .ok_or_else(|| Problem::parameter(name, format!("{} is not <seconds>.<nanoseconds>", shown(text))))
}

/// As [`parse_chunk_key`], or a 400 that names the parameter.
pub(crate) fn require_chunk_key(name: &str, text: &str) -> Result<(u64, bool, u64), Problem> {
    parse_chunk_key(text).ok_or_else(|| {
        Problem::parameter(name, format!("{} is not <seconds>.<nanoseconds>-<local|remote>-<counter>", shown(text)))
    })
}

fn initiator(initiator: Initiator) -> Option<&'static str> {
    match initiator {
        Initiator::Local => Some("local"),
        Initiator::Remote => Some("remote"),
        Initiator::Unspecified => None,
    }
}

fn state_name(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Unspecified | ConnectionState::Handshake => "handshake",
        ConnectionState::Decoding => "decoding",
        ConnectionState::Undecryptable => "undecryptable",
        ConnectionState::Raw => "raw",
        ConnectionState::Closed => "closed",
    }
}

fn socket(address: &SocketAddress) -> Option<SocketAddr> {
    let port = u16::try_from(address.port).ok()?;
    let ip = match *address.ip.as_slice() {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        ref ip => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

fn mapped(socket: SocketAddr) -> SocketAddr {
    match socket.ip() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), socket.port()),
        IpAddr::V6(_) => socket,
    }
}

fn address(address: &SocketAddress) -> String {
    socket(address).map_or_else(unknown_address, |socket| socket.to_string())
}

fn unknown_address() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::{connection_key, parse_chunk_key, parse_connection_key};

    #[test]
    fn keys_are_those_of_the_original() {
        assert_eq!(connection_key(1_617_005_682_953_928_051), "1617005682.953928051");
        assert_eq!(connection_key(1_617_005_682_000_000_051), "1617005682.51");
        for key in [0, 1, 999_999_999, 1_000_000_000, 1_617_005_682_000_000_051, u64::MAX] {
            assert_eq!(parse_connection_key(&connection_key(key)), Some(key));
        }
        for bad in ["", ".", "1", "1.", ".1", "1.1000000000", "-1.1", "+1.1", "1.1.1", "99999999999.0", "a.b", "1. 1"] {
            assert_eq!(parse_connection_key(bad), None, "{bad:?}");
        }
        assert_eq!(parse_chunk_key("1617005682.51-remote-15"), Some((1_617_005_682_000_000_051, true, 15)));
        assert_eq!(parse_chunk_key("1617005682.51-local-0"), Some((1_617_005_682_000_000_051, false, 0)));
        for bad in ["", "1.1", "1.1-remote", "1.1-remote-", "1.1-me-1", "1.1-local-+1", "1.1-local-1-1", "1.1-local-x"]
        {
            assert_eq!(parse_chunk_key(bad), None, "{bad:?}");
        }
    }
}
