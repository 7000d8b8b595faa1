//! Which values a message is found by. Used when it is written, queried and verified.

use std::net::{IpAddr, SocketAddr};

use chainscope_proto::v1::{Message, SocketAddress};

use crate::keys;

/// Calls `add` with the position in [`keys::INDEXES`] and the value, for every index the message is in.
pub(crate) fn values(target: &str, message: &Message, mut add: impl FnMut(usize, &[u8])) {
    add(0, keys::cut(message.kind.as_bytes()));
    add(1, &[u8::from(message.incoming)]);
    add(2, &[message.initiator() as u8]);
    if let Some(remote) = message.remote.as_ref().and_then(remote_value) {
        add(3, &remote);
    }
    add(4, keys::cut(message.peer_id.as_bytes()));
    add(5, keys::cut(target.as_bytes()));
}

/// Address as 16 bytes and port; none if it is not an address.
pub(crate) fn remote_value(address: &SocketAddress) -> Option<[u8; 18]> {
    let ip = match address.ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address.ip.as_slice()).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(address.ip.as_slice()).ok()?),
        _ => return None,
    };
    Some(socket_value(SocketAddr::new(ip, u16::try_from(address.port).ok()?)))
}

/// As [`remote_value`]: an IPv4 address equals the IPv6 address that stands for it.
pub(crate) fn socket_value(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut value = [0; 18];
    value[..16].copy_from_slice(&ip.octets());
    value[16..].copy_from_slice(&address.port().to_be_bytes());
    value
}
