//! From the kernel's call tree, which knows addresses of processes, to one of files: the same code is the same node in
//! every process and after every restart.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::kernel::{EXACT, LEAST_ADDRESS, NO_NODE, RawNode};
use super::modules::Placed;
use super::reading::{Count, Frame, Kind, Node, NodeId, Scope, StackEnd, TargetId};
use super::shared::SharedArray;

/// A node of the kernel that has been looked at.
#[derive(Clone, Copy)]
struct Seen {
    node: NodeId,
    target: TargetId,
    /// The kernel's root that it hangs from.
    root: u32,
    pages: [i64; 3],
}

/// Pages by kind.
type Pages = [i64; 3];

/// The tree of files.
pub(crate) struct Tree {
    raw: SharedArray<RawNode>,
    seen: Vec<Seen>,
    /// Where the addresses below a root of the kernel lead to.
    roots: HashMap<u32, Arc<Vec<Placed>>>,
    names: HashMap<(NodeId, Frame), NodeId>,
    list: Vec<Node>,
    reported: usize,
    counts: HashMap<(TargetId, NodeId), Pages>,
    changed: HashSet<(TargetId, NodeId)>,
    totals: HashMap<TargetId, Pages>,
    forgotten: HashSet<TargetId>,
}

impl Tree {
    pub(crate) fn new(raw: SharedArray<RawNode>) -> Self {
        // Number 0 is none.
        let none = Seen { node: NodeId::ROOT, target: TargetId(0), root: 0, pages: [0; 3] };
        Self {
            raw,
            seen: vec![none],
            roots: HashMap::new(),
            names: HashMap::new(),
            list: Vec::new(),
            reported: 0,
            counts: HashMap::new(),
            changed: HashSet::new(),
            totals: HashMap::new(),
            forgotten: HashSet::new(),
        }
    }

    /// Writes a root for a target into the kernel's tree; `number` was taken for it.
    pub(crate) fn write_root(&self, number: u32, target: TargetId) {
        self.raw.set(number, RawNode { pc: u64::from(target.0), ..RawNode::default() });
    }

    /// Tells where addresses below a root lead to.
    pub(crate) fn set_root(&mut self, root: u32, layout: Arc<Vec<Placed>>) {
        self.roots.insert(root, layout);
    }

    /// Shows a target's counts no more.
    pub(crate) fn forget(&mut self, target: TargetId) {
        self.forgotten.insert(target);
        self.totals.remove(&target);
        self.counts.retain(|(of, _), _| *of != target);
        self.changed.retain(|(of, _)| *of != target);
    }

    /// A target's pages by kind.
    pub(crate) fn total(&self, target: TargetId) -> [u64; 3] {
        self.totals.get(&target).copied().unwrap_or_default().map(positive)
    }

    /// Takes in what the kernel has now; `last` is its last node's number.
    pub(crate) fn update(&mut self, last: u32) {
        for number in 1..=last.min(self.raw.length().saturating_sub(1)) {
            let Some(raw) = self.raw.get(number) else { break };
            let index = number as usize;
            if index >= self.seen.len() {
                let Some(seen) = self.look_at(number, &raw) else { break };
                self.seen.push(seen);
            }
            let Some(seen) = self.seen.get_mut(index) else { break };
            if seen.pages == raw.pages {
                continue;
            }
            let before = std::mem::replace(&mut seen.pages, raw.pages);
            let (target, node) = (seen.target, seen.node);
            if self.forgotten.contains(&target) {
                continue;
            }
            let count = self.counts.entry((target, node)).or_default();
            let total = self.totals.entry(target).or_default();
            for (((count, total), now), before) in count.iter_mut().zip(total).zip(raw.pages).zip(before) {
                *count += now - before;
                *total += now - before;
            }
            self.changed.insert((target, node));
        }
    }

    /// A node's place in the tree of files; `None` if it cannot be told yet.
    fn look_at(&mut self, number: u32, raw: &RawNode) -> Option<Seen> {
        if raw.pc == NO_NODE {
            return self.seen.first().copied();
        }
        if raw.pc == 0 {
            return None; // being written
        }
        if raw.parent == 0 {
            let target = TargetId(u32::try_from(raw.pc).unwrap_or_default());
            return Some(Seen { node: NodeId::ROOT, target, root: number, pages: [0; 3] });
        }
        let parent = *self.seen.get(raw.parent as usize)?;
        let frame = self.frame(parent.root, raw.pc)?;
        let node = self.node(parent.node, frame);
        Some(Seen { node, pages: [0; 3], ..parent })
    }

    fn frame(&self, root: u32, pc: u64) -> Option<Frame> {
        if pc < LEAST_ADDRESS {
            let end = usize::try_from(pc).ok().and_then(|end| StackEnd::ALL.get(end).copied());
            return Some(Frame::Incomplete(end.unwrap_or(StackEnd::NoRule)));
        }
        let layout = self.roots.get(&root)?;
        let (address, exact) = (pc & !EXACT, pc & EXACT != 0);
        let inside = address.wrapping_sub(u64::from(!exact));
        let after = layout.partition_point(|place| place.start <= inside);
        let place = after.checked_sub(1).and_then(|at| layout.get(at)).filter(|place| inside < place.end);
        Some(match place {
            Some(Placed { start, offset, module: Some(module), .. }) => {
                Frame::Code { module: *module, offset: address - start + offset, exact }
            }
            _ => Frame::Anonymous { pc: address, exact },
        })
    }

    fn node(&mut self, parent: NodeId, frame: Frame) -> NodeId {
        let next = NodeId(u32::try_from(self.list.len() + 1).unwrap_or(u32::MAX));
        let id = *self.names.entry((parent, frame)).or_insert(next);
        if id == next {
            self.list.push(Node { id, parent, frame });
        }
        id
    }

    /// Nodes and counts; see [`Scope`].
    pub(crate) fn take(&mut self, scope: Scope) -> (Vec<Node>, Vec<Count>) {
        let first = if scope == Scope::All { 0 } else { self.reported };
        let nodes = self.list.get(first..).unwrap_or_default().to_vec();
        self.reported = self.list.len();
        let changed = std::mem::take(&mut self.changed);
        let mut counts = Vec::new();
        let mut add = |(target, node): (TargetId, NodeId), pages: &Pages, zeros: bool| {
            for (kind, pages) in Kind::ALL.into_iter().zip(pages) {
                let pages = positive(*pages);
                if zeros || pages > 0 {
                    counts.push(Count { target, node, kind, pages });
                }
            }
        };
        match scope {
            Scope::All => self.counts.iter().for_each(|(key, pages)| add(*key, pages, false)),
            Scope::Changed => changed.iter().for_each(|key| {
                if let Some(pages) = self.counts.get(key) {
                    add(*key, pages, true);
                }
            }),
        }
        (nodes, counts)
    }
}

/// A page can be freed on one processor before another has counted it.
fn positive(pages: i64) -> u64 {
    u64::try_from(pages).unwrap_or(0)
}
