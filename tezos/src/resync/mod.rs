//! Resynchronisation: finds the next chunk of a direction after a hole, by trial decryption.
//!
//! Keys and base nonce are known; the position in the stream and the chunk's counter are not. An authentic tag is proof
//! (2^-128), but costs a pass over the whole chunk, so it is checked last:
//!
//! 1. A chunk that begins with a read or write call is authenticated with the first [`CALL_COUNTERS`] counters
//!    (`try_calls`).
//! 2. At every offset, the 6 bytes of cipher text at the position of a message's length and tag are compared with the
//!    key streams of all counters in range (`scan`). A message that is alone in its chunk has the chunk's length less
//!    20, so its key stream is known and looked up in a sorted table: the cost of an offset hardly depends on the
//!    number of counters. The first chunk of a long message has the length of a full chunk; these few offsets are
//!    compared with every counter.
//! 3. Matches are candidates. Once the rest of its bytes is captured, a candidate is authenticated
//!    (`verify_candidates`).
//!
//! A chunk in the middle of a message is found by step 1 only; the message it belongs to is lost in any case.
//!
//! A peer has the key of its session, so the cipher text of one of its chunks may contain other chunks that authenticate,
//! with greater counters. If step 2 finds one of those, the chunks found from it on ([`Run`]) end where the real one ends.
//! The next search then tries the counters of the earlier one again, besides those after the run. This also holds for a
//! hole of a few bytes: bytes that the peer sends out of band are counted as missing, but no chunk lacks them.
//!
//! If the length of the hole is known, the minimum length of a chunk (18 bytes) bounds the counters. Otherwise the
//! range starts small and grows while bytes arrive without success. Memory and processing are bounded by [`Limits`];
//! work beyond the budget is postponed.
mod budget;
mod key_stream;
mod scan;

use std::{collections::VecDeque, ops::Range};

pub(crate) use budget::Budget;
use key_stream::{COUNTER_BYTES, KeyStreamTable};
use scan::ScanResult;

use crate::{
    cipher::{Cipher, TAG_BYTES},
    framer::{MAX_CHUNK_BYTES, PREFIX_BYTES, content_length},
    input::Role,
    limits::Limits,
    memory::{Buffer, MemoryBudget, Reservation, Share},
    reassembly::METADATA,
};

/// Minimum length of a chunk: length prefix and tag.
const MIN_CHUNK_BYTES: u64 = (PREFIX_BYTES + TAG_BYTES) as u64;
/// Number of counters tried at the start of a call.
const CALL_COUNTERS: u64 = 32;
/// Number of counters of an earlier search that are tried again after a run that may be forged.
const EARLIER_COUNTERS: u64 = 64;
/// Number of those that are tried at the start of a call.
const EARLIER_CALL_COUNTERS: u64 = 4;
/// Maximum number of call starts, and of candidates, that wait for more bytes.
const MAX_WAITING: usize = 64;

/// A position of the window that may be a chunk with this counter.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: usize,
    counter: u64,
    role: Role,
}

/// An authenticated chunk: its position in the window, its counter, and the role whose cipher authenticated it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncPoint {
    pub(crate) at: usize,
    pub(crate) counter: u64,
    pub(crate) role: Role,
}

/// Chunks without a hole from a sync point on that may lie in one real chunk, hence may be forged.
#[derive(Debug)]
pub(crate) struct Run {
    /// Minimum counter of the search that found the sync point.
    min_counter: u64,
    /// Length of the chunks on the wire.
    bytes: usize,
}

impl Run {
    /// The run with the next chunk, of this length; `None` if it is longer than a chunk then.
    pub(crate) fn followed_by(self, bytes: usize) -> Option<Self> {
        let bytes = self.bytes + bytes;
        (bytes <= MAX_CHUNK_BYTES).then_some(Self { bytes, ..self })
    }
}

/// What is known where a search begins. The reference is the last known chunk boundary of the stream.
#[derive(Clone, Debug)]
pub(crate) struct ResyncStart {
    /// Counter of the chunk that begins at the reference, or first after it.
    reference_counter: u64,
    /// Minimum counter of the chunk to find.
    min_counter: u64,
    /// Number of bytes from the reference to the next byte of the window; `None` if the length of the loss is unknown.
    distance: Option<u64>,
    /// Counters below the minimum that the chunk has if the chunks before the reference are forged.
    earlier: Range<u64>,
}

impl ResyncStart {
    /// The reference is the start of a chunk, and this number of bytes after it are missing.
    pub(crate) fn after_loss(reference_counter: u64, distance: u64) -> Self {
        // The chunk at the reference may be whole: bytes sent out of band are counted as missing, too.
        let min_counter = reference_counter + distance / MAX_CHUNK_BYTES as u64;
        Self { reference_counter, min_counter, distance: Some(distance), earlier: 0..0 }
    }

    /// The number of missing bytes is unknown.
    pub(crate) fn unknown(reference_counter: u64) -> Self {
        Self { reference_counter, min_counter: reference_counter, distance: None, earlier: 0..0 }
    }

    /// The reference is the end of this run.
    pub(crate) fn after_run(self, run: Option<&Run>) -> Self {
        let earlier =
            run.map_or(0..0, |run| run.min_counter..(run.min_counter + EARLIER_COUNTERS).min(self.min_counter));
        Self { earlier, ..self }
    }

    /// Number of counters below the minimum that are tried.
    fn earlier_counters(&self) -> u64 {
        self.earlier.end.saturating_sub(self.earlier.start)
    }

    /// Counter at this index of a table: the earlier ones come first.
    fn counter(&self, index: u64) -> u64 {
        match index.checked_sub(self.earlier_counters()) {
            Some(distance) => self.min_counter + distance,
            None => self.earlier.start + index,
        }
    }
}

/// A search for the next chunk of a direction.
#[derive(Debug)]
pub(crate) struct Resync {
    start: ResyncStart,
    /// One table for each role that the local node may have.
    tables: Vec<KeyStreamTable>,
    /// Number of counters in the tables.
    table_size: u64,
    tables_memory: Reservation,
    /// Contiguous bytes that are searched.
    window: Buffer,
    /// Positions of the window before this one were compared with the tables.
    scanned: usize,
    /// Positions of the window before this one were compared with the chunks of the handshake.
    scanned_ahead: usize,
    /// Number of positions compared since the tables grew.
    scanned_since_growth: u64,
    /// Positions of call starts that are not tried yet.
    calls: VecDeque<usize>,
    candidates: VecDeque<Candidate>,
    /// Whether work was postponed because the budget was exhausted.
    pub(crate) budget_exhausted: bool,
}

impl Resync {
    /// Starts a search with the ciphers of the direction.
    pub(crate) fn new(start: ResyncStart, ciphers: &[(Role, Cipher)], memory: &MemoryBudget) -> Self {
        Self {
            // The chunk with counter 0 is not encrypted.
            start: ResyncStart { min_counter: start.min_counter.max(METADATA), ..start },
            tables: ciphers.iter().map(|(role, cipher)| KeyStreamTable::new(*role, cipher)).collect(),
            table_size: 0,
            tables_memory: memory.reservation(Share::Whole),
            calls: VecDeque::new(),
            window: Buffer::new(memory, Share::Whole, 0),
            scanned: 0,
            scanned_ahead: 0,
            scanned_since_growth: 0,
            candidates: VecDeque::new(),
            budget_exhausted: false,
        }
    }

    /// The run that begins where the search has found a chunk.
    pub(crate) fn new_run(&self) -> Run {
        let min_counter = if self.start.earlier.is_empty() { self.start.min_counter } else { self.start.earlier.start };
        Run { min_counter, bytes: 0 }
    }

    /// Number of buffered bytes.
    pub(crate) fn window_bytes(&self) -> usize {
        self.window.len()
    }

    /// Takes the buffered bytes.
    pub(crate) fn take_window(&mut self) -> Vec<u8> {
        self.window.take()
    }

    /// Keeps the tables and candidates of this role only.
    pub(crate) fn set_role(&mut self, role: Role) {
        self.tables.retain(|table| table.role == role);
        self.candidates.retain(|candidate| candidate.role == role);
        self.tables_memory.resize(self.tables_bytes(self.table_size));
    }

    /// Number of bytes of tables with this number of counters.
    fn tables_bytes(&self, counters: u64) -> usize {
        usize::try_from(counters).unwrap_or(usize::MAX).saturating_mul(self.tables.len() * COUNTER_BYTES)
    }

    /// Handles `length` missing bytes: drops the window. Returns the number of dropped bytes.
    pub(crate) fn lose_bytes(&mut self, length: u64) -> u64 {
        let dropped = self.window.take().len() as u64;
        self.start.distance =
            self.start.distance.map(|distance| distance.saturating_add(dropped).saturating_add(length));
        (self.scanned, self.scanned_ahead) = (0, 0);
        self.calls.clear();
        self.candidates.clear();
        dropped
    }

    /// Adds the stream's next bytes to the window, whose first byte is tried as the start of a call is. Returns false, and
    /// adds none, if the memory budget is exhausted.
    pub(crate) fn push(&mut self, bytes: &[u8], call_start: bool) -> bool {
        let at = self.window.len();
        let is_buffered = self.window.extend(bytes, usize::MAX);
        if is_buffered && (call_start || at == 0) && self.calls.len() < MAX_WAITING {
            self.calls.push_back(at);
        }
        is_buffered
    }

    /// Adds a chunk that could not be decrypted to the empty window: if only its content is damaged, the next chunk
    /// follows it. After chunks that may be forged it may have an earlier counter itself.
    pub(crate) fn push_broken(&mut self, chunk: &[u8]) -> bool {
        let is_buffered = self.window.extend(chunk, usize::MAX);
        if is_buffered {
            if !self.start.earlier.is_empty() {
                self.calls.push_back(0);
            }
            self.calls.push_back(self.window.len());
        }
        is_buffered
    }

    /// Continues the search as far as window and budget allow.
    pub(crate) fn run(&mut self, budget: &mut Budget, limits: &Limits) -> Option<SyncPoint> {
        loop {
            if let Some(found) = self.verify_candidates(budget).or_else(|| self.try_calls(budget)) {
                return Some(found);
            }
            if !self.fill_tables(budget, limits) {
                return None;
            }
            match self.scan(budget) {
                ScanResult::Candidate => {}
                ScanResult::EndOfWindow if self.grow_tables(budget, limits) => {}
                ScanResult::EndOfWindow | ScanResult::BudgetExhausted => return None,
            }
        }
    }

    /// Cuts the window to its limit. Returns the number of dropped bytes.
    pub(crate) fn trim(&mut self, limits: &Limits) -> u64 {
        let limit = limits.resync_window_bytes.max(2 * MAX_CHUNK_BYTES);
        if self.window.len() <= limit {
            return 0;
        }
        // A chunk in the first half of the window is followed by enough bytes to have been authenticated.
        let cut = self.window.len() - limit / 2;
        self.window.remove_first(cut);
        self.start.distance = self.start.distance.map(|distance| distance + cut as u64);
        self.scanned = self.scanned.saturating_sub(cut);
        self.scanned_ahead = self.scanned_ahead.saturating_sub(cut);
        self.calls = self.calls.iter().filter_map(|at| at.checked_sub(cut)).collect();
        self.candidates = self
            .candidates
            .iter()
            .filter_map(|candidate| Some(Candidate { at: candidate.at.checked_sub(cut)?, ..*candidate }))
            .collect();
        cut as u64
    }

    /// Maximum counter of a chunk at this position of the window.
    fn max_counter(&self, at: usize) -> u64 {
        self.start.distance.map_or(u64::MAX, |distance| {
            self.start.reference_counter.saturating_add(distance.saturating_add(at as u64) / MIN_CHUNK_BYTES)
        })
    }

    /// Content of the chunk at this position of the window, if it is complete.
    fn content(&self, at: usize) -> Option<&[u8]> {
        let rest = self.window.get(at..)?;
        rest.get(PREFIX_BYTES..PREFIX_BYTES + content_length(rest)?)
    }

    /// Budget units for the authentication of a chunk.
    fn verify_cost(content: &[u8]) -> u64 {
        1 + content.len() as u64 / 256
    }

    /// Step 3: authenticates the candidates whose bytes are complete.
    fn verify_candidates(&mut self, budget: &mut Budget) -> Option<SyncPoint> {
        let mut waiting = VecDeque::new();
        let mut found = None;
        while let Some(candidate) = self.candidates.pop_front() {
            let Some(content) = self.content(candidate.at) else {
                waiting.push_back(candidate);
                continue;
            };
            if !budget.spend(Self::verify_cost(content)) {
                self.budget_exhausted = true;
                waiting.push_back(candidate);
                break;
            }
            let Candidate { at, counter, role } = candidate;
            if self.tables.iter().any(|table| table.role == role && table.verify(counter, content)) {
                found = Some(SyncPoint { at, counter, role });
                break;
            }
        }
        waiting.append(&mut self.candidates);
        self.candidates = waiting;
        found
    }

    /// Step 1: authenticates the chunks at call starts whose bytes are complete.
    fn try_calls(&mut self, budget: &mut Budget) -> Option<SyncPoint> {
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
            let end = self.max_counter(at).saturating_add(1);
            let counters =
                [(self.start.earlier.clone(), EARLIER_CALL_COUNTERS), (self.start.min_counter..end, CALL_COUNTERS)]
                    .map(|(range, count)| range.start..range.end.min(range.start + count));
            let trials = counters.iter().map(|range| range.end.saturating_sub(range.start)).sum::<u64>()
                * self.tables.len() as u64;
            if !budget.spend(trials * Self::verify_cost(content)) {
                self.budget_exhausted = true;
                waiting.push_back(at);
                break;
            }
            found = counters
                .into_iter()
                .flatten()
                .flat_map(|counter| self.tables.iter().map(move |table| (counter, table)))
                .find(|(counter, table)| table.verify(*counter, content))
                .map(|(counter, table)| SyncPoint { at, counter, role: table.role });
            if found.is_some() {
                break;
            }
        }
        waiting.append(&mut self.calls);
        self.calls = waiting;
        found
    }
}
