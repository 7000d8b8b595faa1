//! Finds the next chunk of a direction after a hole, by trial.
//!
//! Keys and base nonce are known, the place in the stream and the chunk's counter are not. A tag that fits is proof (2^-128), but costs a
//! pass over the whole chunk, so the tag is asked last:
//!
//! 1. A chunk that begins at a read or write call is tried as it is with the first few counters.
//! 2. At every offset, the 6 bytes of cipher text where a message's length and tag would be are compared with the key stream of
//!    every counter in range. A message alone in its chunk has the chunk's own length less 20, so the key stream that
//!    must have covered it is known, and looked up in a sorted table: the cost of an offset hardly depends on the number of counters.
//!    The first chunk of a long message has the length of a full chunk; those few offsets are compared with the table one by one.
//! 3. What passes waits for the rest of its bytes and is verified.
//!
//! A chunk in the middle of a message is found by the first way only; the messages it belongs to are lost in any case.
//!
//! Counters: where the length of the hole is known, a chunk's least length (18 bytes) bounds them. Else the range starts small, and grows as
//! bytes go by without success. Memory and processing are bounded by [`Limits`]; what the budget cannot pay waits until it can.
use std::collections::VecDeque;

use crate::{
    assembly::{ACK, METADATA, is_full},
    cipher::{Cipher, TAG_BYTES},
    framer::{MAX_CHUNK_BYTES, PREFIX_BYTES, content_length},
    message::{FRAME_BYTES, MAX_MESSAGE_BYTES, kind_of_tag},
    output::{Limits, Role},
};

/// Length prefix and tag: no chunk is shorter.
const MIN_CHUNK_BYTES: u64 = (PREFIX_BYTES + TAG_BYTES) as u64;
/// From a chunk's start to the end of a message's length and tag.
const HEAD_BYTES: usize = PREFIX_BYTES + TAG_BYTES + FRAME_BYTES;
/// Counters tried at the start of a call.
const CALL_COUNTERS: u64 = 32;
/// Call starts and candidates that wait for their bytes.
const MAX_WAITING: usize = 64;
/// Offsets that are paid for at once.
const STRIDE: usize = 256;

/// What searches may spend. A unit is about 0.1 µs.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    units: u64,
    last_ns: u64,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { units: limits.search_units, last_ns: 0 }
    }

    /// Bytes and time of the stream went by.
    pub(crate) fn earn(&mut self, bytes: usize, time_ns: u64, limits: &Limits) {
        let elapsed = if self.last_ns == 0 { 0 } else { time_ns.saturating_sub(self.last_ns) };
        let by_time = u128::from(elapsed) * u128::from(limits.search_units_per_second) / 1_000_000_000;
        // Too short a time to count is left to add up.
        if by_time > 0 || self.last_ns == 0 {
            self.last_ns = self.last_ns.max(time_ns);
        }
        let by_bytes = (bytes as u64).saturating_mul(limits.search_units_per_byte);
        self.units = self
            .units
            .saturating_add(by_bytes)
            .saturating_add(u64::try_from(by_time).unwrap_or(u64::MAX))
            .min(limits.search_units);
    }

    fn spend(&mut self, units: u64) -> bool {
        let enough = self.units >= units;
        if enough {
            self.units -= units;
        }
        enough
    }
}

/// The counters of one cipher, by what their key stream would cover.
#[derive(Debug)]
struct Trial {
    role: Role,
    cipher: Cipher,
    /// Key stream over length and tag, by distance from the least counter.
    heads: Vec<u64>,
    /// (key stream over the length, distance), sorted.
    table: Vec<(u32, u32)>,
}

impl Trial {
    /// Extends the table to `size` counters from `least` on.
    fn extend(&mut self, least: u64, size: u64) {
        for distance in self.heads.len() as u64..size {
            let head = self.cipher.head_stream(least + distance - METADATA);
            self.heads.push(head);
            self.table.push(((head >> 16) as u32, distance as u32));
        }
        self.table.sort_unstable();
    }
}

/// A chunk that may be one.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: usize,
    counter: u64,
    role: Role,
}

/// A chunk that is one: its place in the window, its counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) at: usize,
    pub(crate) counter: u64,
    pub(crate) role: Role,
}

/// Why scanning stopped.
enum Scan {
    /// There is something to verify.
    Candidate,
    /// No more bytes.
    End,
    /// No more budget.
    Broke,
}

/// Where a search begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Counter of the chunk that begins at, or first after, the reference: the last place in the stream that was sure.
    pub(crate) base: u64,
    /// Least counter that can be found.
    pub(crate) least: u64,
    /// Bytes from the reference to the next byte that comes; nothing if the loss has no known length.
    pub(crate) span: Option<u64>,
}

impl Start {
    /// The reference is a chunk's start, and so many bytes after it are missing.
    pub(crate) fn after_hole(base: u64, span: u64) -> Self {
        let least = base + span.div_ceil(MAX_CHUNK_BYTES as u64).max(1);
        Self { base, least, span: Some(span) }
    }

    /// Nobody knows how much is missing.
    pub(crate) fn unknown(base: u64) -> Self {
        Self { base, least: base, span: None }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Search {
    start: Start,
    trials: Vec<Trial>,
    /// Counters in the tables.
    size: u64,
    /// Bytes without a hole.
    window: Vec<u8>,
    /// Offsets of the window before this one are compared with the tables.
    scanned: usize,
    /// Bytes compared since the tables grew.
    since_growth: u64,
    /// Call starts that are not tried yet.
    calls: VecDeque<usize>,
    candidates: VecDeque<Candidate>,
    /// The budget ran out once.
    pub(crate) limited: bool,
}

impl Search {
    /// Ciphers of the direction: one, or one for each role that it may have. The window begins with a chunk that did not open; if only
    /// its content is wrong, the next one follows it.
    pub(crate) fn new(start: Start, ciphers: &[(Role, Cipher)], broken: Vec<u8>) -> Self {
        let trials = ciphers
            .iter()
            .map(|(role, cipher)| Trial { role: *role, cipher: cipher.clone(), heads: Vec::new(), table: Vec::new() })
            .collect();
        Self {
            // Counter 0 is not encrypted.
            start: Start { least: start.least.max(METADATA), ..start },
            trials,
            size: 0,
            calls: if broken.is_empty() { VecDeque::new() } else { VecDeque::from([broken.len()]) },
            window: broken,
            scanned: 0,
            since_growth: 0,
            candidates: VecDeque::new(),
            limited: false,
        }
    }

    /// Bytes that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.window.len()
    }

    /// The bytes that wait.
    pub(crate) fn into_window(self) -> Vec<u8> {
        self.window
    }

    /// The other direction showed the role.
    pub(crate) fn settle(&mut self, role: Role) {
        self.trials.retain(|trial| trial.role == role);
        self.candidates.retain(|candidate| candidate.role == role);
    }

    /// More bytes are missing. Returns how many captured ones are given up with them.
    pub(crate) fn hole(&mut self, length: u64) -> u64 {
        let dropped = self.window.len() as u64;
        self.start.span = self.start.span.map(|span| span.saturating_add(dropped).saturating_add(length));
        self.window.clear();
        self.scanned = 0;
        self.calls.clear();
        self.candidates.clear();
        dropped
    }

    /// Takes the stream's next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8], call_start: bool) {
        if call_start && self.calls.len() < MAX_WAITING {
            self.calls.push_back(self.window.len());
        }
        self.window.extend_from_slice(bytes);
    }

    /// Goes on as far as bytes and budget allow.
    pub(crate) fn run(&mut self, budget: &mut Budget, limits: &Limits) -> Option<Found> {
        loop {
            if let Some(found) = self.verify_candidates(budget).or_else(|| self.try_calls(budget)) {
                return Some(found);
            }
            if !self.fill_tables(budget, limits) {
                return None;
            }
            match self.scan(budget) {
                Scan::Candidate => {}
                Scan::End if self.grow_tables(budget, limits) => {}
                Scan::End | Scan::Broke => return None,
            }
        }
    }

    /// Cuts the window to its limit. Returns how many bytes are given up.
    pub(crate) fn trim(&mut self, limits: &Limits) -> u64 {
        let limit = limits.search_window.max(2 * MAX_CHUNK_BYTES);
        if self.window.len() <= limit {
            return 0;
        }
        // What is half a window back has had all the bytes of a chunk after it, and was tried.
        let cut = self.window.len() - limit / 2;
        self.window.drain(..cut);
        self.start.span = self.start.span.map(|span| span + cut as u64);
        self.scanned = self.scanned.saturating_sub(cut);
        self.calls = self.calls.iter().filter_map(|at| at.checked_sub(cut)).collect();
        self.candidates = self
            .candidates
            .iter()
            .filter_map(|candidate| Some(Candidate { at: candidate.at.checked_sub(cut)?, ..*candidate }))
            .collect();
        cut as u64
    }

    /// The greatest counter that a chunk at this place of the window can have.
    fn greatest(&self, at: usize) -> u64 {
        self.start
            .span
            .map_or(u64::MAX, |span| self.start.base.saturating_add(span.saturating_add(at as u64) / MIN_CHUNK_BYTES))
    }

    /// Content of the chunk at a place of the window, if it is all there.
    fn content(&self, at: usize) -> Option<&[u8]> {
        let rest = self.window.get(at..)?;
        rest.get(PREFIX_BYTES..PREFIX_BYTES + content_length(rest)?)
    }

    fn price(content: &[u8]) -> u64 {
        1 + content.len() as u64 / 256
    }

    /// Step 3.
    fn verify_candidates(&mut self, budget: &mut Budget) -> Option<Found> {
        let mut waiting = VecDeque::new();
        let mut found = None;
        while let Some(candidate) = self.candidates.pop_front() {
            let Some(content) = self.content(candidate.at) else {
                waiting.push_back(candidate);
                continue;
            };
            if !budget.spend(Self::price(content)) {
                self.limited = true;
                waiting.push_back(candidate);
                break;
            }
            let Candidate { at, counter, role } = candidate;
            let opens = |trial: &Trial| trial.role == role && trial.cipher.verify(counter - METADATA, content);
            if self.trials.iter().any(opens) {
                found = Some(Found { at, counter, role });
                break;
            }
        }
        waiting.append(&mut self.candidates);
        self.candidates = waiting;
        found
    }

    /// Step 1.
    fn try_calls(&mut self, budget: &mut Budget) -> Option<Found> {
        let mut waiting = VecDeque::new();
        let mut found = None;
        while let Some(at) = self.calls.pop_front() {
            let Some(content) = self.content(at) else {
                waiting.push_back(at);
                continue;
            };
            if content.len() < TAG_BYTES {
                continue;
            }
            let last = self.greatest(at).min(self.start.least + CALL_COUNTERS - 1);
            let counters = self.start.least..=last;
            let trials = (last + 1).saturating_sub(self.start.least) * self.trials.len() as u64;
            if !budget.spend(trials * Self::price(content)) {
                self.limited = true;
                waiting.push_back(at);
                break;
            }
            found = counters
                .flat_map(|counter| self.trials.iter().map(move |trial| (counter, trial)))
                .find(|(counter, trial)| trial.cipher.verify(counter - METADATA, content))
                .map(|(counter, trial)| Found { at, counter, role: trial.role });
            if found.is_some() {
                break;
            }
        }
        waiting.append(&mut self.calls);
        self.calls = waiting;
        found
    }

    /// Counters that a chunk at this place of the window can have.
    fn possible(&self, at: usize, limits: &Limits) -> u64 {
        let counters = self.greatest(at).saturating_sub(self.start.least).saturating_add(1);
        counters.min(limits.search_counters.min(u64::from(u32::MAX)))
    }

    /// Makes the tables for the first counters. False if the budget does not allow it.
    fn fill_tables(&mut self, budget: &mut Budget, limits: &Limits) -> bool {
        let first = if self.start.span.is_some() { 4096 } else { 256 };
        let wanted = self.possible(self.window.len(), limits).min(first);
        self.size >= wanted || self.extend_tables(wanted, budget, limits)
    }

    /// Makes the tables larger once enough bytes went by in vain. True if they are.
    fn grow_tables(&mut self, budget: &mut Budget, limits: &Limits) -> bool {
        let patience = (2 * self.size).min(64 << 10);
        let wanted = self.possible(self.window.len(), limits).min(4 * self.size);
        self.since_growth >= patience && wanted > self.size && self.extend_tables(wanted, budget, limits)
    }

    /// False if the budget does not allow it.
    fn extend_tables(&mut self, wanted: u64, budget: &mut Budget, limits: &Limits) -> bool {
        let ciphers = self.trials.len().max(1) as u64;
        // A key stream each, and the whole table is sorted again. No step that a full budget could not pay for.
        let payable = (limits.search_units / 2).saturating_sub(self.size / 8) / (ciphers + 1);
        let wanted = wanted.min(self.size.saturating_add(payable));
        if wanted <= self.size {
            return false;
        }
        if !budget.spend((wanted - self.size) * ciphers + wanted / 8) {
            self.limited = true;
            return false;
        }
        // Offsets that were compared already may have one of the new counters.
        if self.possible(self.scanned, limits) > self.size {
            self.scanned = 0;
        }
        self.since_growth = 0;
        for trial in &mut self.trials {
            trial.extend(self.start.least, wanted);
        }
        self.size = wanted;
        true
    }

    /// Step 2.
    fn scan(&mut self, budget: &mut Budget) -> Scan {
        let end = (self.window.len() + 1).saturating_sub(TAG_BYTES + PREFIX_BYTES + 1);
        while self.scanned < end {
            let stop = end.min(self.scanned + STRIDE);
            // A larger table is slower to look up; one offset in a thousand is compared with all of it.
            let offsets = (stop - self.scanned) as u64;
            let price = offsets * (1 + self.size / 65_536) / 2 + self.size / 256;
            if !budget.spend(price * self.trials.len() as u64 + 1) {
                self.limited = true;
                return Scan::Broke;
            }
            let mut ready = false;
            while self.scanned < stop {
                let at = self.scanned;
                // Too near the end to tell: comes again with more bytes.
                let Some(seen) = self.compare(at) else {
                    return if ready { Scan::Candidate } else { Scan::End };
                };
                self.scanned += 1;
                self.since_growth += 1;
                ready |= seen && self.content(at).is_some();
            }
            if ready {
                return Scan::Candidate;
            }
        }
        Scan::End
    }

    /// Compares one offset with the tables. Nothing if more bytes are needed; true if it left a candidate.
    fn compare(&mut self, at: usize) -> Option<bool> {
        let rest = self.window.get(at..)?;
        let length = content_length(rest)?;
        let before = self.candidates.len();
        let greatest = self.greatest(at);
        let least = self.start.least;
        // Plain text of the handshake's chunks: 2 bytes, and 1 byte.
        for (counter, plain) in [(METADATA, 2), (ACK, 1)] {
            if length == TAG_BYTES + plain && (least..=greatest).contains(&counter) {
                let roles: Vec<Role> = self.trials.iter().map(|trial| trial.role).collect();
                self.candidates.extend(roles.into_iter().map(|role| Candidate { at, counter, role }));
            }
        }
        if length >= TAG_BYTES + FRAME_BYTES {
            let head = rest.get(HEAD_BYTES - FRAME_BYTES..HEAD_BYTES)?;
            let cipher_text = head.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let plain = length - TAG_BYTES;
            let alone = (cipher_text >> 16) as u32 ^ (plain - 4) as u32;
            let candidates = &mut self.candidates;
            for trial in &self.trials {
                let mut leave = |distance: u64| {
                    let counter = least + distance;
                    if counter <= greatest {
                        candidates.push_back(Candidate { at, counter, role: trial.role });
                    }
                };
                let first = trial.table.partition_point(|(key, _)| *key < alone);
                trial
                    .table
                    .iter()
                    .skip(first)
                    .take_while(|(key, _)| *key == alone)
                    .for_each(|(_, distance)| leave(u64::from(*distance)));
                if is_full(plain) {
                    (0..)
                        .zip(&trial.heads)
                        .filter(|(_, stream)| begins_long_message(cipher_text ^ **stream, plain))
                        .for_each(|(distance, _)| leave(distance));
                }
            }
        }
        let left = self.candidates.len() > before;
        while self.candidates.len() > MAX_WAITING {
            self.candidates.pop_front();
        }
        Some(left)
    }
}

/// Length and tag (48 bits) of a message that does not fit into so many bytes.
fn begins_long_message(head: u64, plain: usize) -> bool {
    let length = head >> 16;
    length + 4 > plain as u64 && length <= MAX_MESSAGE_BYTES && kind_of_tag(head as u16).is_some()
}
