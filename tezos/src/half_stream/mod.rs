//! One direction of a conversation: splits the stream into chunks, decrypts them, and resynchronises after holes
//! (`gap`).
mod gap;

use std::borrow::Cow;

use bytes::Bytes;

use crate::{
    cipher::Cipher,
    framer::{Framer, PREFIX_BYTES, into_bytes},
    input::{Direction, Role},
    limits::Limits,
    memory::MemoryBudget,
    output::{Chunk, ChunkState, Gap, Output},
    reassembly::{METADATA, Reassembler},
    recognise::StreamStart,
    resync::{Budget, Resync, Run},
    stats::StreamStats,
};

/// Bytes captured before the keys were derived.
#[derive(Debug)]
pub(crate) struct BufferedPiece {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) call_start: bool,
    pub(crate) time_ns: u64,
}

/// Position of a direction in its stream of chunks.
#[derive(Debug)]
pub(crate) enum DirectionState {
    /// The connection message is incomplete, or the bytes are none (`start`).
    AwaitingConnectionMessage { bytes: Vec<u8>, start: StreamStart },
    /// After the connection message, before the keys are derived.
    AwaitingKeys(Vec<BufferedPiece>),
    /// Synchronised: in a chunk whose start is known.
    InSync(Framer),
    /// In an incomplete chunk whose end is known: the number of bytes up to it.
    SkippingChunk(u64),
    /// Synchronisation lost; searching for the next chunk.
    Searching(Box<Resync>),
    /// Synchronisation lost for good.
    Lost,
}

/// Findings of one step of a direction that concern the conversation.
#[derive(Debug, Default)]
pub(crate) struct DirectionOutcome {
    /// Role whose cipher decrypted a chunk.
    pub(crate) opened_as: Option<Role>,
    /// Whether the first encrypted chunk could not be decrypted.
    pub(crate) first_failed: bool,
}

/// What a step of a direction uses of its conversation.
pub(crate) struct Context<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) time_ns: u64,
    pub(crate) outcome: DirectionOutcome,
    pub(crate) out: &'a mut dyn FnMut(Output),
}

/// One direction of a conversation.
#[derive(Debug)]
pub(crate) struct HalfStream {
    pub(crate) direction: Direction,
    pub(crate) state: DirectionState,
    /// Offset of the stream's next byte; `None` before the first piece.
    pub(crate) next_offset: Option<u64>,
    /// Counter of the current chunk.
    pub(crate) next_counter: u64,
    /// Ciphers by role: none if chunks cannot be decrypted, two while the role is unknown.
    pub(crate) ciphers: Vec<(Role, Cipher)>,
    pub(crate) reassembler: Reassembler,
    /// Totals without those that [`HalfStream::stats`] adds.
    pub(crate) stats: StreamStats,
    /// Number of chunks up to the last whole one, and the stream offset after it.
    pub(crate) boundary: (u64, u64),
    /// Whether the buffered bytes begin at an unknown position of the chunk stream.
    pub(crate) starts_unsynced: bool,
    /// Gap that is not reported yet.
    gap: Option<Gap>,
    /// The chunks since the last search, while they may all be forged.
    unconfirmed: Option<Run>,
    budget: Budget,
    memory: MemoryBudget,
    /// Whether it was reported that the memory budget is used up.
    memory_reported: bool,
    /// Capture time of the last piece.
    time_ns: u64,
}

impl HalfStream {
    pub(crate) fn new(direction: Direction, limits: &Limits) -> Self {
        Self {
            direction,
            state: DirectionState::AwaitingConnectionMessage { bytes: Vec::new(), start: StreamStart::Incomplete },
            next_offset: None,
            next_counter: 0,
            ciphers: Vec::new(),
            reassembler: Reassembler::new(direction),
            stats: StreamStats::default(),
            boundary: (0, 0),
            starts_unsynced: false,
            gap: None,
            unconfirmed: None,
            budget: Budget::new(limits),
            memory: MemoryBudget::default(),
            memory_reported: false,
            time_ns: 0,
        }
    }

    /// Sets the budget of what is buffered, and of the processing of searches, once the keys are derived.
    pub(crate) fn set_memory(&mut self, memory: &MemoryBudget) {
        self.memory = memory.clone();
        self.budget.share(memory);
        self.reassembler.memory = memory.clone();
    }

    /// The state at the start of a chunk.
    pub(crate) fn in_sync(&self) -> DirectionState {
        DirectionState::InSync(Framer::new(&self.memory))
    }

    /// Totals, including the bytes buffered at the moment.
    pub(crate) fn stats(&self) -> StreamStats {
        let pending = match &self.state {
            DirectionState::AwaitingConnectionMessage { bytes, .. } => bytes.len(),
            DirectionState::AwaitingKeys(pieces) => pieces.iter().map(|piece| piece.bytes.len()).sum(),
            DirectionState::InSync(framer) => framer.pending().len(),
            DirectionState::Searching(resync) => resync.window_bytes(),
            DirectionState::SkippingChunk(_) | DirectionState::Lost => 0,
        };
        StreamStats { pending: pending as u64, messages_undecoded: self.reassembler.undecoded, ..self.stats }
    }

    /// Keeps the ciphers of this role only.
    pub(crate) fn set_role(&mut self, role: Role) {
        self.ciphers.retain(|(of, _)| *of == role);
        if let DirectionState::Searching(resync) = &mut self.state {
            resync.set_role(role);
        }
    }

    /// Processes the connection message: the unencrypted first chunk.
    pub(crate) fn connection_message(&mut self, wire: &[u8], context: &mut Context<'_>) {
        let plain = Bytes::copy_from_slice(wire.get(PREFIX_BYTES..).unwrap_or_default());
        self.emit_chunk(Bytes::copy_from_slice(wire), plain, ChunkState::Clear, context);
        self.boundary = (self.next_counter, wire.len() as u64);
    }

    /// Processes the stream's next bytes, which end at offset `end`. Not for the states before the keys.
    pub(crate) fn feed(&mut self, bytes: &[u8], end: u64, call_start: bool, context: &mut Context<'_>) {
        self.budget.refill(bytes.len(), context.time_ns, context.limits);
        self.time_ns = context.time_ns;
        self.feed_all(Cow::Borrowed(bytes), end, call_start, context);
    }

    fn feed_all(&mut self, mut buffer: Cow<'_, [u8]>, end: u64, mut call_start: bool, context: &mut Context<'_>) {
        // A successful search continues with the rest of its window, which ends where these bytes do.
        while let Some(window) = self.feed_until_found(&buffer, end, call_start, context) {
            buffer = Cow::Owned(window);
            call_start = false;
        }
    }

    /// Processes bytes until they are used up; if a search finds a chunk, returns the bytes from that chunk on.
    fn feed_until_found(
        &mut self,
        mut input: &[u8],
        end: u64,
        mut call_start: bool,
        context: &mut Context<'_>,
    ) -> Option<Vec<u8>> {
        while !input.is_empty() {
            match &mut self.state {
                DirectionState::InSync(framer) => match framer.next(&mut input) {
                    Some(chunk) => self.process_chunk(chunk, end - input.len() as u64, context),
                    None if input.is_empty() => return None,
                    None => self.skip_unbuffered_chunk(context),
                },
                DirectionState::SkippingChunk(_) => input = self.skip_chunk(input),
                DirectionState::Searching(resync) => {
                    if resync.push(input, call_start) {
                        return self.search(context);
                    }
                    self.drop_window(input.len() as u64, context);
                    return None;
                }
                DirectionState::AwaitingConnectionMessage { .. }
                | DirectionState::AwaitingKeys(_)
                | DirectionState::Lost => {
                    self.skip(input.len() as u64);
                    return None;
                }
            }
            call_start = false;
        }
        None
    }

    /// State `SkippingChunk`: skips the rest of an incomplete chunk; returns the bytes after it.
    fn skip_chunk<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let DirectionState::SkippingChunk(rest) = &mut self.state else { return input };
        let skipped = (*rest).min(input.len() as u64);
        *rest -= skipped;
        if *rest == 0 {
            self.state = self.in_sync();
        }
        self.skip(skipped);
        input.get(skipped as usize..).unwrap_or_default()
    }

    /// State `Searching`: continues the search. If it finds a chunk, the direction is synchronised; returns the bytes
    /// from that chunk on.
    fn search(&mut self, context: &mut Context<'_>) -> Option<Vec<u8>> {
        let DirectionState::Searching(resync) = &mut self.state else { return None };
        let was_limited = resync.budget_exhausted;
        let found = resync.run(&mut self.budget, context.limits);
        if resync.budget_exhausted && !was_limited {
            let label = self.direction.label();
            (context.out)(Output::Comment(format!(
                "{label} search for the next chunk is slowed down: its processing budget is spent"
            )));
        }
        let Some(sync_point) = found else {
            let dropped = resync.trim(context.limits);
            self.skip(dropped);
            return None;
        };
        self.unconfirmed = Some(resync.new_run());
        let mut window = resync.take_window();
        window.drain(..sync_point.at);
        self.state = self.in_sync();
        self.skip(sync_point.at as u64);
        self.next_counter = sync_point.counter;
        self.set_role(sync_point.role);
        Some(window)
    }

    /// Decrypts and emits a whole chunk, which ends at offset `end`. A chunk that cannot be decrypted starts a search.
    fn process_chunk(&mut self, wire: Cow<'_, [u8]>, end: u64, context: &mut Context<'_>) {
        if self.ciphers.is_empty() {
            self.emit_chunk(into_bytes(wire), Bytes::new(), ChunkState::Undecryptable, context);
            self.boundary = (self.next_counter, end);
            return;
        }
        let sealed = wire.get(PREFIX_BYTES..).unwrap_or_default();
        let index = self.next_counter.saturating_sub(METADATA);
        let opened = self.ciphers.iter().find_map(|(role, cipher)| Some((*role, cipher.open(index, sealed).ok()?)));
        let Some((role, plain)) = opened else {
            let label = self.direction.label();
            let counter = self.next_counter;
            (context.out)(Output::Comment(format!("{label} chunk cannot decrypt, position: {counter}")));
            context.outcome.first_failed |= counter == METADATA;
            self.search_from(&wire, context);
            return;
        };
        context.outcome.opened_as = Some(role);
        if self.ciphers.len() > 1 {
            self.set_role(role);
        }
        self.unconfirmed = self.unconfirmed.take().and_then(|run| run.followed_by(wire.len()));
        self.emit_chunk(into_bytes(wire), plain.into(), ChunkState::Opened, context);
        self.boundary = (self.next_counter, end);
    }

    /// Emits a chunk, after the gap before it and before the messages that it completes.
    fn emit_chunk(&mut self, wire: Bytes, plain: Bytes, state: ChunkState, context: &mut Context<'_>) {
        let counter = self.next_counter;
        self.next_counter += 1;
        if let Some(gap) = self.gap.take() {
            self.stats.gaps += 1;
            let missed_chunks = counter.saturating_sub(gap.first_chunk);
            (context.out)(Output::Gap(Gap { missed_chunks, recovered: true, ..gap }));
        }
        self.stats.in_chunks += wire.len() as u64;
        self.stats.chunks += 1;
        let is_readable = state != ChunkState::Undecryptable;
        if is_readable {
            self.stats.opened += 1;
        } else {
            self.stats.undecryptable += 1;
        }
        let time_ns = context.time_ns;
        let direction = self.direction;
        (context.out)(Output::Chunk(Chunk { direction, counter, wire, plain: plain.clone(), state, time_ns }));
        if is_readable {
            let mut messages = 0;
            let comment = self.reassembler.push(counter, &plain, time_ns, context.limits, &mut |message| {
                messages += 1;
                (context.out)(Output::Message(message));
            });
            self.stats.messages += messages;
            if let Some(comment) = comment {
                (context.out)(Output::Comment(comment));
            }
        }
    }
}
