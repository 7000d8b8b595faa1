//! Translates the kernel's call tree of addresses into a call tree of file offsets, in which the same code is the same node
//! in every process.

mod reclaim;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::abi::{EXACT, Edge, MIN_ADDRESS, RawNode, TREE_FULL, UNUSED_NODE};
use super::address_spaces::UnwindMapping;
use super::reading::{Count, Frame, Kind, Node, NodeId, Scope, StackEnd, TargetId};
use crate::mmap_array::MmapArray;

/// A node of the kernel tree that has been translated.
#[derive(Clone, Copy)]
struct KnownNode {
    node: NodeId,
    target: TargetId,
    /// Root of the kernel tree above it.
    root: u32,
    pages: [i64; 3],
}

/// Pages by kind.
type Pages = [i64; 3];

/// The call tree by file offset.
pub(crate) struct CallTree {
    raw: MmapArray<RawNode>,
    /// By id in the kernel tree; `None`: not translated yet, or free.
    known: Vec<Option<KnownNode>>,
    /// Mappings that the addresses below a root of the kernel tree belong to.
    roots: HashMap<u32, Arc<Vec<UnwindMapping>>>,
    names: HashMap<(NodeId, Frame), NodeId>,
    list: BTreeMap<NodeId, Node>,
    /// The greatest id of a node so far, and of one that a reading contained.
    last: NodeId,
    reported: NodeId,
    /// Nodes of earlier readings that are not in the list any more.
    dropped: Vec<NodeId>,
    counts: HashMap<(TargetId, NodeId), Pages>,
    changed: HashSet<(TargetId, NodeId)>,
    totals: HashMap<TargetId, Pages>,
    removed: HashSet<TargetId>,
    /// Roots of pages that were resident before their target was watched: not in counts and totals.
    excluded_roots: HashSet<u32>,
}

impl CallTree {
    pub(crate) fn new(raw: MmapArray<RawNode>) -> Self {
        // Id 0 is no node.
        let none = KnownNode { node: NodeId::ROOT, target: TargetId(0), root: 0, pages: [0; 3] };
        Self {
            raw,
            known: vec![Some(none)],
            roots: HashMap::new(),
            names: HashMap::new(),
            list: BTreeMap::new(),
            last: NodeId::ROOT,
            reported: NodeId::ROOT,
            dropped: Vec::new(),
            counts: HashMap::new(),
            changed: HashSet::new(),
            totals: HashMap::new(),
            removed: HashSet::new(),
            excluded_roots: HashSet::new(),
        }
    }

    /// Writes the root of a target into the kernel tree; `number` is its allocated id.
    pub(crate) fn write_root(&self, number: u32, target: TargetId) {
        self.raw.set(number, RawNode { pc: u64::from(target.0), ..RawNode::default() });
    }

    /// Writes the node of frames that get none into the kernel tree.
    pub(crate) fn write_overflow(&self, number: u32, root: u32) {
        self.raw.set(number, RawNode { pc: TREE_FULL, parent: root, ..RawNode::default() });
    }

    /// Sets the mappings that addresses below a root belong to.
    pub(crate) fn set_root(&mut self, root: u32, mappings: Arc<Vec<UnwindMapping>>) {
        self.roots.insert(root, mappings);
    }

    /// Excludes the pages of a root from counts and totals.
    pub(crate) fn exclude_root(&mut self, root: u32) {
        self.excluded_roots.insert(root);
    }

    /// Anonymous pages of a node of the kernel tree.
    pub(crate) fn anonymous(&self, number: u32) -> u64 {
        self.raw.get(number).map_or(0, |raw| positive(raw.pages[0]))
    }

    /// Drops the counts of a target.
    pub(crate) fn unwatch(&mut self, target: TargetId) {
        self.removed.insert(target);
        self.totals.remove(&target);
        self.counts.retain(|(of, _), _| *of != target);
        self.changed.retain(|(of, _)| *of != target);
    }

    /// Pages of a target by kind.
    pub(crate) fn total(&self, target: TargetId) -> [u64; 3] {
        self.totals.get(&target).copied().unwrap_or_default().map(positive)
    }

    /// Updates nodes and counts from the kernel tree, whose greatest id is `last`.
    pub(crate) fn update(&mut self, last: u32) {
        let last = last.min(self.raw.length().saturating_sub(1));
        self.known.resize(self.known.len().max(last as usize + 1), None);
        let mut waiting = Vec::new();
        for number in 1..=last {
            if !self.update_node(number) {
                waiting.push(number);
            }
        }
        // Ids are reused, so a parent may have a greater id than its children.
        let mut before = usize::MAX;
        while waiting.len() < before {
            before = waiting.len();
            waiting.retain(|number| !self.update_node(*number));
        }
    }

    /// Updates one node; returns whether its position in the tree is known.
    fn update_node(&mut self, number: u32) -> bool {
        let index = number as usize;
        let Some(raw) = self.raw.get(number) else { return true };
        let known = match self.known.get(index).copied().flatten() {
            Some(known) => known,
            // Free, or being written.
            None if raw.pc == 0 => return true,
            None => match self.resolve_node(number, &raw) {
                Some(known) => known,
                None => return false,
            },
        };
        let KnownNode { target, node, root, pages: before } = known;
        if let Some(entry) = self.known.get_mut(index) {
            *entry = Some(KnownNode { pages: raw.pages, ..known });
        }
        if before != raw.pages && !self.removed.contains(&target) && !self.excluded_roots.contains(&root) {
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

    /// Translates a node; `None` if that is not possible yet.
    fn resolve_node(&mut self, number: u32, raw: &RawNode) -> Option<KnownNode> {
        if raw.pc == UNUSED_NODE {
            return self.known.first().copied().flatten();
        }
        if raw.parent == 0 {
            let target = TargetId(u32::try_from(raw.pc).unwrap_or_default());
            return Some(KnownNode { node: NodeId::ROOT, target, root: number, pages: [0; 3] });
        }
        let parent = self.known.get(raw.parent as usize).copied().flatten()?;
        let frame = self.frame(parent.root, raw.pc)?;
        let node = self.node(parent.node, frame);
        Some(KnownNode { node, pages: [0; 3], ..parent })
    }

    /// Number of nodes of the kernel tree in use.
    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.known.iter().skip(1).flatten().count()).unwrap_or(u32::MAX)
    }

    /// Marks the nodes of removed targets as dead in the kernel tree; returns their number.
    pub(crate) fn mark_dead(&self) -> usize {
        let dead = (1_u32..).zip(self.known.iter().skip(1)).filter(|(_, known)| self.is_removed(known));
        dead.filter_map(|(number, _)| {
            self.raw.atomic(number, offset_of!(RawNode, dead)).map(|dead| dead.store(1, Ordering::Release))
        })
        .count()
    }

    fn is_removed(&self, known: &Option<KnownNode>) -> bool {
        known.as_ref().is_some_and(|known| self.removed.contains(&known.target))
    }

    /// Clears the dead nodes after all owners were swept, and returns their ids and edges.
    pub(crate) fn clear_dead(&mut self) -> Vec<(u32, Edge)> {
        let mut cleared = Vec::new();
        for number in 1..self.known.len() {
            let Some(known) = self.known.get(number).copied().flatten() else { continue };
            let Ok(number) = u32::try_from(number) else { break };
            let Some(raw) = self.raw.get(number).filter(|raw| raw.dead == 1 && self.removed.contains(&known.target))
            else {
                continue;
            };
            self.free(number);
            cleared.push((number, Edge { pc: raw.pc, parent: raw.parent, pad: 0 }));
        }
        self.drop_unused_names();
        // Their nodes are gone: none is left to be recognised by its target.
        let known: HashSet<TargetId> = self.known.iter().flatten().map(|known| known.target).collect();
        self.removed.retain(|target| known.contains(target));
        cleared
    }

    fn free(&mut self, number: u32) {
        self.raw.set(number, RawNode::default());
        self.roots.remove(&number);
        self.excluded_roots.remove(&number);
        if let Some(entry) = self.known.get_mut(number as usize) {
            *entry = None;
        }
    }

    fn frame(&self, root: u32, pc: u64) -> Option<Frame> {
        if pc < MIN_ADDRESS {
            let end = usize::try_from(pc).ok().and_then(|end| StackEnd::ALL.get(end).copied());
            return Some(Frame::Incomplete(end.unwrap_or(StackEnd::NoRule)));
        }
        let mappings = self.roots.get(&root)?;
        let (address, exact) = (pc & !EXACT, pc & EXACT != 0);
        let inside = address.wrapping_sub(u64::from(!exact));
        let after = mappings.partition_point(|mapping| mapping.start <= inside);
        let mapping = after.checked_sub(1).and_then(|at| mappings.get(at)).filter(|mapping| inside < mapping.end);
        Some(match mapping {
            Some(UnwindMapping { start, offset, module: Some(module), .. }) => {
                Frame::Code { module: *module, offset: address - start + offset, exact }
            }
            _ => Frame::Anonymous { pc: address, exact },
        })
    }

    fn node(&mut self, parent: NodeId, frame: Frame) -> NodeId {
        let next = NodeId(self.last.0.saturating_add(1));
        let id = *self.names.entry((parent, frame)).or_insert(next);
        if id == next {
            self.last = next;
            self.list.insert(id, Node { id, parent, frame });
        }
        id
    }

    /// Takes nodes and counts; see [`Scope`].
    pub(crate) fn take(&mut self, scope: Scope) -> (Vec<Node>, Vec<Count>) {
        let first = if scope == Scope::All { NodeId::ROOT } else { self.reported };
        let nodes = self.list.range((Bound::Excluded(first), Bound::Unbounded)).map(|(_, node)| *node).collect();
        self.reported = self.last;
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
            #[expect(clippy::disallowed_methods, reason = "consumers add the counts up by node")]
            Scope::All => self.counts.iter().for_each(|(key, pages)| add(*key, pages, false)),
            #[expect(clippy::disallowed_methods, reason = "consumers add the counts up by node")]
            Scope::Changed => changed.iter().for_each(|key| {
                if let Some(pages) = self.counts.get(key) {
                    add(*key, pages, true);
                }
            }),
        }
        (nodes, counts)
    }
}

/// Clamps to 0: a page can be freed on one CPU before another has counted it.
fn positive(pages: i64) -> u64 {
    u64::try_from(pages).unwrap_or(0)
}
