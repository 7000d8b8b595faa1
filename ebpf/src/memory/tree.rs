//! From the kernel's call tree, which knows addresses of processes, to one of files: the same code is the same node in
//! every process and after every restart.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::kernel::{EXACT, Edge, LEAST_ADDRESS, NO_NODE, RawNode};
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
    /// By number of the kernel; `None`: not looked at yet, or free.
    seen: Vec<Option<Seen>>,
    /// Where the addresses below a root of the kernel lead to.
    roots: HashMap<u32, Arc<Vec<Placed>>>,
    names: HashMap<(NodeId, Frame), NodeId>,
    list: Vec<Node>,
    reported: usize,
    counts: HashMap<(TargetId, NodeId), Pages>,
    changed: HashSet<(TargetId, NodeId)>,
    totals: HashMap<TargetId, Pages>,
    forgotten: HashSet<TargetId>,
    /// Roots without calls: of pages that were there before their target was watched.
    apart: HashSet<u32>,
}

impl Tree {
    pub(crate) fn new(raw: SharedArray<RawNode>) -> Self {
        // Number 0 is none.
        let none = Seen { node: NodeId::ROOT, target: TargetId(0), root: 0, pages: [0; 3] };
        Self {
            raw,
            seen: vec![Some(none)],
            roots: HashMap::new(),
            names: HashMap::new(),
            list: Vec::new(),
            reported: 0,
            counts: HashMap::new(),
            changed: HashSet::new(),
            totals: HashMap::new(),
            forgotten: HashSet::new(),
            apart: HashSet::new(),
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

    /// Leaves the pages of a root out of the counts and totals.
    pub(crate) fn set_apart(&mut self, root: u32) {
        self.apart.insert(root);
    }

    /// Anonymous pages of a node of the kernel.
    pub(crate) fn anonymous(&self, number: u32) -> u64 {
        self.raw.get(number).map_or(0, |raw| positive(raw.pages[0]))
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
        let last = last.min(self.raw.length().saturating_sub(1));
        self.seen.resize(self.seen.len().max(last as usize + 1), None);
        let mut waiting = Vec::new();
        for number in 1..=last {
            if !self.update_node(number) {
                waiting.push(number);
            }
        }
        // Numbers are used again, so that a parent may come after its children.
        let mut before = usize::MAX;
        while waiting.len() < before {
            before = waiting.len();
            waiting.retain(|number| !self.update_node(*number));
        }
    }

    /// Takes in one node; whether its place is known.
    fn update_node(&mut self, number: u32) -> bool {
        let index = number as usize;
        let Some(raw) = self.raw.get(number) else { return true };
        let seen = match self.seen.get(index).copied().flatten() {
            Some(seen) => seen,
            // Free, or being written.
            None if raw.pc == 0 => return true,
            None => match self.look_at(number, &raw) {
                Some(seen) => seen,
                None => return false,
            },
        };
        let Seen { target, node, root, pages: before } = seen;
        if let Some(place) = self.seen.get_mut(index) {
            *place = Some(Seen { pages: raw.pages, ..seen });
        }
        if before != raw.pages && !self.forgotten.contains(&target) && !self.apart.contains(&root) {
            let count = self.counts.entry((target, node)).or_default();
            let total = self.totals.entry(target).or_default();
            for (((count, total), now), before) in count.iter_mut().zip(total).zip(raw.pages).zip(before) {
                *count += now - before;
                *total += now - before;
            }
            self.changed.insert((target, node));
        }
        true
    }

    /// A node's place in the tree of files; `None` if it cannot be told yet.
    fn look_at(&mut self, number: u32, raw: &RawNode) -> Option<Seen> {
        if raw.pc == NO_NODE {
            return self.seen.first().copied().flatten();
        }
        if raw.parent == 0 {
            let target = TargetId(u32::try_from(raw.pc).unwrap_or_default());
            return Some(Seen { node: NodeId::ROOT, target, root: number, pages: [0; 3] });
        }
        let parent = self.seen.get(raw.parent as usize).copied().flatten()?;
        let frame = self.frame(parent.root, raw.pc)?;
        let node = self.node(parent.node, frame);
        Some(Seen { node, pages: [0; 3], ..parent })
    }

    /// Nodes of the kernel that are in use.
    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.seen.iter().skip(1).flatten().count()).unwrap_or(u32::MAX)
    }

    /// Marks the kernel's nodes of forgotten targets as dead; how many they are.
    pub(crate) fn bury(&self) -> usize {
        let dead = (1_u32..).zip(self.seen.iter().skip(1)).filter(|(_, seen)| self.is_forgotten(seen));
        dead.filter_map(|(number, _)| {
            self.raw.number(number, offset_of!(RawNode, dead)).map(|dead| dead.store(1, Ordering::Release))
        })
        .count()
    }

    fn is_forgotten(&self, seen: &Option<Seen>) -> bool {
        seen.as_ref().is_some_and(|seen| self.forgotten.contains(&seen.target))
    }

    /// Empties the dead nodes, of which no page is any more, and returns their numbers and what leads to them.
    pub(crate) fn clear(&mut self) -> Vec<(u32, Edge)> {
        let mut cleared = Vec::new();
        for number in 1..self.seen.len() {
            let Some(seen) = self.seen.get(number).copied().flatten() else { continue };
            let Ok(number) = u32::try_from(number) else { break };
            let Some(raw) = self.raw.get(number).filter(|raw| raw.dead == 1 && self.forgotten.contains(&seen.target))
            else {
                continue;
            };
            self.raw.set(number, RawNode::default());
            self.roots.remove(&number);
            self.apart.remove(&number);
            if let Some(place) = self.seen.get_mut(number as usize) {
                *place = None;
            }
            cleared.push((number, Edge { pc: raw.pc, parent: raw.parent, pad: 0 }));
        }
        cleared
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
