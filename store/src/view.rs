//! What readers see: the bounds of each node as of the last sync, and a snapshot that goes with them.
//!
//! Records become readable when their batch is durable: the view is published after it is synced, so that a snapshot holds
//! at least what its view names. An eviction is the other way round: the view without the old segments is published first,
//! and a reader takes view and snapshot under one lock, so that no reader has a view of segments which its snapshot has lost.
//!
//! Each eviction begins a new *reclamation epoch*. Disk space of evicted segments is reclaimed, regardless of snapshots, once
//! every reader of the epochs before is done.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use parking_lot::RwLock;

use crate::{
    engine::{Engine, Snapshot},
    kind::{FactKind, RetentionClass},
    meta::{SegmentMeta, Totals},
};

/// A node as of the last sync.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeView {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// Of each retention class, oldest first.
    pub(crate) segments: [Vec<Arc<SegmentMeta>>; RetentionClass::ALL.len()],
    /// By the table of the kind.
    pub(crate) next_ids: Vec<(u8, u64)>,
    pub(crate) totals: Totals,
}

impl NodeView {
    /// The segments of a retention class, oldest first.
    pub(crate) fn segments(&self, class: RetentionClass) -> &[Arc<SegmentMeta>] {
        &self.segments[class as usize]
    }

    /// The ids of a kind that are kept, up to the next one to be given.
    pub(crate) fn ids(&self, kind: &FactKind) -> Range<u64> {
        let next = self.next_ids.iter().find(|(table, _)| *table == kind.table).map_or(0, |(_, next)| *next);
        let first = self.segments(kind.retention).first().map_or(next, |segment| segment.ids(kind.table).start);
        first..next
    }

    /// The segment that an id of a kind is in.
    pub(crate) fn segment_of(&self, kind: &FactKind, id: u64) -> Option<&SegmentMeta> {
        let segments = self.segments(kind.retention);
        let behind = segments.partition_point(|segment| segment.ids(kind.table).start <= id);
        let segment = segments.get(behind.checked_sub(1)?)?;
        segment.ids(kind.table).contains(&id).then_some(segment)
    }
}

struct Published {
    nodes: BTreeMap<String, Arc<NodeView>>,
    epoch: Arc<()>,
}

/// The views of all nodes.
pub(crate) struct Views(RwLock<Published>);

/// One consistent look at one node.
pub(crate) struct Reader<'a> {
    pub(crate) view: Arc<NodeView>,
    pub(crate) snapshot: Box<dyn Snapshot + 'a>,
    _epoch: Arc<()>,
}

impl Reader<'_> {
    /// The segments of records, oldest first.
    pub(crate) fn records(&self) -> impl DoubleEndedIterator<Item = &SegmentMeta> {
        self.view.segments(RetentionClass::Records).iter().map(|segment| &**segment)
    }
}

impl Views {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(Published { nodes: BTreeMap::new(), epoch: Arc::new(()) }))
    }

    /// View and snapshot of a node, if it is known.
    pub(crate) fn reader<'a>(&self, engine: &'a dyn Engine, node: &str) -> Option<Reader<'a>> {
        let published = self.0.read();
        let view = published.nodes.get(node)?.clone();
        Some(Reader { view, snapshot: engine.snapshot(), _epoch: published.epoch.clone() })
    }

    /// View of a node, if it is known.
    pub(crate) fn get(&self, node: &str) -> Option<Arc<NodeView>> {
        self.0.read().nodes.get(node).cloned()
    }

    /// Views of all nodes, by name.
    pub(crate) fn all(&self) -> Vec<Arc<NodeView>> {
        self.0.read().nodes.values().cloned().collect()
    }

    /// Makes new views readable.
    pub(crate) fn publish(&self, views: impl IntoIterator<Item = NodeView>) {
        let mut published = self.0.write();
        for view in views {
            published.nodes.insert(view.name.clone(), Arc::new(view));
        }
    }

    /// Begins a new epoch with new views. The epoch that ended is over once it has no other holder.
    pub(crate) fn publish_epoch(&self, views: impl IntoIterator<Item = NodeView>) -> Arc<()> {
        let mut published = self.0.write();
        for view in views {
            published.nodes.insert(view.name.clone(), Arc::new(view));
        }
        std::mem::replace(&mut published.epoch, Arc::new(()))
    }
}
