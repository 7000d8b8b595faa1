//! The session journal: the state with which live sessions are resumed after a restart of the agent.
//!
//! Each second the sessions whose keys are derived are written to disk: the socket, both clear connection messages, the
//! role and the position of each direction (format: `journal.proto`). After a restart a socket that is captured from its
//! middle is matched with the journal; on a match its conversation is resumed under the same connection key. Keys are
//! never written: they are derived again from the identity.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use chainscope_ebpf::network::Opened;
use chainscope_proto::v1::{Journal, JournalDirection, JournalSession};
use chainscope_tezos::{Conversation, Limits, Offsets, Role, SavedDirection, SavedSession};
use prost::Message as _;

use crate::network::interpreter::records::ip_bytes;

/// File with the kernel's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Most sessions kept; with about 400 bytes each the file stays well below 64 MiB.
const MAX_SESSIONS: usize = 1 << 16;

/// The id of this boot.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

/// What identifies a socket across a restart of the agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) netns: u32,
    pub(crate) inode: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// The entry of a session.
pub(crate) fn session(socket: &Socket, node: &str, connection: u64, saved: &SavedSession) -> JournalSession {
    let direction = |direction: &SavedDirection| JournalDirection {
        chunks: direction.chunks,
        stream_offset: direction.stream_offset,
    };
    JournalSession {
        netns_inode: socket.netns,
        socket_inode: socket.inode,
        local_ip: ip_bytes(socket.local.ip()),
        local_port: socket.local.port().into(),
        remote_ip: ip_bytes(socket.remote.ip()),
        remote_port: socket.remote.port().into(),
        node: node.to_owned(),
        connection,
        local_is_initiator: saved.role == Role::Initiator,
        sent_connection_message: saved.sent_message.clone(),
        received_connection_message: saved.received_message.clone(),
        sent: Some(direction(&saved.sent)),
        received: Some(direction(&saved.received)),
    }
}

/// The conversation of an entry; none if the entry is damaged.
pub(crate) fn resume(entry: &JournalSession) -> Option<Conversation> {
    let direction = |direction: &Option<JournalDirection>| {
        direction
            .as_ref()
            .map(|direction| SavedDirection { chunks: direction.chunks, stream_offset: direction.stream_offset })
    };
    let saved = SavedSession {
        role: if entry.local_is_initiator { Role::Initiator } else { Role::Responder },
        sent_message: entry.sent_connection_message.clone(),
        received_message: entry.received_connection_message.clone(),
        sent: direction(&entry.sent)?,
        received: direction(&entry.received)?,
    };
    Conversation::resume(&saved, Offsets::Continued, Limits::default()).ok()
}

/// Reads a journal; empty if it is damaged or of an earlier boot.
pub(crate) fn read(bytes: &[u8], boot_id: &str) -> Vec<JournalSession> {
    match Journal::decode(bytes) {
        Ok(journal) if journal.boot_id == boot_id => journal.sessions,
        Ok(_) => Vec::new(),
        Err(cause) => {
            tracing::warn!(%cause, "the session journal is damaged: live sessions cannot be gone on with");
            Vec::new()
        }
    }
}

/// Puts a journal together from live sessions and those that still wait for their sockets, in a fixed order so that two
/// journals of the same state are equal.
pub(crate) fn assemble(live: impl Iterator<Item = JournalSession>, waiting: &Waiting) -> Journal {
    let mut sessions: Vec<JournalSession> = live.collect();
    sessions.extend(waiting.sessions.iter().cloned());
    sessions.sort_by_key(|session| (session.connection, session.socket_inode));
    if sessions.len() > MAX_SESSIONS {
        // The newest are the most likely to be still open.
        sessions.drain(..sessions.len() - MAX_SESSIONS);
    }
    Journal { boot_id: waiting.boot_id.clone(), sessions }
}

/// Sessions of the last run whose sockets have not been seen yet.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    boot_id: String,
    sessions: Vec<JournalSession>,
}

impl Waiting {
    pub(crate) fn new(boot_id: String, sessions: Vec<JournalSession>) -> Self {
        Self { boot_id, sessions }
    }

    /// Connection keys that are taken in a node.
    pub(crate) fn keys_of(&self, node: &str) -> Vec<u64> {
        self.sessions.iter().filter(|session| session.node == node).map(|session| session.connection).collect()
    }

    /// Takes out the session of a socket that carries data from its middle.
    pub(crate) fn take(&mut self, node: &str, opened: &Opened) -> Option<JournalSession> {
        let place = self.sessions.iter().position(|session| session.node == node && is_of(session, opened))?;
        Some(self.sessions.swap_remove(place))
    }

    /// Namespaces that sessions wait in.
    pub(crate) fn namespaces(&self) -> Vec<u32> {
        let namespaces: BTreeSet<u32> = self.sessions.iter().map(|session| session.netns_inode).collect();
        namespaces.into_iter().collect()
    }

    /// Takes out the sessions of a namespace whose sockets are not among those that it has.
    pub(crate) fn drop_vanished(&mut self, netns: u32, inodes: &HashSet<u64>) -> Vec<JournalSession> {
        let is_gone =
            |session: &mut JournalSession| session.netns_inode == netns && !inodes.contains(&session.socket_inode);
        self.sessions.extract_if(.., is_gone).collect()
    }
}

/// Whether a socket is the one of an entry: namespace, addresses and, where the probe knows it, inode. An inode may be
/// used again; then the addresses differ, or the stream is not as far as it was.
fn is_of(session: &JournalSession, opened: &Opened) -> bool {
    let reached = |direction: &Option<JournalDirection>, offset: u64| {
        direction.as_ref().is_some_and(|direction| direction.stream_offset <= offset)
    };
    session.netns_inode == opened.netns
        && (opened.inode == 0 || session.socket_inode == opened.inode)
        && is_address(&session.local_ip, session.local_port, opened.local)
        && is_address(&session.remote_ip, session.remote_port, opened.remote)
        && reached(&session.sent, opened.sent_offset)
        && reached(&session.received, opened.received_offset)
}

fn is_address(ip: &[u8], port: u32, address: SocketAddr) -> bool {
    u32::from(address.port()) == port
        && match address.ip() {
            IpAddr::V4(known) => ip == known.octets(),
            IpAddr::V6(known) => ip == known.octets(),
        }
}
