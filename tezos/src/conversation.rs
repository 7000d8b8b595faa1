//! One connection, both directions: recognition, handshake, keys, and what comes out.
//!
//! Pieces go in as they were captured, cut anywhere and with holes; [`Output`]s come out in order. A direction's connection message is
//! chunk 0; once both are there and the keyring gives the identity of the sent one, the rest is opened.
mod handshake;

use crate::{
    account::Account,
    assembly::CONNECTION,
    framer::PREFIX_BYTES,
    half::{Context, Half, News, Place},
    message::{ConnectionMessage, DecodeError},
    output::{ChunkState, Direction, Identified, Keyring, Limits, Output, Piece, Protocol, Role, State},
    recognise::other_protocol,
};

/// What can help where a session cannot be read.
const NEW_SESSION: &str = "start Chainscope before the node, restart the node, or make it connect anew: \
     DELETE /network/connections/<peer_id> on its RPC";
/// See [`NEW_SESSION`].
const RIGHT_IDENTITY: &str =
    "give Chainscope the identity.json that the node runs with; sessions that begin after that are read";

/// Pieces of a stream without a beginning that are looked at for another protocol.
const LATE_LOOKS: u8 = 8;
/// Pieces that are kept apart while keys are missing; more are joined.
const MAX_HELD: usize = 64;

/// How far the conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No connection message yet.
    Undecided,
    /// One, or both and no keys yet.
    Handshake,
    /// A saved session that has no keys yet.
    Resumed,
    /// Keys are there.
    Session,
    /// There will be no keys.
    Closed,
    /// There was no beginning, so that it may yet turn out to be another protocol.
    Late(u8),
    NotTezos,
}

/// Position of a direction in a saved session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedDirection {
    /// Chunks up to the last whole one, the connection message included.
    pub chunks: u64,
    /// Offset of its end in the stream.
    pub stream_offset: u64,
}

/// All that it takes to go on with a session later: nothing secret, keys are derived again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The local node's.
    pub role: Role,
    /// Whole chunk, length included.
    pub sent_message: Vec<u8>,
    /// Whole chunk, length included.
    pub received_message: Vec<u8>,
    /// Where the sent direction stood.
    pub sent: SavedDirection,
    /// Where the received direction stood.
    pub received: SavedDirection,
}

/// Are a resumed conversation's offsets those of the saved one?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Yes: the length of the hole between is known.
    Continued,
    /// No, they begin anywhere.
    Unknown,
}

/// See the module.
#[derive(Debug)]
pub struct Conversation {
    stage: Stage,
    /// As told, until a chunk opened.
    role: Option<Role>,
    protocol: Protocol,
    start: Option<(u64, u64)>,
    limits: Limits,
    sent: Half,
    received: Half,
    /// Whole connection chunks.
    sent_message: Vec<u8>,
    received_message: Vec<u8>,
    identified: Option<Identified>,
    /// A chunk was opened.
    opened: bool,
    /// The first chunk did not open, and it was said.
    failed: bool,
}

impl Conversation {
    /// A connection from its beginning. The role is that of the local node, if it is known; else both are tried.
    pub fn new(role: Option<Role>, limits: Limits) -> Self {
        Self {
            stage: Stage::Undecided,
            role,
            protocol: Protocol::Undecided,
            start: None,
            sent: Half::new(Direction::Sent, &limits),
            received: Half::new(Direction::Received, &limits),
            limits,
            sent_message: Vec::new(),
            received_message: Vec::new(),
            identified: None,
            opened: false,
            failed: false,
        }
    }

    /// Says at which offsets capture began, so that a hole at the beginning can be told from a late start.
    #[must_use]
    pub fn with_start(mut self, sent_offset: u64, received_offset: u64) -> Self {
        self.start = Some((sent_offset, received_offset));
        self
    }

    /// Goes on with a saved session. Keys are asked for when the first piece comes.
    pub fn resume(saved: &Saved, offsets: Offsets, limits: Limits) -> Result<Self, DecodeError> {
        let mut conversation = Self::new(Some(saved.role), limits);
        ConnectionMessage::from_plain(content(&saved.sent_message))?;
        ConnectionMessage::from_plain(content(&saved.received_message))?;
        conversation.stage = Stage::Resumed;
        conversation.sent_message.clone_from(&saved.sent_message);
        conversation.received_message.clone_from(&saved.received_message);
        let known = offsets == Offsets::Continued;
        for (half, at) in [(&mut conversation.sent, saved.sent), (&mut conversation.received, saved.received)] {
            half.next = at.chunks.max(CONNECTION + 1);
            half.boundary = (half.next, at.stream_offset);
            half.expected = known.then_some(at.stream_offset);
            half.place = Place::Waiting(Vec::new());
            // The last chunk may have left a message unfinished.
            half.assembly.lose_step();
        }
        Ok(conversation)
    }

    /// What a journal keeps, once chunks are opened.
    pub fn saved(&self) -> Option<Saved> {
        if self.stage != Stage::Session || !self.opened {
            return None;
        }
        let at = |half: &Half| SavedDirection { chunks: half.boundary.0, stream_offset: half.boundary.1 };
        Some(Saved {
            role: self.role?,
            sent_message: self.sent_message.clone(),
            received_message: self.received_message.clone(),
            sent: at(&self.sent),
            received: at(&self.received),
        })
    }

    /// Takes a piece of a stream.
    pub fn push(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        let expected = self.half(piece.direction).expected;
        let (bytes, offset) = self.trim(&piece, expected);
        let missing = piece.covers.saturating_sub(piece.bytes.len() as u64);
        let end = piece.offset.saturating_add(piece.covers.max(piece.bytes.len() as u64));
        self.half(piece.direction).account.captured += bytes.len() as u64;
        match expected {
            Some(expected) => {
                let hole = offset.saturating_sub(expected);
                self.lose(piece.direction, hole, out);
            }
            None => self.first(&piece, keys, out),
        }
        self.half(piece.direction).expected = Some(expected.map_or(offset, |expected| expected.max(offset)));
        if !bytes.is_empty() {
            self.take(Piece { offset, bytes, ..piece }, keys, out);
        }
        // What an earlier piece covered already is not missing.
        let already = expected.map_or(0, |expected| expected.saturating_sub(offset + bytes.len() as u64));
        self.lose(piece.direction, missing.saturating_sub(already), out);
        self.half(piece.direction).expected = Some(expected.map_or(end, |expected| expected.max(end)));
        debug_assert!(self.account().holds(), "{:?}", self.account());
    }

    /// The connection ended, at these offsets if they are known. Holes that are still open are reported.
    pub fn finish(&mut self, sent_offset: Option<u64>, received_offset: Option<u64>, out: &mut dyn FnMut(Output)) {
        for (direction, end) in [(Direction::Sent, sent_offset), (Direction::Received, received_offset)] {
            let half = self.half(direction);
            if let (Some(end), Some(expected)) = (end, half.expected)
                && end > expected
            {
                half.expected = Some(end);
                self.lose(direction, end - expected, out);
            }
            self.with_half(direction, 0, out, |half, context| half.finish(context));
        }
        debug_assert!(self.account().holds(), "{:?}", self.account());
    }

    /// Totals of both directions.
    pub fn account(&self) -> Account {
        self.sent.account() + self.received.account()
    }

    /// Totals of one direction.
    pub fn account_of(&self, direction: Direction) -> Account {
        match direction {
            Direction::Sent => self.sent.account(),
            Direction::Received => self.received.account(),
        }
    }

    /// What the connection turned out to be.
    pub fn kind(&self) -> Protocol {
        self.protocol
    }

    /// The local node's role: as it was told, then as it was found.
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// What the connection messages said, once both are there.
    pub fn identified(&self) -> Option<&Identified> {
        self.identified.as_ref()
    }

    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        }
    }

    /// The part of a piece that is new, and its offset. What came before is skipped.
    fn trim<'a>(&mut self, piece: &Piece<'a>, expected: Option<u64>) -> (&'a [u8], u64) {
        let old = expected.map_or(0, |expected| expected.saturating_sub(piece.offset));
        let old = usize::try_from(old).unwrap_or(usize::MAX).min(piece.bytes.len());
        let half = self.half(piece.direction);
        half.account.captured += old as u64;
        half.skip(old as u64);
        (piece.bytes.get(old..).unwrap_or_default(), piece.offset + old as u64)
    }

    /// A direction's first piece: does the stream begin with it?
    fn first(&mut self, piece: &Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        match self.stage {
            Stage::Undecided | Stage::Handshake if piece.offset > 0 => {
                let began = self.start.map(|(sent, received)| match piece.direction {
                    Direction::Sent => sent,
                    Direction::Received => received,
                });
                if began == Some(0) {
                    self.lose(piece.direction, piece.offset, out);
                } else {
                    self.started_before(piece, out);
                }
            }
            Stage::Resumed => {
                self.derive(keys, piece.time_ns, out);
                if self.stage == Stage::Session {
                    self.half(piece.direction).lose_place();
                }
            }
            Stage::Session => self.half(piece.direction).lose_place(),
            _ => {}
        }
    }

    fn started_before(&mut self, piece: &Piece<'_>, out: &mut dyn FnMut(Output)) {
        let recognised = self.stage == Stage::Handshake;
        if !recognised && let Some(protocol) = other_protocol(piece.bytes) {
            return self.not_tezos(protocol, out);
        }
        self.half(piece.direction).give_up();
        self.close_without_beginning("started before capture".to_owned(), out);
    }

    /// A connection message is not there. If none was seen at all, it may yet turn out to be another protocol.
    fn close_without_beginning(&mut self, reason: String, out: &mut dyn FnMut(Output)) {
        let late = self.stage == Stage::Undecided;
        if late {
            self.sent.give_up();
            self.received.give_up();
        }
        self.close(State::Undecryptable, reason, NEW_SESSION, 0, out);
        if late {
            self.stage = Stage::Late(LATE_LOOKS);
        }
    }

    /// So many bytes of a direction are missing.
    fn lose(&mut self, direction: Direction, length: u64, out: &mut dyn FnMut(Output)) {
        if length == 0 {
            return;
        }
        let other_protocol = self.stage == Stage::NotTezos;
        let half = self.half(direction);
        half.account.lost += length;
        match &half.place {
            _ if other_protocol => {}
            Place::Opening { .. } => {
                half.give_up();
                half.hole(length);
                let word = direction.word();
                self.close_without_beginning(format!("bytes of the {word} connection message were lost"), out);
            }
            // The hole shows in the offsets of what is held.
            Place::Waiting(_) => {}
            _ => half.hole(length),
        }
    }

    /// The bytes of a piece, the next ones of their stream.
    fn take(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        let count = piece.bytes.len() as u64;
        match self.stage {
            Stage::NotTezos => self.half(piece.direction).account.not_protocol += count,
            Stage::Late(looks) => {
                if let Some(protocol) = other_protocol(piece.bytes) {
                    self.half(piece.direction).account.not_protocol += count;
                    return self.not_tezos(protocol, out);
                }
                self.half(piece.direction).skip(count);
                self.stage = looks.checked_sub(1).map_or(Stage::Closed, Stage::Late);
            }
            Stage::Resumed => {
                self.derive(keys, piece.time_ns, out);
                self.take(piece, keys, out);
            }
            Stage::Session | Stage::Closed => self.feed(piece, out),
            Stage::Undecided | Stage::Handshake => self.open(piece, keys, out),
        }
    }

    fn feed(&mut self, piece: Piece<'_>, out: &mut dyn FnMut(Output)) {
        let end = piece.offset + piece.bytes.len() as u64;
        self.with_half(piece.direction, piece.time_ns, out, |half, context| {
            half.feed(piece.bytes, end, piece.call_start, context);
        });
    }

    /// Lets a direction do something, and draws the conclusions.
    fn with_half(
        &mut self,
        direction: Direction,
        time_ns: u64,
        out: &mut dyn FnMut(Output),
        act: impl FnOnce(&mut Half, &mut Context<'_>),
    ) {
        let Self { sent, received, limits, role, opened, protocol, .. } = self;
        let (half, other) = match direction {
            Direction::Sent => (sent, received),
            Direction::Received => (received, sent),
        };
        let mut settled = None;
        let mut context = Context {
            limits,
            time_ns,
            news: News::default(),
            out: &mut |output| {
                // The state is said before the first chunk that it is true of.
                if let Output::Chunk(chunk) = &output
                    && chunk.state == ChunkState::Opened
                    && !*opened
                {
                    *opened = true;
                    out(decoding(*protocol));
                }
                out(output);
            },
        };
        act(half, &mut context);
        let News { opened_as, first_failed } = context.news;
        if let Some(found) = opened_as {
            other.settle(found);
            if *role != Some(found) {
                *role = Some(found);
                settled = Some(found);
            }
        }
        if let (Some(role), Some(identified)) = (settled, &mut self.identified) {
            identified.role = Some(role);
            out(Output::Identified(identified.clone()));
        }
        if first_failed && !self.opened && !self.failed {
            self.failed = true;
            out(Output::State {
                state: State::Undecryptable,
                reason: "the first chunk does not open with the keys of this session".to_owned(),
                remedy: NEW_SESSION.to_owned(),
            });
        }
    }
}

/// A chunk without its length.
fn content(chunk: &[u8]) -> &[u8] {
    chunk.get(PREFIX_BYTES..).unwrap_or_default()
}

fn decoding(protocol: Protocol) -> Output {
    let (state, reason) = match protocol {
        Protocol::Dal => (State::Raw, "messages of DAL nodes are not decoded"),
        _ => (State::Decoding, ""),
    };
    Output::State { state, reason: reason.to_owned(), remedy: String::new() }
}
