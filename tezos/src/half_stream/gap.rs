//! Loss of synchronisation in one direction: missing bytes, skipped bytes, and the gap that is reported for them.
use std::borrow::Cow;

use super::{Context, DirectionState, HalfStream};
use crate::{
    framer::{Framer, PREFIX_BYTES, content_length},
    output::{Gap, Output},
    resync::{Resync, ResyncStart},
};

impl HalfStream {
    /// Counts captured bytes that are not processed.
    pub(crate) fn skip(&mut self, count: u64) {
        self.stats.skipped += count;
        if let Some(gap) = &mut self.gap {
            gap.skipped_bytes += count;
        }
    }

    /// Stops the search for chunks; buffered bytes are skipped.
    pub(crate) fn give_up(&mut self) {
        self.open_gap();
        self.skip_pending();
    }

    /// Handles `length` missing bytes of the stream, which the caller counts as lost.
    pub(crate) fn lose_bytes(&mut self, length: u64) {
        if length == 0 {
            return;
        }
        self.open_gap().lost_bytes += length;
        self.state = match std::mem::replace(&mut self.state, DirectionState::Lost) {
            DirectionState::InSync(framer) => self.lose_in_chunk(framer, length),
            DirectionState::SkippingChunk(rest) => self.lose_after_broken_chunk(rest, length),
            DirectionState::Searching(mut resync) => {
                let dropped = resync.lose_bytes(length);
                self.skip(dropped);
                DirectionState::Searching(resync)
            }
            unchanged @ (DirectionState::AwaitingConnectionMessage { .. }
            | DirectionState::AwaitingKeys(_)
            | DirectionState::Lost) => unchanged,
        };
    }

    /// Synchronisation is lost from here on, by an unknown number of bytes.
    pub(crate) fn lose_sync(&mut self) {
        self.open_gap();
        self.state = self.searching(ResyncStart::unknown(self.next_counter));
    }

    /// Searches the buffered bytes to their end before the stream is finished, with a full processing budget of the
    /// direction, as far as the shared one allows.
    pub(crate) fn finish_search(&mut self, context: &mut Context<'_>) {
        context.time_ns = self.time_ns;
        self.budget.fill(context.limits);
        let end = self.next_offset.unwrap_or_default();
        loop {
            // The length of an incomplete chunk is false if bytes before it are missing.
            if let DirectionState::InSync(framer) = &mut self.state
                && !framer.pending().is_empty()
                && !self.ciphers.is_empty()
            {
                let pending = framer.take();
                self.search_from(&pending, context);
            }
            let Some(window) = self.search(context) else { return };
            self.feed_all(Cow::Owned(window), end, false, context);
        }
    }

    /// Ends the stream: skips what is left of the buffered bytes, and reports the open gap or an incomplete message.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        if self.stats().pending > 0 {
            // Bytes of an unknown protocol are not a gap.
            if !matches!(self.state, DirectionState::AwaitingConnectionMessage { .. }) {
                self.open_gap();
            }
            self.skip_pending();
        }
        // A direction that was given up without a byte has nothing to report.
        let gap = self.gap.take().filter(|gap| gap.lost_bytes + gap.skipped_bytes > 0);
        if let Some(gap) = gap {
            self.stats.gaps += 1;
            let missed_chunks = match self.state {
                DirectionState::InSync(_) | DirectionState::SkippingChunk(_) => {
                    self.next_counter.saturating_sub(gap.first_chunk)
                }
                _ => 0,
            };
            (context.out)(Output::Gap(Gap { missed_chunks, ..gap }));
        } else if self.reassembler.is_partial() {
            let (label, counter) = (self.direction.label(), self.next_counter);
            (context.out)(Output::Comment(format!("{label} message lack chunks, at: {counter}")));
        }
    }

    /// The gap at the current position, which begins here unless one is open.
    pub(super) fn open_gap(&mut self) -> &mut Gap {
        self.reassembler.lose_sync();
        self.gap.get_or_insert(Gap {
            direction: self.direction,
            lost_bytes: 0,
            skipped_bytes: 0,
            first_chunk: self.next_counter,
            missed_chunks: 0,
            recovered: false,
        })
    }

    /// Skips the buffered bytes; synchronisation is lost for good.
    fn skip_pending(&mut self) {
        let pending = self.stats().pending;
        self.state = DirectionState::Lost;
        self.skip(pending);
    }

    /// `length` bytes are missing after the beginning of a chunk, which `framer` holds.
    fn lose_in_chunk(&mut self, mut framer: Framer, length: u64) -> DirectionState {
        let pending = framer.take();
        let captured = pending.len() as u64;
        self.skip(captured);
        match content_length(&pending) {
            Some(content) => {
                self.next_counter += 1;
                self.lose_after_broken_chunk((PREFIX_BYTES + content) as u64, captured + length)
            }
            None => self.searching(ResyncStart::after_loss(self.next_counter, captured + length)),
        }
    }

    /// `rest` bytes are left of an incomplete chunk, the one before `next_counter`, and the next `length` bytes are
    /// missing.
    fn lose_after_broken_chunk(&self, rest: u64, length: u64) -> DirectionState {
        match rest.checked_sub(length) {
            Some(0) => self.in_sync(),
            Some(rest) => DirectionState::SkippingChunk(rest),
            None => self.searching(ResyncStart::after_loss(self.next_counter, length - rest)),
        }
    }

    /// Starts a search, which needs keys.
    fn searching(&self, start: ResyncStart) -> DirectionState {
        if self.ciphers.is_empty() {
            return DirectionState::Lost;
        }
        DirectionState::Searching(Box::new(self.resync(start)))
    }

    /// A search that also tries the counters of the last one, if all chunks since then may be forged.
    fn resync(&self, start: ResyncStart) -> Resync {
        Resync::new(start.after_run(self.unconfirmed.as_ref()), &self.ciphers, &self.memory)
    }

    /// Starts a search in the bytes of a chunk that could not be decrypted or is incomplete.
    pub(super) fn search_from(&mut self, broken: &[u8], context: &mut Context<'_>) {
        self.open_gap();
        let mut resync = self.resync(ResyncStart::unknown(self.next_counter));
        let is_buffered = resync.push_broken(broken);
        self.state = DirectionState::Searching(Box::new(resync));
        if !is_buffered {
            self.drop_window(broken.len() as u64, context);
        }
    }

    /// State `Searching`: skips the window and the `length` bytes after it, for which the memory budget has no room.
    pub(super) fn drop_window(&mut self, length: u64, context: &mut Context<'_>) {
        let DirectionState::Searching(resync) = &mut self.state else { return };
        let dropped = resync.lose_bytes(length) + length;
        self.skip(dropped);
        self.stats.windows_dropped += 1;
        self.report_memory(context);
    }

    /// State `InSync`: skips the incomplete chunk, for which the memory budget has no room.
    pub(super) fn skip_unbuffered_chunk(&mut self, context: &mut Context<'_>) {
        let DirectionState::InSync(framer) = &mut self.state else { return };
        let pending = framer.take();
        let length = PREFIX_BYTES + content_length(&pending).unwrap_or_default();
        self.open_gap();
        self.skip(pending.len() as u64);
        self.stats.chunks_unbuffered += 1;
        self.report_memory(context);
        self.next_counter += 1;
        self.state = DirectionState::SkippingChunk(length.saturating_sub(pending.len()) as u64);
    }

    /// Reports once that the memory budget is used up.
    fn report_memory(&mut self, context: &mut Context<'_>) {
        if !std::mem::replace(&mut self.memory_reported, true) {
            let (label, counter) = (self.direction.label(), self.next_counter);
            (context.out)(Output::Comment(format!(
                "{label} bytes are skipped, at chunk {counter}: the memory for incomplete chunks is used up"
            )));
        }
    }
}
