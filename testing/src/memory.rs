//! A simulated agent that builds the memory states of a process from named stacks.

use std::collections::HashMap;

use chainscope_proto::v1::{
    FunctionCategory, MemoryCounts, MemoryFrame, MemoryKind, MemoryKindTotals, MemoryState, MemoryTarget, MemoryTotals,
};

/// A frame in its displayed form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameName {
    /// File offset.
    pub offset: u64,
    /// File name; empty: unresolved.
    pub executable: String,
    /// Function name; `None` without a symbol.
    pub function: Option<String>,
    /// Category of the code's owner.
    pub category: FunctionCategory,
    /// Whether the function is inlined into the next outer frame.
    pub inlined: bool,
}

impl FrameName {
    /// A Rust function of the node's executable at `offset`.
    #[must_use]
    pub fn own(function: &str, offset: u64) -> Self {
        Self {
            offset,
            executable: "light-node".to_owned(),
            function: Some(function.to_owned()),
            category: FunctionCategory::NodeRust,
            inlined: false,
        }
    }

    /// A function of a library.
    #[must_use]
    pub fn library(executable: &str, function: Option<&str>, offset: u64) -> Self {
        Self {
            offset,
            executable: executable.to_owned(),
            function: function.map(str::to_owned),
            category: FunctionCategory::SystemLib,
            inlined: false,
        }
    }
}

/// The agent's state of one process; emits the messages that an agent would send.
#[derive(Debug)]
pub struct Recorder {
    /// Node name in the emitted states.
    pub node: String,
    /// Target name in the emitted states.
    pub target: String,
    /// Profile number in the emitted states.
    pub profile: u64,
    /// Timestamp of the emitted states, ns.
    pub time_ns: i64,
    /// Process in the emitted states.
    pub process: MemoryTarget,
    /// Pages resident before the attach, by kind.
    pub before_attach: [u64; 3],
    /// Unattributed pages, by kind.
    pub unattributed: [i64; 3],
    /// Sequence number of the last emitted state.
    pub sequence: u64,
    strings: Column<String>,
    frames: Column<MemoryFrame>,
    nodes: Column<(u32, u32)>,
    known_strings: HashMap<String, u32>,
    known_frames: HashMap<FrameName, u32>,
    known_nodes: HashMap<(u32, u32), u32>,
    /// By node: pages by kind, and the sequence number of the state in which they last changed.
    counts: Vec<([u64; 3], u64)>,
}

/// Entries with the sequence number of the first state that contains them; entry 0 is never sent.
#[derive(Debug)]
struct Column<T>(Vec<(u64, T)>);

impl<T: Clone> Column<T> {
    fn after(&self, base: u64) -> (u32, Vec<T>) {
        let first = self.0.iter().skip(1).take_while(|(sequence, _)| *sequence <= base).count() + 1;
        let fresh: Vec<T> = self.0.iter().skip(first).map(|(_, entry)| entry.clone()).collect();
        (u32::try_from(first).expect("few entries"), fresh)
    }

    fn push(&mut self, sequence: u64, entry: T) -> u32 {
        self.0.push((sequence, entry));
        u32::try_from(self.0.len() - 1).expect("few entries")
    }
}

impl Recorder {
    /// Creates the state of a running process without attributed pages.
    #[must_use]
    pub fn new(node: &str, pid: u32, profile: u64) -> Self {
        Self {
            node: node.to_owned(),
            target: format!("pid {pid}"),
            profile,
            time_ns: i64::try_from(profile).unwrap_or(i64::MAX),
            process: MemoryTarget { pid, name: "light-node".to_owned(), started_ns: 1, ..MemoryTarget::default() },
            before_attach: [0; 3],
            unattributed: [0; 3],
            sequence: 0,
            strings: Column(vec![(0, String::new())]),
            frames: Column(vec![(0, MemoryFrame::default())]),
            nodes: Column(vec![(0, (0, 0))]),
            known_strings: HashMap::from([(String::new(), 0)]),
            known_frames: HashMap::new(),
            known_nodes: HashMap::new(),
            counts: vec![([0; 3], 0)],
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(id) = self.known_strings.get(text) {
            return *id;
        }
        let id = self.strings.push(self.sequence + 1, text.to_owned());
        self.known_strings.insert(text.to_owned(), id);
        id
    }

    fn frame(&mut self, name: &FrameName) -> u32 {
        if let Some(id) = self.known_frames.get(name) {
            return *id;
        }
        let frame = MemoryFrame {
            offset: name.offset,
            executable: self.string(&name.executable),
            function: name.function.as_deref().map_or(0, |text| self.string(text)),
            category: name.category.into(),
            inlined: name.inlined,
            deleted: false,
        };
        let id = self.frames.push(self.sequence + 1, frame);
        self.known_frames.insert(name.clone(), id);
        id
    }

    /// Sets the pages of a stack (outermost frame first) by kind (anonymous, cache, kernel).
    pub fn hold(&mut self, stack: &[FrameName], pages: [u64; 3]) {
        let mut node = 0;
        for name in stack {
            let frame = self.frame(name);
            let place = (node, frame);
            node = match self.known_nodes.get(&place) {
                Some(node) => *node,
                None => {
                    let node = self.nodes.push(self.sequence + 1, place);
                    self.known_nodes.insert(place, node);
                    self.counts.push(([0; 3], 0));
                    node
                }
            };
        }
        let entry = self.counts.get_mut(node as usize).expect("every node has one");
        if entry.0 != pages {
            *entry = (pages, self.sequence + 1);
        }
    }

    /// Emits a full state.
    pub fn keyframe(&mut self) -> MemoryState {
        self.state(0)
    }

    /// Emits the changes since the state `base`.
    ///
    /// # Panics
    /// If no state `base` was emitted.
    pub fn delta(&mut self, base: u64) -> MemoryState {
        assert!(base > 0 && base <= self.sequence, "a delta of a state that was sent");
        self.state(base)
    }

    fn state(&mut self, base: u64) -> MemoryState {
        self.sequence += 1;
        let (first_string, strings) = self.strings.after(base);
        let (first_frame, frames) = self.frames.after(base);
        let (first_node, nodes) = self.nodes.after(base);
        let kinds = [MemoryKind::Anon, MemoryKind::Cache, MemoryKind::Kernel];
        let counts = kinds.into_iter().enumerate().map(|(at, kind)| {
            let mut counts = MemoryCounts { kind: kind.into(), ..MemoryCounts::default() };
            for (node, (pages, changed)) in (0..).zip(&self.counts) {
                if *changed > base && (base > 0 || pages[at] > 0) {
                    counts.nodes.push(node);
                    counts.pages.push(pages[at]);
                }
            }
            counts
        });
        let attributed = |at: usize| self.counts.iter().map(|(pages, _)| pages[at]).sum();
        let totals = kinds.into_iter().enumerate().map(|(at, kind)| MemoryKindTotals {
            kind: kind.into(),
            before_attach: self.before_attach[at],
            unattributed: self.unattributed[at],
            attributed: attributed(at),
        });
        let control_anon = attributed(0) + self.before_attach[0];
        MemoryState {
            node: self.node.clone(),
            target: self.target.clone(),
            profile: self.profile,
            sequence: self.sequence,
            base,
            time_ns: self.time_ns,
            page_bytes: 4096,
            process: Some(self.process.clone()),
            totals: Some(MemoryTotals {
                control_anon: control_anon.saturating_add_signed(self.unattributed[0]),
                kinds: totals.collect(),
                ..MemoryTotals::default()
            }),
            first_string,
            strings,
            first_frame,
            frames,
            first_node,
            node_parents: nodes.iter().map(|(parent, _)| *parent).collect(),
            node_frames: nodes.iter().map(|(_, frame)| *frame).collect(),
            counts: counts.collect(),
            ..MemoryState::default()
        }
    }
}

/// Splits a state into parts of at most `entries` entries of one dictionary each.
#[must_use]
pub fn in_parts(state: &MemoryState, entries: usize) -> Vec<MemoryState> {
    let entries = entries.max(1);
    let part = || MemoryState {
        node: state.node.clone(),
        target: state.target.clone(),
        profile: state.profile,
        sequence: state.sequence,
        base: state.base,
        time_ns: state.time_ns,
        page_bytes: state.page_bytes,
        more: true,
        ..MemoryState::default()
    };
    let ids = |first: u32, at: usize| first + u32::try_from(at * entries).expect("few entries");
    let mut parts = Vec::new();
    for (at, strings) in state.strings.chunks(entries).enumerate() {
        parts.push(MemoryState { first_string: ids(state.first_string, at), strings: strings.to_vec(), ..part() });
    }
    for (at, frames) in state.frames.chunks(entries).enumerate() {
        parts.push(MemoryState { first_frame: ids(state.first_frame, at), frames: frames.to_vec(), ..part() });
    }
    let nodes = state.node_parents.chunks(entries).zip(state.node_frames.chunks(entries));
    for (at, (parents, frames)) in nodes.enumerate() {
        let first_node = ids(state.first_node, at);
        parts.push(MemoryState { first_node, node_parents: parents.to_vec(), node_frames: frames.to_vec(), ..part() });
    }
    for counts in &state.counts {
        for (nodes, pages) in counts.nodes.chunks(entries).zip(counts.pages.chunks(entries)) {
            let counts = MemoryCounts { kind: counts.kind, nodes: nodes.to_vec(), pages: pages.to_vec() };
            parts.push(MemoryState { counts: vec![counts], ..part() });
        }
    }
    let last = MemoryState { more: false, process: state.process.clone(), totals: state.totals.clone(), ..part() };
    parts.push(last);
    for (number, part) in (0..).zip(&mut parts) {
        part.part = number;
    }
    parts
}
