//! One connection, both directions: recognition, handshake, keys, and the output of both streams.
//!
//! Pieces arrive as they were captured, split anywhere and with holes; [`Output`]s leave in order.
//! [`Conversation::push`] aligns a piece with the bytes processed before (`align`) and passes the new bytes to the
//! function of the current stage:
//!
//! | stage | new bytes | leads to |
//! | --- | --- | --- |
//! | `Undecided` | `push_handshake`: the connection messages are chunk 0 of each direction | `Handshake`, `MidStream`, `NotTezos` |
//! | `Handshake` | `push_handshake`; with both connection messages the keys are derived | `Session`, `Closed`, `NotTezos` |
//! | `Resumed` | `push_resumed`: derives the keys of the saved session first | `Session`, `Closed` |
//! | `Session` | `feed`: chunks are decrypted | |
//! | `Closed` | `feed`: chunks are recorded undecrypted | |
//! | `MidStream` | `push_mid_stream`: another protocol is still looked for | `Closed`, `NotTezos` |
//! | `NotTezos` | counted | |
//!
//! The first piece of a direction (`start_direction`) and missing bytes (`lose`) are handled by stage in the same way.
mod align;
mod handshake;
mod saved;

use align::align;
pub use saved::{Offsets, SavedDirection, SavedSession};

use crate::{
    framer::PREFIX_BYTES,
    half_stream::{Context, DirectionOutcome, DirectionState, HalfStream},
    input::{Direction, Keyring, Piece, Role},
    limits::Limits,
    memory::MemoryBudget,
    output::{ChunkState, Identified, Output, Protocol, State},
    recognise::other_protocol,
    stats::StreamStats,
};

/// Remedy for a session whose handshake was not captured.
const REMEDY_NEW_SESSION: &str = "start Chainscope before the node, restart the node, or make it connect anew: \
     DELETE /network/connections/<peer_id> on its RPC";
/// Remedy for a session whose identity is not available.
const REMEDY_IDENTITY: &str =
    "give Chainscope the identity.json that the node runs with; sessions that begin after that are read";

/// Pieces of a stream without a captured beginning that are checked for another protocol.
const MAX_MID_STREAM_CHECKS: u8 = 8;

/// Progress of a conversation; the states are those of the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No connection message yet.
    Undecided,
    /// One connection message was captured.
    Handshake,
    /// A saved session whose keys are not derived yet.
    Resumed,
    /// The keys are derived.
    Session,
    /// There are no keys and there will be none.
    Closed,
    /// The beginning was not captured; this many more pieces are checked for another protocol.
    MidStream(u8),
    /// The connection uses another protocol.
    NotTezos,
}

/// A connection of a Tezos node, interpreted from captured bytes.
#[derive(Debug)]
pub struct Conversation {
    stage: Stage,
    /// Role of the local node: as given, until a decrypted chunk proves it.
    role: Option<Role>,
    protocol: Protocol,
    /// Stream offsets (sent, received) at which capture began, if known.
    start_offsets: Option<(u64, u64)>,
    limits: Limits,
    sent: HalfStream,
    received: HalfStream,
    /// Whole connection chunk sent by the local node, once captured.
    sent_message: Vec<u8>,
    /// Whole connection chunk received by the local node, once captured.
    received_message: Vec<u8>,
    identified: Option<Identified>,
    /// Public key of the identity that the keyring does not know yet. Until then bytes are buffered.
    awaited_identity: Option<[u8; 32]>,
    /// Whether a chunk was decrypted.
    opened: bool,
    /// Whether it was reported that the first chunk cannot be decrypted.
    failure_reported: bool,
}

impl Conversation {
    /// A connection from its beginning. `role` is the role of the local node, if known; otherwise both are tried.
    pub fn new(role: Option<Role>, limits: Limits) -> Self {
        Self {
            stage: Stage::Undecided,
            role,
            protocol: Protocol::Undecided,
            start_offsets: None,
            sent: HalfStream::new(Direction::Sent, &limits),
            received: HalfStream::new(Direction::Received, &limits),
            limits,
            sent_message: Vec::new(),
            received_message: Vec::new(),
            identified: None,
            awaited_identity: None,
            opened: false,
            failure_reported: false,
        }
    }

    /// Sets the stream offsets at which capture began: they distinguish a hole at the beginning from a late start.
    #[must_use]
    pub fn with_start(mut self, sent_offset: u64, received_offset: u64) -> Self {
        self.start_offsets = Some((sent_offset, received_offset));
        self
    }

    /// Processes a captured piece of a stream.
    pub fn push(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        let direction = piece.direction;
        let half = self.half_mut(direction);
        let is_first = half.next_offset.is_none();
        let aligned = align(&piece, half.next_offset);
        half.stats.captured += piece.bytes.len() as u64;
        half.skip(aligned.repeated);
        if is_first {
            self.start_direction(&piece, out);
        } else {
            self.lose(direction, aligned.missing_before, out);
        }
        if !aligned.bytes.is_empty() {
            self.half_mut(direction).next_offset = Some(aligned.offset);
            self.push_bytes(Piece { offset: aligned.offset, bytes: aligned.bytes, ..piece }, keys, out);
        }
        self.lose(direction, aligned.missing_after, out);
        self.half_mut(direction).next_offset = Some(aligned.end);
        debug_assert!(self.stats().is_balanced(), "{:?}", self.stats());
    }

    /// Sets the memory budget of what is buffered once the handshake is complete.
    #[must_use]
    pub fn with_memory(mut self, memory: &MemoryBudget) -> Self {
        self.sent.set_memory(memory);
        self.received.set_memory(memory);
        self
    }

    /// Ends the connection, at these stream offsets if they are known. Searches for chunks are finished first, so that
    /// nothing is pending then; open gaps are reported.
    pub fn finish(&mut self, sent_offset: Option<u64>, received_offset: Option<u64>, out: &mut dyn FnMut(Output)) {
        self.set_identity(Err("not read before the connection ended".to_owned()), out);
        for (direction, end) in [(Direction::Sent, sent_offset), (Direction::Received, received_offset)] {
            self.with_half(direction, 0, out, HalfStream::finish_search);
            let half = self.half_mut(direction);
            if let (Some(end), Some(next_offset)) = (end, half.next_offset)
                && end > next_offset
            {
                half.next_offset = Some(end);
                self.lose(direction, end - next_offset, out);
            }
            self.with_half(direction, 0, out, HalfStream::finish);
        }
        debug_assert!(self.stats().is_balanced(), "{:?}", self.stats());
    }

    /// Totals of both directions.
    pub fn stats(&self) -> StreamStats {
        self.sent.stats() + self.received.stats()
    }

    /// Totals of one direction.
    pub fn direction_stats(&self, direction: Direction) -> StreamStats {
        match direction {
            Direction::Sent => self.sent.stats(),
            Direction::Received => self.received.stats(),
        }
    }

    /// Protocol of the connection, as far as recognised.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Role of the local node: as given to [`Conversation::new`], until a decrypted chunk proves it.
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// Content of the connection messages, once both were read.
    pub fn identified(&self) -> Option<&Identified> {
        self.identified.as_ref()
    }

    fn half_mut(&mut self, direction: Direction) -> &mut HalfStream {
        match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        }
    }

    /// Handles the first piece of a direction, before its bytes: the stream may have begun before it.
    fn start_direction(&mut self, piece: &Piece<'_>, out: &mut dyn FnMut(Output)) {
        match self.stage {
            Stage::Undecided | Stage::Handshake if piece.offset == 0 => {}
            Stage::Undecided | Stage::Handshake if self.is_captured_from_start(piece.direction) => {
                self.lose(piece.direction, piece.offset, out);
            }
            Stage::Undecided | Stage::Handshake => self.start_mid_stream(piece, out),
            Stage::Resumed => {
                // The number of bytes since the saved position is unknown.
                let half = self.half_mut(piece.direction);
                half.boundary.1 = piece.offset;
                half.starts_unsynced = true;
            }
            Stage::Session => self.half_mut(piece.direction).lose_sync(),
            Stage::Closed | Stage::MidStream(_) | Stage::NotTezos => {}
        }
    }

    /// Whether capture began with the first byte of a direction.
    fn is_captured_from_start(&self, direction: Direction) -> bool {
        self.start_offsets.is_some_and(|(sent, received)| match direction {
            Direction::Sent => sent == 0,
            Direction::Received => received == 0,
        })
    }

    /// Handles the first piece of a direction that began before capture.
    fn start_mid_stream(&mut self, piece: &Piece<'_>, out: &mut dyn FnMut(Output)) {
        if self.stage == Stage::Undecided
            && let Some(protocol) = other_protocol(piece.bytes)
        {
            return self.set_not_tezos(protocol, out);
        }
        self.half_mut(piece.direction).give_up();
        self.close_without_handshake("started before capture".to_owned(), out);
    }

    /// Processes the next bytes of a stream.
    fn push_bytes(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        match self.stage {
            Stage::Undecided | Stage::Handshake => self.push_handshake(piece, keys, out),
            Stage::Resumed => self.push_resumed(piece, keys, out),
            Stage::Session | Stage::Closed => self.feed(piece, out),
            Stage::MidStream(checks) => self.push_mid_stream(piece, checks, out),
            Stage::NotTezos => self.half_mut(piece.direction).stats.not_protocol += piece.bytes.len() as u64,
        }
    }

    /// Stage `Resumed`.
    fn push_resumed(&mut self, piece: Piece<'_>, keys: &mut dyn Keyring, out: &mut dyn FnMut(Output)) {
        self.buffer(piece);
        self.derive_keys(keys, piece.time_ns, out);
    }

    /// Stages `Session` and `Closed`.
    fn feed(&mut self, piece: Piece<'_>, out: &mut dyn FnMut(Output)) {
        self.with_half(piece.direction, piece.time_ns, out, |half, context| {
            half.feed(piece.bytes, piece.captured_end(), piece.call_start, context);
        });
    }

    /// Stage `MidStream`, with this number of checks left.
    fn push_mid_stream(&mut self, piece: Piece<'_>, checks: u8, out: &mut dyn FnMut(Output)) {
        let half = self.half_mut(piece.direction);
        if let Some(protocol) = other_protocol(piece.bytes) {
            half.stats.not_protocol += piece.bytes.len() as u64;
            return self.set_not_tezos(protocol, out);
        }
        half.skip(piece.bytes.len() as u64);
        self.stage = checks.checked_sub(1).map_or(Stage::Closed, Stage::MidStream);
    }

    /// Handles `length` missing bytes of a direction.
    fn lose(&mut self, direction: Direction, length: u64, out: &mut dyn FnMut(Output)) {
        if length == 0 {
            return;
        }
        let stage = self.stage;
        let half = self.half_mut(direction);
        half.stats.lost += length;
        match &half.state {
            _ if stage == Stage::NotTezos => {}
            DirectionState::AwaitingConnectionMessage { .. } => {
                half.give_up();
                half.lose_bytes(length);
                let label = direction.label();
                self.close_without_handshake(format!("bytes of the {label} connection message were lost"), out);
            }
            // The offsets of the buffered pieces show the hole when they are replayed.
            DirectionState::AwaitingKeys(_) => {}
            _ => half.lose_bytes(length),
        }
    }

    /// Runs a step of one direction and applies its outcome to the conversation.
    fn with_half(
        &mut self,
        direction: Direction,
        time_ns: u64,
        out: &mut dyn FnMut(Output),
        step: impl FnOnce(&mut HalfStream, &mut Context<'_>),
    ) {
        let Self { sent, received, limits, opened, protocol, .. } = self;
        let half = match direction {
            Direction::Sent => sent,
            Direction::Received => received,
        };
        let mut out_with_state = |output: Output| {
            // The state is reported before the first decrypted chunk.
            if let Output::Chunk(chunk) = &output
                && chunk.state == ChunkState::Opened
                && !*opened
            {
                *opened = true;
                out(decoding_state(*protocol));
            }
            out(output);
        };
        let mut context = Context { limits, time_ns, outcome: DirectionOutcome::default(), out: &mut out_with_state };
        step(half, &mut context);
        let DirectionOutcome { opened_as, first_failed } = context.outcome;
        if let Some(role) = opened_as {
            self.set_role(direction, role, out);
        }
        if first_failed && !self.opened && !self.failure_reported {
            self.failure_reported = true;
            out(Output::State {
                state: State::Undecryptable,
                reason: "the first chunk does not open with the keys of this session".to_owned(),
                remedy: REMEDY_NEW_SESSION.to_owned(),
            });
        }
    }

    /// A chunk of `direction` was decrypted with the cipher of this role, which proves the role.
    fn set_role(&mut self, direction: Direction, role: Role, out: &mut dyn FnMut(Output)) {
        self.half_mut(direction.other()).set_role(role);
        if self.role == Some(role) {
            return;
        }
        self.role = Some(role);
        if let Some(identified) = &mut self.identified {
            identified.role = Some(role);
            out(Output::Identified(identified.clone()));
        }
    }
}

/// Content of a chunk, without the length prefix.
fn chunk_content(chunk: &[u8]) -> &[u8] {
    chunk.get(PREFIX_BYTES..).unwrap_or_default()
}

/// State of a conversation whose chunks are decrypted.
fn decoding_state(protocol: Protocol) -> Output {
    let (state, reason) = match protocol {
        Protocol::Dal => (State::Raw, "messages of DAL nodes are not decoded"),
        _ => (State::Decoding, ""),
    };
    Output::State { state, reason: reason.to_owned(), remedy: String::new() }
}
