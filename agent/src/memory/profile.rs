//! Profile of one process: pages by call, and the changes that the aggregator has not acknowledged.
//!
//! ```text
//!   reading ──▶ pages by (node, kind) ──▶ changed since the base
//!                                            │ build_state(): if none is in flight
//!                                            ▼
//!                      keyframe or delta ──▶ in flight ──▶ acknowledged: the base of the next delta
//! ```
//!
//! At most one state is in flight. Changes made meanwhile are part of the next state, so nothing is queued. After an
//! interruption a keyframe restores the complete profile.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::memory::{Health, Kind, MappingKind, Resident, TargetReading};
use chainscope_hygiene::{Escaped, escaped_path};
use chainscope_proto::v1::{
    MemoryAck, MemoryKind, MemoryKindTotals, MemoryMapping, MemoryState, MemoryTarget, MemoryTotals, ReasonCount,
};

use super::{
    dictionary::{Dictionary, TableLengths},
    state_parts::{self, StateHeader},
    tree::Tree,
};
use crate::clock::Clock;

/// Interval between keyframes. A keyframe assigns new ids.
const KEYFRAME_INTERVAL: Duration = Duration::from_secs(300);
/// Least number of nodes in the dictionary at which a keyframe replaces it.
const MIN_NODES: usize = 1 << 16;
/// Interval between states of an unchanged profile.
const RESEND_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of consecutive refusals that are answered with a requested keyframe.
const MAX_REFUSALS: u32 = 3;
/// Maximum length of a mapping's name, in characters.
const MAX_MAPPING_NAME: usize = 512;

/// The process that a profile describes.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) node: Arc<str>,
    /// Display name of the process or its pod.
    pub(super) label: Arc<str>,
    pub(super) pid: u32,
    /// `comm` of the process.
    pub(super) name: String,
}

/// A state that the aggregator has not acknowledged.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    lengths: TableLengths,
    /// Parts not yet returned by [`Profile::next_message`], in reverse order.
    parts: Vec<MemoryState>,
    is_last: bool,
}

/// Kind of the next state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextState {
    Keyframe,
    /// Changes since the state `base`, and dictionary entries after `lengths`.
    Delta {
        base: u64,
        lengths: TableLengths,
    },
}

/// Profile of one process.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) subject: Subject,
    /// Start of the profile in nanoseconds since 1970; unique in this agent process.
    key: u64,
    started_ns: i64,
    /// Pages by node of the probe's tree.
    pages: HashMap<(u32, Kind), u64>,
    changed: HashSet<(u32, Kind)>,
    totals: MemoryTotals,
    time_ns: i64,
    /// Whether a state is to be sent: something changed, or [`RESEND_INTERVAL`] elapsed.
    is_due: bool,
    sent_at: Instant,
    dictionary: Dictionary,
    sequence: u64,
    next: NextState,
    in_flight: Option<InFlight>,
    keyframe_at: Instant,
    /// Length of the dictionary's table of nodes from which on the next state is a keyframe.
    most_nodes: usize,
    /// Time and cause of the end.
    ended: Option<(i64, &'static str)>,
    /// Whether the aggregator refused the profile for the rest of the stream.
    is_refused: bool,
    /// Consecutive refused states.
    refusals: u32,
    /// Whether the final state was acknowledged or refused.
    pub(super) is_finished: bool,
}

impl Profile {
    pub(super) fn new(subject: Subject, key: u64) -> Self {
        let now = Instant::now();
        Self {
            subject,
            key,
            started_ns: 0,
            pages: HashMap::new(),
            changed: HashSet::new(),
            totals: MemoryTotals::default(),
            time_ns: 0,
            is_due: false,
            sent_at: now,
            dictionary: Dictionary::default(),
            sequence: 0,
            next: NextState::Keyframe,
            in_flight: None,
            keyframe_at: now,
            most_nodes: MIN_NODES,
            ended: None,
            is_refused: false,
            refusals: 0,
            is_finished: false,
        }
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether no reading arrived and no state was built.
    pub(super) fn is_unsent(&self) -> bool {
        self.sequence == 0 && self.time_ns == 0
    }

    pub(super) fn totals(&self) -> &MemoryTotals {
        &self.totals
    }

    /// Calls that hold pages.
    pub(super) fn calls(&self) -> impl Iterator<Item = u32> {
        #[expect(clippy::disallowed_methods, reason = "collected into a set")]
        self.pages.keys().map(|(node, _)| *node)
    }

    /// Sets the number of pages of one kind at one node.
    pub(super) fn set_pages(&mut self, node: u32, kind: Kind, pages: u64) {
        let key = (node, kind);
        let before = if pages == 0 { self.pages.remove(&key) } else { self.pages.insert(key, pages) };
        if before.unwrap_or(0) != pages {
            self.changed.insert(key);
            self.is_due = true;
        }
    }

    /// Updates the totals of the process.
    pub(super) fn update_totals(&mut self, reading: &TargetReading, health: &Health, time_ns: i64) {
        self.time_ns = time_ns;
        if self.started_ns == 0 && reading.start_time != 0 {
            self.started_ns = Clock::of_ticks(reading.start_time);
        }
        let totals = totals(reading, health, &self.totals);
        if totals != self.totals || self.sent_at.elapsed() >= RESEND_INTERVAL {
            self.is_due = true;
        }
        self.totals = totals;
    }

    /// Ends the profile. One final state follows.
    pub(super) fn end(&mut self, time_ns: i64, cause: &'static str) {
        if self.ended.is_none() {
            self.ended = Some((time_ns, cause));
            self.is_due = true;
        }
    }

    /// Starts a new stream with a keyframe, since the aggregator may be a different one.
    pub(super) fn begin_stream(&mut self) {
        self.in_flight = None;
        (self.is_refused, self.refusals) = (false, 0);
        self.next = NextState::Keyframe;
        self.is_due = true;
    }

    /// Returns the next message to send, if any.
    pub(super) fn next_message(&mut self, tree: &Tree) -> Option<MemoryState> {
        if self.in_flight.is_none() {
            self.in_flight = self.build_state(tree);
        }
        self.in_flight.as_mut()?.parts.pop()
    }

    fn build_state(&mut self, tree: &Tree) -> Option<InFlight> {
        // There is nothing to send before the first reading.
        if !self.is_due || self.is_refused || self.is_finished || self.time_ns == 0 {
            return None;
        }
        // Calls that hold no pages any more stay in the dictionary until the next keyframe.
        if self.keyframe_at.elapsed() >= KEYFRAME_INTERVAL || self.dictionary.lengths().nodes > self.most_nodes {
            self.next = NextState::Keyframe;
        }
        self.sequence += 1;
        let (base, lengths) = match self.next {
            NextState::Keyframe => {
                // A new dictionary drops entries of code that no longer holds memory.
                self.dictionary = Dictionary::default();
                #[expect(clippy::disallowed_methods, reason = "collected into a set")]
                let held = self.pages.keys().copied().collect();
                self.changed = held;
                self.keyframe_at = Instant::now();
                (0, TableLengths::default())
            }
            NextState::Delta { base, lengths } => (base, lengths),
        };
        let counts = self.take_changes(tree);
        let header = StateHeader {
            node: self.subject.node.to_string(),
            target: self.subject.label.to_string(),
            profile: self.key,
            sequence: self.sequence,
            base,
            time_ns: self.time_ns,
        };
        let mut parts =
            state_parts::parts(header, &self.dictionary, lengths, &counts, self.process(), self.totals.clone());
        parts.reverse();
        self.is_due = false;
        self.sent_at = Instant::now();
        let (sequence, lengths) = (self.sequence, self.dictionary.lengths());
        if base == 0 {
            self.most_nodes = lengths.nodes.saturating_mul(2).max(MIN_NODES);
        }
        Some(InFlight { sequence, lengths, parts, is_last: self.ended.is_some() })
    }

    /// Takes the changed counts by kind. Pages of calls that are not in the tree are attributed to the root.
    fn take_changes(&mut self, tree: &Tree) -> Vec<state_parts::Counts> {
        let mut changed: Vec<(u32, Kind)> = std::mem::take(&mut self.changed).into_iter().collect();
        changed.sort_unstable_by_key(|(node, _)| *node);
        Kind::ALL
            .into_iter()
            .map(|kind| {
                let of_kind = changed.iter().filter(|(_, of)| *of == kind);
                let pages_at = |node: u32| self.pages.get(&(node, kind)).copied().unwrap_or(0);
                let mut counts = Vec::new();
                let mut has_unknown = false;
                for (node, _) in of_kind {
                    match self.dictionary.node(tree, *node) {
                        0 => has_unknown = true,
                        id => counts.push((id, *node)),
                    }
                }
                counts.sort_unstable();
                counts.dedup_by_key(|(id, _)| *id);
                let mut counts: Vec<(u32, u64)> = counts
                    .into_iter()
                    .map(|(id, node)| match self.dictionary.shared(id) {
                        Some(all) => (id, all.iter().map(|node| pages_at(*node)).sum()),
                        None => (id, pages_at(node)),
                    })
                    .collect();
                if has_unknown {
                    #[expect(clippy::disallowed_methods, reason = "summed")]
                    let unknown = self.pages.iter().filter(|((node, of), _)| *of == kind && tree.call(*node).is_none());
                    counts.push((0, unknown.map(|(_, pages)| pages).sum()));
                }
                (to_proto(kind), counts)
            })
            .filter(|(_, counts): &state_parts::Counts| !counts.is_empty())
            .collect()
    }

    fn process(&self) -> MemoryTarget {
        MemoryTarget {
            pid: self.subject.pid,
            name: Escaped(&self.subject.name).to_string(),
            started_ns: self.started_ns,
            ended_ns: self.ended.map_or(0, |(time, _)| time),
            ended_by: self.ended.map_or_else(String::new, |(_, by)| by.to_owned()),
        }
    }

    /// Applies an acknowledgement or refusal by the aggregator.
    pub(super) fn acknowledge(&mut self, ack: &MemoryAck) {
        let is_refused = !ack.refused.is_empty();
        let acknowledged = self.in_flight.take_if(|state| is_refused || ack.sequence >= state.sequence);
        self.refusals = if is_refused { self.refusals + 1 } else { 0 };
        if ack.keyframe_wanted && self.refusals < MAX_REFUSALS {
            self.in_flight = None;
            self.next = NextState::Keyframe;
            self.is_due = true;
            return;
        }
        if is_refused {
            chainscope_hygiene::warn_limited!(
                node = %self.subject.node,
                reason = %chainscope_hygiene::EscapedTruncated(&ack.refused),
                "the aggregator does not take this memory profile"
            );
            self.is_refused = true;
            // A refused profile of an ended process has no further states.
            self.is_finished = self.ended.is_some();
            return;
        }
        let Some(state) = acknowledged else { return };
        self.next = NextState::Delta { base: state.sequence, lengths: state.lengths };
        self.is_finished = state.is_last;
    }

    /// Returns whether no state is due or in flight.
    pub(super) fn is_settled(&self) -> bool {
        self.is_finished || self.is_refused || (!self.is_due && self.in_flight.is_none())
    }
}

fn totals(reading: &TargetReading, health: &Health, before: &MemoryTotals) -> MemoryTotals {
    let Resident { anon, file, shmem, swap } = reading.control;
    let [attributed_anon, attributed_cache, attributed_kernel] = reading.attributed;
    let resident = reading.before_attach;
    let kind = |kind: Kind, attributed, before_attach, unattributed| MemoryKindTotals {
        kind: to_proto(kind).into(),
        before_attach,
        unattributed,
        attributed,
    };
    let at_attach = if before.at_attach.is_empty() { mappings(reading) } else { before.at_attach.clone() };
    let reason = |(reason, count): (&str, u64)| ReasonCount { reason: reason.to_owned(), count };
    MemoryTotals {
        control_anon: anon,
        control_file: file,
        control_shmem: shmem,
        control_swap: swap,
        kinds: vec![
            kind(Kind::Anonymous, attributed_anon, resident.anon, reading.unattributed()),
            kind(Kind::Cache, attributed_cache, resident.file + resident.shmem, 0),
            kind(Kind::Kernel, attributed_kernel, 0, 0),
        ],
        at_attach,
        stacks: reading.stacks.iter().map(|(end, count)| reason((end.name(), *count))).collect(),
        lost: health.lost.iter().copied().map(reason).collect(),
        before_now: remaining(reading),
    }
}

/// Splits resident memory at attach by mapping; private pages and file pages are listed separately.
fn mappings(reading: &TargetReading) -> Vec<MemoryMapping> {
    let mut all = Vec::new();
    for share in &reading.at_attach {
        let name = name_of(&share.mapping);
        for (kind, pages) in
            [(MemoryKind::Anon, share.anon), (MemoryKind::Cache, share.resident.saturating_sub(share.anon))]
        {
            if pages > 0 {
                all.push(MemoryMapping { kind: kind.into(), mapping: name.clone(), pages });
            }
        }
    }
    all
}

/// Remaining pages from before the attach, where they are tracked page by page.
fn remaining(reading: &TargetReading) -> Vec<MemoryMapping> {
    let kind = MemoryKind::Anon.into();
    let exact = reading.before_exact.iter().flatten();
    exact.map(|(mapping, pages)| MemoryMapping { kind, mapping: name_of(mapping), pages: *pages }).collect()
}

fn name_of(mapping: &MappingKind) -> String {
    let name = match mapping {
        MappingKind::Heap => "[heap]".to_owned(),
        MappingKind::Stack => "[stack]".to_owned(),
        MappingKind::Anonymous => "[anon]".to_owned(),
        MappingKind::File(path) => escaped_path(path),
        MappingKind::Other(name) => Escaped(name).to_string(),
    };
    name.chars().take(MAX_MAPPING_NAME).collect()
}

pub(super) fn to_proto(kind: Kind) -> MemoryKind {
    match kind {
        Kind::Anonymous => MemoryKind::Anon,
        Kind::Cache => MemoryKind::Cache,
        Kind::Kernel => MemoryKind::Kernel,
    }
}
