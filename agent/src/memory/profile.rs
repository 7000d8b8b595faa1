//! One process's profile: what is counted where, and what of it the aggregator does not have yet.
//!
//! ```text
//!   reading ──▶ pages by (node, kind) ──▶ changed since the base
//!                                            │ state(): while none is on its way
//!                                            ▼
//!                      keyframe or delta ──▶ on its way ──▶ acknowledged: the base of the next
//! ```
//!
//! One state at a time is on its way. What changes meanwhile is in the next; nothing is queued, and nothing is lost by an
//! aggregator that is away: after it a keyframe holds what is.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::memory::{Health, Kind, MappingKind, Resident, TargetReading};
use chainscope_hygiene::Escaped;
use chainscope_proto::v1::{
    MemoryAck, MemoryKind, MemoryKindTotals, MemoryMapping, MemoryState, MemoryTarget, MemoryTotals, ReasonCount,
};

use super::{
    dictionary::{Dictionary, Mark},
    parts::{self, Head},
    tree::Tree,
};
use crate::clock::Clock;

/// How often a profile is sent whole, with new numbers.
const KEYFRAME_EVERY: Duration = Duration::from_secs(300);
/// How often a profile is sent of which nothing changed.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// States in a row that an aggregator may refuse and ask for another.
const MAX_REFUSALS: u32 = 3;
/// Longest name of a mapping, in characters.
const MAX_MAPPING: usize = 512;

/// Whom a profile is of.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) node: Arc<str>,
    /// The process or its pod, for people.
    pub(super) label: Arc<str>,
    pub(super) pid: u32,
    /// `comm`.
    pub(super) name: String,
}

/// A state that the aggregator has not acknowledged.
#[derive(Debug)]
struct OnItsWay {
    sequence: u64,
    mark: Mark,
    /// Parts that are not handed over yet, last first.
    parts: Vec<MemoryState>,
    is_last: bool,
}

/// What the next state is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Keyframe,
    /// Everything that changed after this state, and what of the dictionary was there.
    Delta {
        base: u64,
        mark: Mark,
    },
}

/// A profile.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) subject: Subject,
    /// Nanoseconds since 1970 of its beginning; unique in this process.
    key: u64,
    started_ns: i64,
    /// Pages by node of the probe's tree.
    pages: HashMap<(u32, Kind), u64>,
    changed: HashSet<(u32, Kind)>,
    totals: MemoryTotals,
    time_ns: i64,
    /// Something changed, or it is time again.
    is_due: bool,
    told: Instant,
    dictionary: Dictionary,
    sequence: u64,
    next: Next,
    on_its_way: Option<OnItsWay>,
    keyframe: Instant,
    /// When it ended, and how.
    ended: Option<(i64, &'static str)>,
    /// The aggregator wants no more of it in this stream.
    is_refused: bool,
    /// States in a row that were not taken.
    refusals: u32,
    /// Its last state was acknowledged.
    pub(super) is_over: bool,
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
            told: now,
            dictionary: Dictionary::default(),
            sequence: 0,
            next: Next::Keyframe,
            on_its_way: None,
            keyframe: now,
            ended: None,
            is_refused: false,
            refusals: 0,
            is_over: false,
        }
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// No state of it was ever made.
    pub(super) fn is_untold(&self) -> bool {
        self.sequence == 0 && self.time_ns == 0
    }

    pub(super) fn totals(&self) -> &MemoryTotals {
        &self.totals
    }

    /// Pages of one kind at one node, as they are now.
    pub(super) fn count(&mut self, node: u32, kind: Kind, pages: u64) {
        let place = (node, kind);
        let before = if pages == 0 { self.pages.remove(&place) } else { self.pages.insert(place, pages) };
        if before.unwrap_or(0) != pages {
            self.changed.insert(place);
            self.is_due = true;
        }
    }

    /// The process as a whole.
    pub(super) fn read(&mut self, reading: &TargetReading, health: &Health, time_ns: i64) {
        self.time_ns = time_ns;
        if self.started_ns == 0 && reading.start_time != 0 {
            self.started_ns = Clock::of_ticks(reading.start_time);
        }
        let totals = totals(reading, health, &self.totals);
        if totals != self.totals || self.told.elapsed() >= TELL_EVERY {
            self.is_due = true;
        }
        self.totals = totals;
    }

    /// The process is no longer observed: one more state, the last.
    pub(super) fn end(&mut self, time_ns: i64, by: &'static str) {
        if self.ended.is_none() {
            self.ended = Some((time_ns, by));
            self.is_due = true;
        }
    }

    /// A new stream: the aggregator may be another one.
    pub(super) fn begin_stream(&mut self) {
        self.on_its_way = None;
        (self.is_refused, self.refusals) = (false, 0);
        self.next = Next::Keyframe;
        self.is_due = true;
    }

    /// The next message for the aggregator, if there is one to be sent now.
    pub(super) fn message(&mut self, tree: &Tree) -> Option<MemoryState> {
        if self.on_its_way.is_none() {
            self.on_its_way = self.state(tree);
        }
        self.on_its_way.as_mut()?.parts.pop()
    }

    fn state(&mut self, tree: &Tree) -> Option<OnItsWay> {
        // Before its first reading there is nothing to tell.
        if !self.is_due || self.is_refused || self.is_over || self.time_ns == 0 {
            return None;
        }
        if self.keyframe.elapsed() >= KEYFRAME_EVERY {
            self.next = Next::Keyframe;
        }
        self.sequence += 1;
        let (base, mark) = match self.next {
            Next::Keyframe => {
                // Code in which nothing is held any more is left behind.
                self.dictionary = Dictionary::default();
                self.changed = self.pages.keys().copied().collect();
                self.keyframe = Instant::now();
                (0, Mark::default())
            }
            Next::Delta { base, mark } => (base, mark),
        };
        let counts = self.take_changed(tree);
        let head = Head {
            node: self.subject.node.to_string(),
            target: self.subject.label.to_string(),
            profile: self.key,
            sequence: self.sequence,
            base,
            time_ns: self.time_ns,
        };
        let mut parts = parts::parts(head, &self.dictionary, mark, &counts, self.process(), self.totals.clone());
        parts.reverse();
        self.is_due = false;
        self.told = Instant::now();
        let (sequence, mark) = (self.sequence, self.dictionary.mark());
        Some(OnItsWay { sequence, mark, parts, is_last: self.ended.is_some() })
    }

    /// What changed, by kind. Pages of calls that the tree does not have are the root's.
    fn take_changed(&mut self, tree: &Tree) -> Vec<parts::Counts> {
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
                    let unknown = self.pages.iter().filter(|((node, of), _)| *of == kind && tree.call(*node).is_none());
                    counts.push((0, unknown.map(|(_, pages)| pages).sum()));
                }
                (wire(kind), counts)
            })
            .filter(|(_, counts): &parts::Counts| !counts.is_empty())
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

    /// The aggregator's word on a state.
    pub(super) fn acknowledge(&mut self, ack: &MemoryAck) {
        let is_refused = !ack.refused.is_empty();
        let answered = self.on_its_way.take_if(|state| is_refused || ack.sequence >= state.sequence);
        self.refusals = if is_refused { self.refusals + 1 } else { 0 };
        if ack.keyframe_wanted && self.refusals < MAX_REFUSALS {
            self.on_its_way = None;
            self.next = Next::Keyframe;
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
            // Of a process that ended there is nothing to say any more.
            self.is_over = self.ended.is_some();
            return;
        }
        let Some(state) = answered else { return };
        self.next = Next::Delta { base: state.sequence, mark: state.mark };
        self.is_over = state.is_last;
    }

    /// Nothing is to be sent, and nothing is on its way.
    pub(super) fn is_settled(&self) -> bool {
        self.is_over || self.is_refused || (!self.is_due && self.on_its_way.is_none())
    }
}

fn totals(reading: &TargetReading, health: &Health, before: &MemoryTotals) -> MemoryTotals {
    let Resident { anon, file, shmem, swap } = reading.control;
    let [attributed_anon, attributed_cache, attributed_kernel] = reading.attributed;
    let resident = reading.before_attach;
    let kind = |kind: Kind, attributed, before_attach, unattributed| MemoryKindTotals {
        kind: wire(kind).into(),
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
        before_now: left(reading),
    }
}

/// The split at attach: a mapping's private pages and those of its file apart.
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

/// What is left of that, where it is known page by page.
fn left(reading: &TargetReading) -> Vec<MemoryMapping> {
    let kind = MemoryKind::Anon.into();
    let exact = reading.before_exact.iter().flatten();
    exact.map(|(mapping, pages)| MemoryMapping { kind, mapping: name_of(mapping), pages: *pages }).collect()
}

fn name_of(mapping: &MappingKind) -> String {
    let name = match mapping {
        MappingKind::Heap => "[heap]".to_owned(),
        MappingKind::Stack => "[stack]".to_owned(),
        MappingKind::Anonymous => "[anon]".to_owned(),
        MappingKind::File(path) => Escaped(&path.to_string_lossy()).to_string(),
        MappingKind::Other(name) => Escaped(name).to_string(),
    };
    name.chars().take(MAX_MAPPING).collect()
}

pub(super) fn wire(kind: Kind) -> MemoryKind {
    match kind {
        Kind::Anonymous => MemoryKind::Anon,
        Kind::Cache => MemoryKind::Cache,
        Kind::Kernel => MemoryKind::Kernel,
    }
}
