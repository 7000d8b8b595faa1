//! One direction of a conversation: cuts chunks, opens them, follows holes.
use std::borrow::Cow;

use bytes::Bytes;

use crate::{
    account::Account,
    assembly::{Assembly, METADATA},
    cipher::Cipher,
    framer::{Framer, PREFIX_BYTES, content_length},
    output::{ChunkOut, ChunkState, Direction, GapOut, Limits, Output, Role},
    recognise::Opening,
    seal::into_bytes,
    search::{Budget, Search, Start},
};

/// Bytes that came before the keys did.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) call_start: bool,
    pub(crate) time_ns: u64,
}

/// Where a direction is in its stream.
#[derive(Debug)]
pub(crate) enum Place {
    /// At its beginning; the connection message is not whole yet, or is none.
    Opening { bytes: Vec<u8>, looks: Opening },
    /// Behind the connection message, without keys.
    Waiting(Vec<Held>),
    /// In a chunk whose start is known.
    Framed(Framer),
    /// In a broken chunk whose end is known: so many bytes on.
    Skipping(u64),
    /// Nobody knows.
    Searching(Box<Search>),
    /// Nobody will know.
    Deaf,
}

/// What a direction found out, for the conversation.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// A chunk opened; this is the role that it opened for.
    pub(crate) opened_as: Option<Role>,
    /// The first encrypted chunk did not open.
    pub(crate) first_failed: bool,
}

/// What a direction needs to know of the conversation.
pub(crate) struct Context<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) time_ns: u64,
    pub(crate) news: News,
    pub(crate) out: &'a mut dyn FnMut(Output),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) direction: Direction,
    pub(crate) place: Place,
    /// Offset of the stream's next byte; nothing before the first piece.
    pub(crate) expected: Option<u64>,
    /// Counter of the chunk at hand.
    pub(crate) next: u64,
    /// None: chunks stay closed. Two: the role is not known.
    pub(crate) ciphers: Vec<(Role, Cipher)>,
    pub(crate) assembly: Assembly,
    pub(crate) account: Account,
    /// Chunks up to the last whole one, and the offset of its end.
    pub(crate) boundary: (u64, u64),
    gap: Option<GapOut>,
    budget: Budget,
}

impl Half {
    pub(crate) fn new(direction: Direction, limits: &Limits) -> Self {
        Self {
            direction,
            place: Place::Opening { bytes: Vec::new(), looks: Opening::Undecided },
            expected: None,
            next: 0,
            ciphers: Vec::new(),
            assembly: Assembly::new(direction),
            account: Account::default(),
            boundary: (0, 0),
            gap: None,
            budget: Budget::new(limits),
        }
    }

    /// Totals, with what waits at the moment.
    pub(crate) fn account(&self) -> Account {
        let pending = match &self.place {
            Place::Opening { bytes, .. } => bytes.len(),
            Place::Waiting(held) => held.iter().map(|held| held.bytes.len()).sum(),
            Place::Framed(framer) => framer.pending().len(),
            Place::Searching(search) => search.waiting(),
            Place::Skipping(_) | Place::Deaf => 0,
        };
        Account { pending: pending as u64, ..self.account }
    }

    /// The clear chunk that opens the direction.
    pub(crate) fn connection_message(&mut self, wire: &[u8], context: &mut Context<'_>) {
        let plain = Bytes::copy_from_slice(wire.get(PREFIX_BYTES..).unwrap_or_default());
        self.chunk_out(Bytes::copy_from_slice(wire), plain, ChunkState::Clear, context);
        self.boundary = (self.next, wire.len() as u64);
    }

    /// The role is known.
    pub(crate) fn settle(&mut self, role: Role) {
        self.ciphers.retain(|(of, _)| *of == role);
        if let Place::Searching(search) = &mut self.place {
            search.settle(role);
        }
    }

    /// Bytes that no one will look at.
    pub(crate) fn skip(&mut self, count: u64) {
        self.account.skipped += count;
        if let Some(gap) = &mut self.gap {
            gap.skipped_bytes += count;
        }
    }

    /// Gives up finding chunks; what waited is skipped.
    pub(crate) fn give_up(&mut self) {
        self.open_gap();
        let waiting = self.account().pending;
        self.place = Place::Deaf;
        self.skip(waiting);
    }

    fn open_gap(&mut self) -> &mut GapOut {
        self.assembly.lose_step();
        self.gap.get_or_insert(GapOut {
            direction: self.direction,
            lost_bytes: 0,
            skipped_bytes: 0,
            first_chunk: self.next,
            missed_chunks: 0,
            recovered: false,
        })
    }

    /// The stream's next bytes, which end at offset `end`. Not for the places before the keys.
    pub(crate) fn feed(&mut self, bytes: &[u8], end: u64, mut call_start: bool, context: &mut Context<'_>) {
        self.budget.earn(bytes.len(), context.time_ns, context.limits);
        // What a search found is taken up again from its window, which ends where the piece does.
        let mut buffer = Cow::Borrowed(bytes);
        loop {
            let mut input: &[u8] = &buffer;
            let mut found = None;
            while !input.is_empty() {
                match &mut self.place {
                    Place::Framed(framer) => {
                        let Some(chunk) = framer.next(&mut input) else { break };
                        self.chunk(chunk, end - input.len() as u64, context);
                        call_start = false;
                    }
                    Place::Skipping(rest) => {
                        let skipped = (*rest).min(input.len() as u64);
                        *rest -= skipped;
                        if *rest == 0 {
                            self.place = Place::Framed(Framer::default());
                        }
                        self.skip(skipped);
                        input = input.get(skipped as usize..).unwrap_or_default();
                        call_start = false;
                    }
                    Place::Searching(search) => {
                        search.push(input, call_start);
                        input = &[];
                        found = self.search(context);
                    }
                    Place::Opening { .. } | Place::Waiting(_) | Place::Deaf => {
                        self.skip(input.len() as u64);
                        input = &[];
                    }
                }
            }
            match found {
                Some(window) => buffer = Cow::Owned(window),
                None => return,
            }
        }
    }

    /// Lets a search go on. If it found a chunk, the direction is in place, and the bytes from that chunk on come back.
    fn search(&mut self, context: &mut Context<'_>) -> Option<Vec<u8>> {
        let Place::Searching(search) = &mut self.place else { return None };
        let was_limited = search.limited;
        let found = search.run(&mut self.budget, context.limits);
        if search.limited && !was_limited {
            let word = self.direction.word();
            (context.out)(Output::Comment(format!(
                "{word} search for the next chunk is slowed down: its processing budget is spent"
            )));
        }
        let Some(found) = found else {
            let given_up = search.trim(context.limits);
            self.skip(given_up);
            return None;
        };
        let Place::Searching(search) = std::mem::replace(&mut self.place, Place::Framed(Framer::default())) else {
            return None;
        };
        let mut window = search.into_window();
        window.drain(..found.at);
        self.skip(found.at as u64);
        self.next = found.counter;
        self.settle(found.role);
        Some(window)
    }

    /// A whole chunk, which ends at offset `end`.
    fn chunk(&mut self, wire: Cow<'_, [u8]>, end: u64, context: &mut Context<'_>) {
        if self.ciphers.is_empty() {
            self.chunk_out(into_bytes(wire), Bytes::new(), ChunkState::Undecryptable, context);
            self.boundary = (self.next, end);
            return;
        }
        let sealed = wire.get(PREFIX_BYTES..).unwrap_or_default();
        let index = self.next.saturating_sub(METADATA);
        let opened = self.ciphers.iter().find_map(|(role, cipher)| Some((*role, cipher.open(index, sealed).ok()?)));
        let Some((role, plain)) = opened else {
            let word = self.direction.word();
            (context.out)(Output::Comment(format!("{word} chunk cannot decrypt, position: {}", self.next)));
            context.news.first_failed |= self.next == METADATA;
            self.open_gap();
            let start = Start::unknown(self.next);
            self.place = Place::Searching(Box::new(Search::new(start, &self.ciphers, wire.into_owned())));
            return;
        };
        context.news.opened_as = Some(role);
        if self.ciphers.len() > 1 {
            self.settle(role);
        }
        self.chunk_out(into_bytes(wire), plain.into(), ChunkState::Opened, context);
        self.boundary = (self.next, end);
    }

    /// Hands a chunk out, and the messages that it completes.
    fn chunk_out(&mut self, wire: Bytes, plain: Bytes, state: ChunkState, context: &mut Context<'_>) {
        let counter = self.next;
        self.next += 1;
        if let Some(gap) = self.gap.take() {
            self.account.gaps += 1;
            let missed_chunks = counter.saturating_sub(gap.first_chunk);
            (context.out)(Output::Gap(GapOut { missed_chunks, recovered: true, ..gap }));
        }
        self.account.in_chunks += wire.len() as u64;
        self.account.chunks += 1;
        let readable = state != ChunkState::Undecryptable;
        if readable {
            self.account.opened += 1;
        } else {
            self.account.undecryptable += 1;
        }
        let time_ns = context.time_ns;
        let direction = self.direction;
        (context.out)(Output::Chunk(ChunkOut { direction, counter, wire, plain: plain.clone(), state, time_ns }));
        if readable {
            let mut messages = 0;
            let remark = self.assembly.push(counter, &plain, time_ns, context.limits, &mut |message| {
                messages += 1;
                (context.out)(Output::Message(message));
            });
            self.account.messages += messages;
            if let Some(remark) = remark {
                (context.out)(Output::Comment(remark));
            }
        }
    }

    /// So many bytes of the stream are missing. They are counted by the caller.
    pub(crate) fn hole(&mut self, length: u64) {
        if length == 0 {
            return;
        }
        self.open_gap().lost_bytes += length;
        let place = std::mem::replace(&mut self.place, Place::Deaf);
        self.place = match place {
            Place::Framed(mut framer) => {
                let pending = framer.take();
                self.skip(pending.len() as u64);
                let seen = pending.len() as u64 + length;
                match content_length(&pending).map(|content| (PREFIX_BYTES + content) as u64) {
                    Some(total) => {
                        self.next += 1;
                        self.after_broken_chunk(total, seen)
                    }
                    None => self.lost(Start::after_hole(self.next, seen)),
                }
            }
            Place::Skipping(rest) => self.after_broken_chunk(rest, length),
            Place::Searching(mut search) => {
                let dropped = search.hole(length);
                self.skip(dropped);
                Place::Searching(search)
            }
            Place::Deaf => Place::Deaf,
            before @ (Place::Opening { .. } | Place::Waiting(_)) => before,
        };
    }

    /// The chunk before `next` has `left` bytes to go, and `length` bytes are missing from here.
    fn after_broken_chunk(&self, left: u64, length: u64) -> Place {
        match left.checked_sub(length) {
            Some(0) => Place::Framed(Framer::default()),
            Some(rest) => Place::Skipping(rest),
            None => self.lost(Start::after_hole(self.next, length - left)),
        }
    }

    fn lost(&self, start: Start) -> Place {
        if self.ciphers.is_empty() {
            return Place::Deaf;
        }
        Place::Searching(Box::new(Search::new(start, &self.ciphers, Vec::new())))
    }

    /// The place is lost from here on, by a number of bytes that nobody knows.
    pub(crate) fn lose_place(&mut self) {
        self.open_gap();
        self.place = self.lost(Start::unknown(self.next));
    }

    /// The stream ended.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        if matches!(self.place, Place::Searching(_)) {
            let waiting = self.account().pending;
            self.place = Place::Deaf;
            self.skip(waiting);
        }
        // A direction that was given up without a byte has nothing to report.
        let gap = self.gap.take().filter(|gap| gap.lost_bytes + gap.skipped_bytes > 0);
        if let Some(gap) = gap {
            self.account.gaps += 1;
            let missed_chunks = match self.place {
                Place::Framed(_) | Place::Skipping(_) => self.next.saturating_sub(gap.first_chunk),
                _ => 0,
            };
            (context.out)(Output::Gap(GapOut { missed_chunks, ..gap }));
        } else if self.assembly.is_partial() {
            let word = self.direction.word();
            (context.out)(Output::Comment(format!("{word} message lack chunks, at: {}", self.next)));
        }
    }
}
