//! Step 2 of a resynchronisation: compares every position of the window with the key streams of all counters in range.
use super::{Budget, Candidate, KeyStreamTable, MAX_WAITING, Resync};
use crate::{
    cipher::TAG_BYTES,
    framer::{PREFIX_BYTES, content_length},
    limits::Limits,
    message::{FRAME_BYTES, MAX_MESSAGE_BYTES, kind_of_tag},
    reassembly::{ACK, METADATA, is_full},
};

/// Number of bytes from the start of a chunk to the end of its message's length and tag.
const HEAD_BYTES: usize = PREFIX_BYTES + TAG_BYTES + FRAME_BYTES;
/// Number of positions that are paid for at once.
const STRIDE: usize = 256;
/// Initial number of counters in the tables if the length of the loss is known.
const INITIAL_COUNTERS: u64 = 4096;
/// Initial number of counters in the tables if the length of the loss is unknown.
const INITIAL_COUNTERS_UNKNOWN_LOSS: u64 = 256;
/// Maximum number of positions scanned in vain before the tables grow.
const MAX_SCANNED_BEFORE_GROWTH: u64 = 64 << 10;

/// Why a scan stopped.
pub(super) enum ScanResult {
    /// There is a candidate with complete bytes.
    Candidate,
    /// The rest of the window is too short.
    EndOfWindow,
    /// The budget is exhausted.
    BudgetExhausted,
}

impl Resync {
    /// Makes the initial tables. Returns false if the budget is exhausted.
    pub(super) fn fill_tables(&mut self, budget: &mut Budget, limits: &Limits) -> bool {
        let initial = if self.start.distance.is_some() { INITIAL_COUNTERS } else { INITIAL_COUNTERS_UNKNOWN_LOSS };
        let wanted = self.possible_counters(self.window.len(), limits).min(initial + self.start.earlier_counters());
        self.table_size >= wanted || self.extend_tables(wanted, budget, limits)
    }

    /// Enlarges the tables once enough positions were scanned in vain. Returns whether they grew.
    pub(super) fn grow_tables(&mut self, budget: &mut Budget, limits: &Limits) -> bool {
        let threshold = (2 * self.table_size).min(MAX_SCANNED_BEFORE_GROWTH);
        let wanted = self.possible_counters(self.window.len(), limits).min(4 * self.table_size);
        self.scanned_since_growth >= threshold && wanted > self.table_size && self.extend_tables(wanted, budget, limits)
    }

    /// Number of counters that a chunk at this position of the window can have.
    fn possible_counters(&self, at: usize, limits: &Limits) -> u64 {
        let counters = self.max_counter(at).saturating_sub(self.start.min_counter).saturating_add(1);
        counters.saturating_add(self.start.earlier_counters()).min(limits.max_resync_counters.min(u64::from(u32::MAX)))
    }

    /// Extends the tables to `wanted` counters, or to as many as a budget can pay for. Returns whether they grew.
    fn extend_tables(&mut self, wanted: u64, budget: &mut Budget, limits: &Limits) -> bool {
        let ciphers = self.tables.len().max(1) as u64;
        // The cost is one key stream for each new counter and a sort of the whole table. A step that exceeds a full
        // budget would never run.
        let payable = (limits.resync_budget / 2).saturating_sub(self.table_size / 8) / (ciphers + 1);
        let wanted = wanted.min(self.table_size.saturating_add(payable));
        if wanted <= self.table_size || !self.tables_memory.resize(self.tables_bytes(wanted)) {
            return false;
        }
        if !budget.spend((wanted - self.table_size) * ciphers + wanted / 8) {
            self.tables_memory.resize(self.tables_bytes(self.table_size));
            self.budget_exhausted = true;
            return false;
        }
        // Positions that were compared before may have one of the new counters.
        if self.possible_counters(self.scanned, limits) > self.table_size {
            self.scanned = 0;
        }
        self.scanned_since_growth = 0;
        for table in &mut self.tables {
            table.extend(&self.start, wanted);
        }
        self.table_size = wanted;
        true
    }

    /// Scans the window until a complete candidate is found.
    pub(super) fn scan(&mut self, budget: &mut Budget) -> ScanResult {
        let end = (self.window.len() + 1).saturating_sub(TAG_BYTES + PREFIX_BYTES + 1);
        while self.scanned < end {
            let stop = end.min(self.scanned + STRIDE);
            // Lookups in a larger table are slower; one position in a thousand is compared with every counter.
            let positions = (stop - self.scanned) as u64;
            let cost = positions * (1 + self.table_size / 65_536) / 2 + self.table_size / 256;
            if !budget.spend(cost * self.tables.len() as u64 + 1) {
                self.budget_exhausted = true;
                return ScanResult::BudgetExhausted;
            }
            let mut is_ready = false;
            while self.scanned < stop {
                let at = self.scanned;
                // Too close to the end of the window: compared again with more bytes.
                let Some(is_candidate) = self.compare(at) else {
                    is_ready |= self.look_ahead(at + 1, end);
                    return if is_ready { ScanResult::Candidate } else { ScanResult::EndOfWindow };
                };
                self.scanned += 1;
                self.scanned_since_growth += 1;
                is_ready |= is_candidate && self.content(at).is_some();
            }
            if is_ready {
                return ScanResult::Candidate;
            }
        }
        ScanResult::EndOfWindow
    }

    /// Compares a position with the tables. Returns whether it is a candidate, or `None` if more bytes are needed.
    fn compare(&mut self, at: usize) -> Option<bool> {
        let before = self.candidates.len();
        self.compare_with_handshake(at);
        let rest = self.window.get(at..)?;
        let length = content_length(rest)?;
        let (start, max_counter) = (&self.start, self.max_counter(at));
        if length >= TAG_BYTES + FRAME_BYTES {
            let head = rest.get(HEAD_BYTES - FRAME_BYTES..HEAD_BYTES)?;
            let head = head.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            for table in &self.tables {
                for_each_match(table, head, length - TAG_BYTES, |index| {
                    let counter = start.counter(index);
                    if counter <= max_counter {
                        self.candidates.push_back(Candidate { at, counter, role: table.role });
                    }
                });
            }
        }
        let is_candidate = self.candidates.len() > before;
        while self.candidates.len() > MAX_WAITING {
            self.candidates.pop_front();
        }
        Some(is_candidate)
    }

    /// Compares the positions after one that needs more bytes, each once, with the chunks of the handshake: they are shorter than
    /// that, and may be whole. Returns whether there is a candidate with complete bytes.
    fn look_ahead(&mut self, from: usize, end: usize) -> bool {
        let mut is_ready = false;
        for at in from.max(self.scanned_ahead)..end {
            is_ready |= self.compare_with_handshake(at) && self.content(at).is_some();
        }
        self.scanned_ahead = end;
        is_ready
    }

    /// Whether a position is a candidate for a chunk of the handshake: these have no length and tag of a message, and are
    /// recognised by their own length.
    fn compare_with_handshake(&mut self, at: usize) -> bool {
        let Some(length) = self.window.get(at..).and_then(content_length) else { return false };
        let (start, max_counter) = (&self.start, self.max_counter(at));
        let is_possible = |counter: u64, plain_bytes: usize| {
            let in_range = (start.min_counter..=max_counter).contains(&counter) || start.earlier.contains(&counter);
            length == TAG_BYTES + plain_bytes && in_range
        };
        let Some((counter, _)) =
            [(METADATA, 2), (ACK, 1)].into_iter().find(|(counter, bytes)| is_possible(*counter, *bytes))
        else {
            return false;
        };
        self.candidates.extend(self.tables.iter().map(|table| Candidate { at, counter, role: table.role }));
        true
    }
}

/// Finds the counters (by index) with which a chunk may begin a message, by the encrypted length and tag (`head`, 48
/// bits) and the number of plain bytes in the chunk.
fn for_each_match(table: &KeyStreamTable, head: u64, plain_bytes: usize, mut matched: impl FnMut(u64)) {
    let message_alone = (head >> 16) as u32 ^ (plain_bytes - 4) as u32;
    table.with_length_stream(message_alone).for_each(&mut matched);
    if is_full(plain_bytes) {
        table
            .heads()
            .filter(|(_, key_stream)| begins_long_message(head ^ key_stream, plain_bytes))
            .for_each(|(index, _)| matched(index));
    }
}

/// Whether length and tag (48 bits) are those of a message longer than the chunk's plain bytes.
fn begins_long_message(head: u64, plain_bytes: usize) -> bool {
    let length = head >> 16;
    length + 4 > plain_bytes as u64 && length <= MAX_MESSAGE_BYTES && kind_of_tag(head as u16).is_some()
}
