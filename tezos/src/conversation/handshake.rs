//! The beginning of a conversation: until keys are there, or it is clear that there will be none.
use super::{Conversation, MAX_HELD, RIGHT_IDENTITY, Stage, content};
use crate::{
    cipher::{Cipher, SharedKey},
    framer::Framer,
    half::{Half, Held, Place},
    hash::peer_id,
    message::ConnectionMessage,
    output::{Direction, Identified, Keyring, Output, Piece, Protocol, Role, State},
    pow,
    recognise::{Opening, opening, other_protocol},
};

impl Conversation {
    /// Bytes before the keys.
    pub(super) fn open(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        let limits = self.limits;
        let half = self.half(piece.direction);
        match &mut half.place {
            Place::Opening { bytes, looks: looks @ Opening::Undecided } => {
                bytes.extend_from_slice(piece.bytes);
                *looks = opening(bytes, limits.connection_message);
                if let Opening::Connection(length) = *looks {
                    let rest = bytes.split_off(length);
                    let message = std::mem::take(bytes);
                    half.place = Place::Waiting(Vec::new());
                    self.opened_with(piece.direction, message, piece.time_ns, out);
                    if !rest.is_empty() {
                        let offset = piece.offset + piece.bytes.len() as u64 - rest.len() as u64;
                        self.hold(Piece { offset, bytes: &rest, call_start: false, ..piece });
                    }
                }
            }
            Place::Opening { bytes, .. } => bytes.extend_from_slice(piece.bytes),
            _ => self.hold(piece),
        }
        self.resolve(keys, piece.time_ns, out);
    }

    /// Keeps bytes until the keys are there.
    pub(super) fn hold(&mut self, piece: Piece<'_>) {
        let Place::Waiting(held) = &mut self.half(piece.direction).place else { return };
        let apart = piece.call_start && held.len() < MAX_HELD;
        if let Some(last) = held.last_mut()
            && !apart
            && last.offset + last.bytes.len() as u64 == piece.offset
        {
            last.bytes.extend_from_slice(piece.bytes);
            last.time_ns = piece.time_ns;
            return;
        }
        held.push(Held {
            offset: piece.offset,
            bytes: piece.bytes.to_vec(),
            call_start: piece.call_start,
            time_ns: piece.time_ns,
        });
    }

    /// A direction's connection message is whole.
    pub(super) fn opened_with(
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
        self.with_half(direction, time_ns, out, |half, context| {
            half.connection_message(&message, context);
        });
        if let Ok(read) = ConnectionMessage::from_plain(content(&message)) {
            let target = pow::Target::from_difficulty(self.limits.proof_of_work);
            if !pow::check(read.public_key, read.proof_of_work_stamp, &target) {
                let (word, bits) = (direction.word(), self.limits.proof_of_work);
                out(Output::Comment(format!("{word} connection message bad proof-of-work, target: {bits}")));
            }
        }
        match direction {
            Direction::Sent => self.sent_message = message,
            Direction::Received => self.received_message = message,
        }
    }

    /// Looks whether it is decided by now what the connection is.
    pub(super) fn resolve(&mut self, keys: &mut dyn Keyring, time_ns: u64, out: &mut dyn FnMut(Output)) {
        let looks = |half: &Half| match &half.place {
            Place::Opening { looks, .. } => *looks,
            _ => Opening::Connection(0),
        };
        use Opening::{Connection, Other, Short, Undecided};
        match (looks(&self.sent), looks(&self.received)) {
            (Connection(_), Connection(_)) => self.derive(keys, time_ns, out),
            (Connection(_), bad @ (Short(_) | Other)) => self.garbage(Direction::Received, bad, time_ns, out),
            (bad @ (Short(_) | Other), Connection(_)) => self.garbage(Direction::Sent, bad, time_ns, out),
            (Short(_) | Other, _) => {
                self.not_tezos("the sent bytes do not begin with a connection message", out);
            }
            // A peer may send anything; what the local node sends tells what it speaks.
            (Undecided, Short(_) | Other) => {
                let Place::Opening { bytes, .. } = &self.received.place else { return };
                if let Some(protocol) = other_protocol(bytes) {
                    self.not_tezos(protocol, out);
                } else if bytes.len() > self.limits.undecided {
                    self.not_tezos("the received bytes do not begin with a connection message", out);
                }
            }
            (Connection(_), Undecided) => self.one_sided(Direction::Sent, time_ns, out),
            (Undecided, Connection(_)) => self.one_sided(Direction::Received, time_ns, out),
            (Undecided, Undecided) => {}
        }
    }

    /// A direction goes on and on, and the other has no connection message.
    pub(super) fn one_sided(&mut self, direction: Direction, time_ns: u64, out: &mut dyn FnMut(Output)) {
        if self.account_of(direction).pending <= self.limits.held as u64 {
            return;
        }
        let missing = match direction {
            Direction::Sent => Direction::Received,
            Direction::Received => Direction::Sent,
        };
        self.garbage(missing, Opening::Other, time_ns, out);
    }

    /// One side is a Tezos node, the other does not speak as one.
    pub(super) fn garbage(&mut self, direction: Direction, looks: Opening, time_ns: u64, out: &mut dyn FnMut(Output)) {
        let word = direction.word();
        let comment = match looks {
            Opening::Short(length) => format!("{word} connection message is too short: {length} bytes"),
            _ => format!("{word} data does not look like a connection message"),
        };
        out(Output::Comment(comment.clone()));
        self.close(State::Raw, comment, "", time_ns, out);
    }

    pub(super) fn not_tezos(&mut self, reason: &str, out: &mut dyn FnMut(Output)) {
        self.stage = Stage::NotTezos;
        self.protocol = Protocol::NotTezos;
        for half in [&mut self.sent, &mut self.received] {
            half.account.not_protocol += half.account().pending;
            half.place = Place::Deaf;
        }
        out(Output::NotTezos { reason: reason.to_owned() });
    }

    /// There will be no keys: chunks are recorded as they are.
    pub(super) fn close(
        &mut self,
        state: State,
        reason: String,
        remedy: &str,
        time_ns: u64,
        out: &mut dyn FnMut(Output),
    ) {
        self.stage = Stage::Closed;
        out(Output::State { state, reason, remedy: remedy.to_owned() });
        self.replay(time_ns, out);
    }

    /// Both connection messages are there: derives the keys.
    pub(super) fn derive(&mut self, keys: &mut dyn Keyring, time_ns: u64, out: &mut dyn FnMut(Output)) {
        let sent_message = std::mem::take(&mut self.sent_message);
        let received_message = std::mem::take(&mut self.received_message);
        let messages = ConnectionMessage::from_plain(content(&sent_message))
            .and_then(|sent| Ok((sent, ConnectionMessage::from_plain(content(&received_message))?)));
        // They were read before; without them there is nothing to derive.
        let Ok((sent, received)) = messages else {
            self.stage = Stage::Closed;
            return;
        };
        let dal = sent.is_dal() || received.is_dal();
        self.protocol = if dal { Protocol::Dal } else { Protocol::Tezos };
        self.sent.assembly.dal = dal;
        self.received.assembly.dal = dal;
        let identified = Identified {
            peer_id: peer_id(received.public_key),
            chain_name: received.version.chain_name.to_string(),
            role: self.role,
            public_key: *received.public_key,
            protocol: self.protocol,
        };
        self.identified = Some(identified.clone());
        out(Output::Identified(identified));
        if dal {
            out(Output::Comment("connection of a DAL node: its messages are recorded, but not decoded".to_owned()));
        }
        match keys.identity(sent.public_key) {
            Ok(identity) => {
                let key = SharedKey::new(&identity, received.public_key);
                // The role that was told comes first. The other is tried as well: a wrong one would cost the session.
                let first = self.role.unwrap_or(Role::Initiator);
                for role in [first, first.other()] {
                    let (sent, received) = Cipher::pair(&key, role, &sent_message, &received_message);
                    self.sent.ciphers.push((role, sent));
                    self.received.ciphers.push((role, received));
                }
                if self.stage == Stage::Resumed {
                    self.sent.settle(first);
                    self.received.settle(first);
                }
                self.sent_message = sent_message;
                self.received_message = received_message;
                self.stage = Stage::Session;
                self.replay(time_ns, out);
            }
            Err(reason) => {
                out(Output::Comment("outgoing connection message public key does not match with identity".to_owned()));
                let reason = format!("identity: {reason}");
                self.close(State::Undecryptable, reason, RIGHT_IDENTITY, time_ns, out);
            }
        }
    }

    /// Takes up what waited for the keys, or for the news that there are none.
    pub(super) fn replay(&mut self, time_ns: u64, out: &mut dyn FnMut(Output)) {
        for direction in [Direction::Sent, Direction::Received] {
            let half = self.half(direction);
            let place = std::mem::replace(&mut half.place, Place::Framed(Framer::default()));
            let held = match place {
                Place::Waiting(held) => held,
                Place::Opening { bytes, .. } => {
                    vec![Held { offset: 0, bytes, call_start: true, time_ns }]
                }
                other => {
                    half.place = other;
                    continue;
                }
            };
            let mut position = half.boundary.1;
            for Held { offset, bytes, call_start, time_ns } in held {
                let half = self.half(direction);
                half.hole(offset.saturating_sub(position));
                position = offset + bytes.len() as u64;
                self.feed(Piece { direction, offset, bytes: &bytes, covers: 0, call_start, time_ns }, out);
            }
            // What is missing between them and the piece at hand.
            let half = self.half(direction);
            half.hole(half.expected.map_or(0, |expected| expected.saturating_sub(position)));
        }
    }
}
