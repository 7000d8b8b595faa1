//! What readers see: the bounds of each node as of the last sync, and a snapshot that goes with them.
//!
//! Records become readable when their batch is durable, because only durable batches reach the engine. The view is
//! published after the batch, so that a snapshot holds at least what its view names. An eviction is the other way
//! round: the view without the old segments is published first, and a reader takes view and snapshot under one lock, so
//! that no reader has a view of segments which its snapshot has lost.
//!
//! Each eviction begins a new *era*. Disk space of evicted segments is given back, past all snapshots, once every
//! reader of the eras before is done.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use crate::{
    engine::{Engine, Snapshot},
    meta::{SegmentMeta, Totals},
};

/// A node as of the last sync.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeView {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) first_id: u64,
    pub(crate) next_id: u64,
    /// Oldest first; the last one is open.
    pub(crate) segments: Vec<SegmentMeta>,
    pub(crate) totals: Totals,
}

impl NodeView {
    /// The segment that an id is in.
    pub(crate) fn segment_of(&self, id: u64) -> Option<&SegmentMeta> {
        if id < self.first_id || id >= self.next_id {
            return None;
        }
        let behind = self.segments.partition_point(|segment| segment.first_id <= id);
        self.segments.get(behind.checked_sub(1)?).filter(|segment| id < segment.end_id())
    }
}

struct Published {
    nodes: HashMap<String, Arc<NodeView>>,
    era: Arc<()>,
}

/// The views of all nodes.
pub(crate) struct Views(RwLock<Published>);

/// One consistent look at one node.
pub(crate) struct Reader<'a> {
    pub(crate) view: Arc<NodeView>,
    pub(crate) snapshot: Box<dyn Snapshot + 'a>,
    _era: Arc<()>,
}

impl Views {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(Published { nodes: HashMap::new(), era: Arc::new(()) }))
    }

    /// View and snapshot of a node, if it is known.
    pub(crate) fn reader<'a>(&self, engine: &'a dyn Engine, node: &str) -> Option<Reader<'a>> {
        let published = self.0.read();
        let view = published.nodes.get(node)?.clone();
        Some(Reader { view, snapshot: engine.snapshot(), _era: published.era.clone() })
    }

    /// View of a node, if it is known.
    pub(crate) fn get(&self, node: &str) -> Option<Arc<NodeView>> {
        self.0.read().nodes.get(node).cloned()
    }

    /// Views of all nodes, by name.
    pub(crate) fn all(&self) -> Vec<Arc<NodeView>> {
        let mut all: Vec<_> = self.0.read().nodes.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Makes new views readable.
    pub(crate) fn publish(&self, views: Vec<NodeView>) {
        let mut published = self.0.write();
        for view in views {
            published.nodes.insert(view.name.clone(), Arc::new(view));
        }
    }

    /// Begins a new era with new views. The era that ended is over once nobody else holds it.
    pub(crate) fn publish_era(&self, views: Vec<NodeView>) -> Arc<()> {
        let mut published = self.0.write();
        for view in views {
            published.nodes.insert(view.name.clone(), Arc::new(view));
        }
        std::mem::replace(&mut published.era, Arc::new(()))
    }
}
