//! The TCP stream of a peer.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use etherparse::PacketBuilder;

/// Most bytes that are left out at once. More are before the others for Wireshark, not behind them.
const MAX_SKIP: u64 = 1 << 30;
/// Port of Bitcoin's main network.
const PORT: u16 = 8333;
const HOPS: u8 = 64;
const WINDOW: u16 = u16::MAX;

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Node,
    Peer,
}

impl Sender {
    fn other(self) -> Self {
        match self {
            Self::Node => Self::Peer,
            Self::Peer => Self::Node,
        }
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    /// Its addresses of both families, of the networks for documentation (RFC 5737, RFC 3849).
    node: (Ipv4Addr, Ipv6Addr),
    peer: SocketAddr,
    has_own_address: bool,
    /// Sequence numbers of the next bytes.
    node_sequence: u32,
    peer_sequence: u32,
}

impl Stream {
    /// The stream of a peer of a node. `number` tells it apart from others between the same addresses. A peer whose address is none of IP
    /// gets one of the network for documentation.
    pub(super) fn new(node: u8, number: u32, address: &str, peer_id: Option<i64>) -> Self {
        let own = address.parse().ok();
        let peer = own.unwrap_or_else(|| {
            let id = peer_id.unwrap_or(-1).cast_unsigned();
            let [a, b, c, d] = [48, 32, 16, 0].map(|shift| u16::try_from(id >> shift & 0xffff).unwrap_or(0));
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(PORT);
            SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, a, b, c, d).into(), port)
        });
        // Far apart, so that a stream is no continuation of another one.
        let start = number.wrapping_mul(0x9e37_79b9);
        let node = (Ipv4Addr::new(192, 0, 2, node), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, node.into()));
        Self {
            node,
            peer,
            has_own_address: own.is_some(),
            node_sequence: start,
            peer_sequence: start.wrapping_add(1 << 31),
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the address of the peer is the one that the node says.
    pub(super) fn has_own_address(&self) -> bool {
        self.has_own_address
    }

    /// The packets that open the connection.
    pub(super) fn handshake(&mut self, first: Sender) -> io::Result<[Vec<u8>; 2]> {
        Ok([self.build(first, &[], true, false)?, self.build(first.other(), &[], true, true)?])
    }

    /// The next packet of a sender.
    pub(super) fn packet(&mut self, sender: Sender, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.build(sender, payload, false, true)
    }

    /// Leaves bytes out that a sender sent.
    pub(super) fn skip(&mut self, sender: Sender, bytes: u64) {
        let bytes = u32::try_from(bytes.min(MAX_SKIP)).unwrap_or(0);
        let next = self.next_mut(sender);
        *next = next.wrapping_add(bytes);
    }

    fn next_mut(&mut self, sender: Sender) -> &mut u32 {
        match sender {
            Sender::Node => &mut self.node_sequence,
            Sender::Peer => &mut self.peer_sequence,
        }
    }

    fn build(&mut self, sender: Sender, payload: &[u8], is_syn: bool, is_ack: bool) -> io::Result<Vec<u8>> {
        let (node, peer) = match self.peer.ip() {
            IpAddr::V4(peer) => (IpAddr::V4(self.node.0), IpAddr::V4(peer)),
            IpAddr::V6(peer) => (IpAddr::V6(self.node.1), IpAddr::V6(peer)),
        };
        let (node, peer) = ((node, PORT), (peer, self.peer.port()));
        let (source, destination) = match sender {
            Sender::Node => (node, peer),
            Sender::Peer => (peer, node),
        };
        let acknowledged = *self.next_mut(sender.other());
        let sequence = *self.next_mut(sender);
        let ip = match (source.0, destination.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketBuilder::ipv4(source.octets(), destination.octets(), HOPS)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                PacketBuilder::ipv6(source.octets(), destination.octets(), HOPS)
            }
            _ => return Err(io::Error::other("addresses of two families")),
        };
        let mut tcp = ip.tcp(source.1, destination.1, sequence, WINDOW);
        if is_syn {
            tcp = tcp.syn();
        }
        if is_ack {
            tcp = tcp.ack(acknowledged);
        }
        if !payload.is_empty() {
            tcp = tcp.psh();
        }
        let mut packet = Vec::with_capacity(tcp.size(payload.len()));
        tcp.write(&mut packet, payload).map_err(io::Error::other)?;
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let next = self.next_mut(sender);
        *next = sequence.wrapping_add(length).wrapping_add(u32::from(is_syn));
        Ok(packet)
    }
}
