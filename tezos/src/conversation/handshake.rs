//! The handshake of a conversation: both connection messages, then the keys, or the decision that there are none.
use std::{sync::Arc, task::Poll};

use super::{Conversation, MAX_MID_STREAM_CHECKS, REMEDY_IDENTITY, REMEDY_NEW_SESSION, Stage, chunk_content};
use crate::{
    cipher::{Cipher, SharedKey},
    half_stream::{BufferedPiece, DirectionState, HalfStream},
    hash::peer_id,
    identity::Identity,
    input::{Direction, Keyring, Piece, Role},
    message::ConnectionMessage,
    output::{Identified, Output, Protocol, State},
    pow,
    recognise::{StreamStart, classify, other_protocol},
};

/// Maximum number of buffered pieces of a direction; later pieces are appended to the last one.
const MAX_BUFFERED_PIECES: usize = 64;

impl Conversation {
    /// Stages `Undecided` and `Handshake`.
    pub(super) fn push_handshake(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        match &self.half_mut(piece.direction).state {
            DirectionState::AwaitingConnectionMessage { .. } => self.push_connection_bytes(piece, out),
            _ => self.buffer(piece),
        }
        self.decide(keys, piece.time_ns, out);
    }

    /// Adds bytes to the connection message of a direction; what follows the message is buffered.
    fn push_connection_bytes(&mut self, piece: Piece<'_>, out: &mut dyn FnMut(Output)) {
        let max_bytes = self.limits.max_connection_message_bytes;
        let half = self.half_mut(piece.direction);
        let DirectionState::AwaitingConnectionMessage { bytes, start } = &mut half.state else { return };
        bytes.extend_from_slice(piece.bytes);
        if *start != StreamStart::Incomplete {
            return;
        }
        *start = classify(bytes, max_bytes);
        if let StreamStart::ConnectionMessage(length) = *start {
            let rest = bytes.split_off(length);
            let message = std::mem::take(bytes);
            half.state = DirectionState::AwaitingKeys(Vec::new());
            self.set_connection_message(piece.direction, message, piece.time_ns, out);
            if !rest.is_empty() {
                let offset = piece.captured_end() - rest.len() as u64;
                self.buffer(Piece { offset, bytes: &rest, call_start: false, ..piece });
            }
        }
    }

    /// Buffers bytes until the keys are derived.
    pub(super) fn buffer(&mut self, piece: Piece<'_>) {
        let DirectionState::AwaitingKeys(pieces) = &mut self.half_mut(piece.direction).state else { return };
        // A call boundary is kept, because a resynchronisation starts with it.
        let is_separate = piece.call_start && pieces.len() < MAX_BUFFERED_PIECES;
        if let Some(last) = pieces.last_mut()
            && !is_separate
            && last.offset + last.bytes.len() as u64 == piece.offset
        {
            last.bytes.extend_from_slice(piece.bytes);
            last.time_ns = piece.time_ns;
            return;
        }
        pieces.push(BufferedPiece {
            offset: piece.offset,
            bytes: piece.bytes.to_vec(),
            call_start: piece.call_start,
            time_ns: piece.time_ns,
        });
    }

    /// Handles the whole connection message of a direction.
    fn set_connection_message(
        &mut self,
        direction: Direction,
        message: Vec<u8>,
        time_ns: u64,
        out: &mut dyn FnMut(Output),
    ) {
        if self.stage == Stage::Undecided {
            self.stage = Stage::Handshake;
            self.protocol = Protocol::Tezos;
            out(Output::Recognised);
            out(Output::State { state: State::Handshake, reason: String::new(), remedy: String::new() });
        }
        self.with_half(direction, time_ns, out, |half, context| half.connection_message(&message, context));
        self.check_proof_of_work(direction, &message, out);
        match direction {
            Direction::Sent => self.sent_message = message,
            Direction::Received => self.received_message = message,
        }
    }

    fn check_proof_of_work(&self, direction: Direction, message: &[u8], out: &mut dyn FnMut(Output)) {
        let Ok(message) = ConnectionMessage::from_plain(chunk_content(message)) else { return };
        let target = pow::Target::from_difficulty(self.limits.proof_of_work_bits);
        if !pow::check(message.public_key, message.proof_of_work_stamp, &target) {
            let (label, bits) = (direction.label(), self.limits.proof_of_work_bits);
            out(Output::Comment(format!("{label} connection message bad proof-of-work, target: {bits}")));
        }
    }

    /// Decides what the connection is, from the beginnings of both directions.
    fn decide(&mut self, keys: &mut dyn Keyring, time_ns: u64, out: &mut dyn FnMut(Output)) {
        use StreamStart::{ConnectionMessage, Incomplete, Other, TooShort};
        let start = |half: &HalfStream| match &half.state {
            DirectionState::AwaitingConnectionMessage { start, .. } => *start,
            _ => ConnectionMessage(0),
        };
        match (start(&self.sent), start(&self.received)) {
            (ConnectionMessage(_), ConnectionMessage(_)) => self.derive_keys(keys, time_ns, out),
            (ConnectionMessage(_), start @ (TooShort(_) | Other)) => {
                self.close_one_sided(Direction::Received, start, time_ns, out);
            }
            (start @ (TooShort(_) | Other), ConnectionMessage(_)) => {
                self.close_one_sided(Direction::Sent, start, time_ns, out);
            }
            (TooShort(_) | Other, _) => {
                self.set_not_tezos("the sent bytes do not begin with a connection message", out);
            }
            // A remote peer may send anything; only what the local node sends proves its protocol.
            (Incomplete, TooShort(_) | Other) => self.check_received_protocol(out),
            (ConnectionMessage(_), Incomplete) => self.limit_one_sided(Direction::Sent, time_ns, out),
            (Incomplete, ConnectionMessage(_)) => self.limit_one_sided(Direction::Received, time_ns, out),
            (Incomplete, Incomplete) => {}
        }
    }

    /// The received bytes do not begin with a connection message, and the local node has not sent enough bytes to
    /// classify.
    fn check_received_protocol(&mut self, out: &mut dyn FnMut(Output)) {
        let DirectionState::AwaitingConnectionMessage { bytes, .. } = &self.received.state else { return };
        if let Some(protocol) = other_protocol(bytes) {
            self.set_not_tezos(protocol, out);
        } else if bytes.len() > self.limits.max_undecided_bytes {
            self.set_not_tezos("the received bytes do not begin with a connection message", out);
        }
    }

    /// Closes the conversation if a direction has buffered its limit while the other has no connection message.
    fn limit_one_sided(&mut self, direction: Direction, time_ns: u64, out: &mut dyn FnMut(Output)) {
        if self.direction_stats(direction).pending > self.limits.max_buffered_bytes as u64 {
            self.close_one_sided(direction.other(), StreamStart::Other, time_ns, out);
        }
    }

    /// One side sent a connection message, the other (`direction`) sent something else.
    fn close_one_sided(&mut self, direction: Direction, start: StreamStart, time_ns: u64, out: &mut dyn FnMut(Output)) {
        let label = direction.label();
        let comment = match start {
            StreamStart::TooShort(length) => format!("{label} connection message is too short: {length} bytes"),
            _ => format!("{label} data does not look like a connection message"),
        };
        out(Output::Comment(comment.clone()));
        self.close(State::Raw, comment, "", time_ns, out);
    }

    /// The connection uses another protocol.
    pub(super) fn set_not_tezos(&mut self, reason: &str, out: &mut dyn FnMut(Output)) {
        self.stage = Stage::NotTezos;
        self.protocol = Protocol::NotTezos;
        for half in [&mut self.sent, &mut self.received] {
            half.stats.not_protocol += half.stats().pending;
            half.state = DirectionState::Lost;
        }
        out(Output::NotTezos { reason: reason.to_owned() });
    }

    /// A connection message was not captured. If none was, the connection may still turn out to use another protocol.
    pub(super) fn close_without_handshake(&mut self, reason: String, out: &mut dyn FnMut(Output)) {
        let is_undecided = self.stage == Stage::Undecided;
        if is_undecided {
            self.sent.give_up();
            self.received.give_up();
        }
        self.close(State::Undecryptable, reason, REMEDY_NEW_SESSION, 0, out);
        if is_undecided {
            self.stage = Stage::MidStream(MAX_MID_STREAM_CHECKS);
        }
    }

    /// There are no keys: from now on chunks are recorded undecrypted.
    fn close(&mut self, state: State, reason: String, remedy: &str, time_ns: u64, out: &mut dyn FnMut(Output)) {
        self.stage = Stage::Closed;
        out(Output::State { state, reason, remedy: remedy.to_owned() });
        self.replay_buffered(time_ns, out);
    }

    /// Derives the keys from both connection messages and the local node's identity, then processes the buffered bytes.
    pub(super) fn derive_keys(&mut self, keys: &mut dyn Keyring, time_ns: u64, out: &mut dyn FnMut(Output)) {
        if self.awaited_identity.is_some() {
            return self.limit_awaiting_identity(out);
        }
        let (sent_message, received_message) = (self.sent_message.clone(), self.received_message.clone());
        let messages = ConnectionMessage::from_plain(chunk_content(&sent_message))
            .and_then(|sent| Ok((sent, ConnectionMessage::from_plain(chunk_content(&received_message))?)));
        // Both were decoded before; this guards against a conversation without them.
        let Ok((sent, received)) = messages else {
            self.stage = Stage::Closed;
            return;
        };
        self.identify(&sent, &received, out);
        match keys.identity(sent.public_key) {
            Poll::Ready(found) => self.use_identity(found, received.public_key, time_ns, out),
            Poll::Pending => self.awaited_identity = Some(*sent.public_key),
        }
    }

    /// Public key of the identity that this conversation waits for.
    pub fn awaited_identity(&self) -> Option<[u8; 32]> {
        self.awaited_identity
    }

    /// Gives the conversation the identity that it waits for, or the reason why there is none.
    pub fn set_identity(&mut self, found: Result<Arc<Identity>, String>, out: &mut dyn FnMut(Output)) {
        let remote = self.identified.as_ref().map(|identified| identified.public_key);
        if let (Some(_), Some(remote)) = (self.awaited_identity.take(), remote) {
            self.use_identity(found, &remote, 0, out);
            debug_assert!(self.stats().is_balanced(), "{:?}", self.stats());
        }
    }

    /// Closes the conversation if a direction has buffered its limit while the identity is not known.
    fn limit_awaiting_identity(&mut self, out: &mut dyn FnMut(Output)) {
        let limit = self.limits.max_awaiting_identity_bytes;
        let buffered = self.sent.stats().pending.max(self.received.stats().pending);
        if buffered > limit as u64 {
            self.set_identity(Err(format!("not read before {limit} bytes had arrived")), out);
        }
    }

    fn use_identity(
        &mut self,
        found: Result<Arc<Identity>, String>,
        remote_public_key: &[u8; 32],
        time_ns: u64,
        out: &mut dyn FnMut(Output),
    ) {
        match found {
            Ok(identity) => {
                self.add_ciphers(&identity, remote_public_key);
                self.stage = Stage::Session;
                self.replay_buffered(time_ns, out);
            }
            Err(reason) => {
                out(Output::Comment("outgoing connection message public key does not match with identity".to_owned()));
                let reason = format!("identity: {reason}");
                self.close(State::Undecryptable, reason, REMEDY_IDENTITY, time_ns, out);
            }
        }
    }

    /// Reports the content of both connection messages.
    fn identify(
        &mut self,
        sent: &ConnectionMessage<'_>,
        received: &ConnectionMessage<'_>,
        out: &mut dyn FnMut(Output),
    ) {
        let is_dal = sent.is_dal() || received.is_dal();
        self.protocol = if is_dal { Protocol::Dal } else { Protocol::Tezos };
        self.sent.reassembler.is_dal = is_dal;
        self.received.reassembler.is_dal = is_dal;
        let identified = Identified {
            peer_id: peer_id(received.public_key),
            chain_name: received.version.chain_name.to_string(),
            role: self.role,
            public_key: *received.public_key,
            protocol: self.protocol,
        };
        self.identified = Some(identified.clone());
        out(Output::Identified(identified));
        if is_dal {
            out(Output::Comment("connection of a DAL node: its messages are recorded, but not decoded".to_owned()));
        }
    }

    /// Gives both directions their ciphers: of the saved role for a resumed session, else of both roles with the given
    /// one first, because a wrong role would make the whole session undecryptable.
    fn add_ciphers(&mut self, identity: &Identity, remote_public_key: &[u8; 32]) {
        let key = SharedKey::new(identity, remote_public_key);
        let first = self.role.unwrap_or(Role::Initiator);
        for role in [first, first.other()] {
            let (sent, received) = Cipher::pair(&key, role, &self.sent_message, &self.received_message);
            self.sent.ciphers.push((role, sent));
            self.received.ciphers.push((role, received));
        }
        if self.stage == Stage::Resumed {
            self.sent.set_role(first);
            self.received.set_role(first);
        }
    }

    /// Processes the bytes that were buffered until the keys were derived or the conversation was closed.
    fn replay_buffered(&mut self, time_ns: u64, out: &mut dyn FnMut(Output)) {
        for direction in [Direction::Sent, Direction::Received] {
            let half = self.half_mut(direction);
            let in_sync = half.in_sync();
            let pieces = match std::mem::replace(&mut half.state, in_sync) {
                DirectionState::AwaitingKeys(pieces) => pieces,
                DirectionState::AwaitingConnectionMessage { bytes, .. } => {
                    vec![BufferedPiece { offset: 0, bytes, call_start: true, time_ns }]
                }
                other => {
                    half.state = other;
                    continue;
                }
            };
            if std::mem::take(&mut half.starts_unsynced) {
                half.lose_sync();
            }
            let mut position = half.boundary.1;
            for BufferedPiece { offset, bytes, call_start, time_ns } in pieces {
                self.half_mut(direction).lose_bytes(offset.saturating_sub(position));
                position = offset + bytes.len() as u64;
                self.feed(Piece { direction, offset, bytes: &bytes, covers: 0, call_start, time_ns }, out);
            }
            // Bytes missing between the buffered pieces and the current one.
            let half = self.half_mut(direction);
            half.lose_bytes(half.next_offset.map_or(0, |next_offset| next_offset.saturating_sub(position)));
        }
    }
}
