//! The catalog as data, and its file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::{
    VERSIONS,
    v1::{CatalogNode, CatalogUpdate, MemorySnapshots},
};
use chainscope_store::{Retention, SnapshotLimits};
use serde::{Deserialize, Serialize};

use super::UpdateError;
use crate::{config::SnapshotPolicy, nodes::check_name};

/// What is kept from one start to the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) nodes: BTreeMap<String, Node>,
    /// When a node was found to be missing, nanoseconds since 1970.
    #[serde(default)]
    pub(super) deleted: BTreeMap<String, i64>,
}

/// A node of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Node {
    #[serde(default)]
    pub(super) aliases: BTreeSet<String>,
    #[serde(default)]
    pub(super) hosts: BTreeSet<String>,
    keep_rows: Option<u64>,
    keep_bytes: Option<u64>,
    keep_seconds: Option<u64>,
    #[serde(default)]
    memory: Option<Memory>,
}

/// Snapshots of a node's memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    every_seconds: u64,
    keep_bytes: Option<u64>,
    keep_seconds: Option<u64>,
}

impl Node {
    /// How snapshots of its memory are kept, if that was said.
    pub(super) fn memory(&self) -> Option<SnapshotPolicy> {
        self.memory.as_ref().map(|memory| SnapshotPolicy {
            every: Duration::from_secs(memory.every_seconds),
            limits: SnapshotLimits { age: memory.keep_seconds.map(Duration::from_secs), bytes: memory.keep_bytes },
        })
    }

    pub(super) fn retention(&self) -> Retention {
        Retention { rows: self.keep_rows, bytes: self.keep_bytes, age: self.keep_seconds.map(Duration::from_secs) }
    }
}

impl From<CatalogNode> for Node {
    fn from(node: CatalogNode) -> Self {
        let CatalogNode { node: _, aliases, keep_rows, keep_bytes, keep_seconds, hosts, memory_snapshots } = node;
        let memory = memory_snapshots.map(|MemorySnapshots { every_seconds, keep_bytes, keep_seconds }| Memory {
            every_seconds,
            keep_bytes,
            keep_seconds,
        });
        Self {
            aliases: aliases.into_iter().collect(),
            hosts: hosts.into_iter().collect(),
            keep_rows,
            keep_bytes,
            keep_seconds,
            memory,
        }
    }
}

impl Kept {
    /// What the file has; none if there is no file. A file that is damaged is as good as none: the operator has it all.
    pub(super) fn load(file: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(mut kept) => {
                kept.nodes.retain(|name, _| check_name(name).is_ok());
                Ok(Some(kept))
            }
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "the kept catalog cannot be read: the operator is asked");
                Ok(None)
            }
        }
    }

    /// Replaces the file as a whole.
    pub(super) fn save(&self, file: &Path) -> io::Result<()> {
        let next = file.with_extension("next");
        let mut written = File::create(&next)?;
        written.write_all(&serde_json::to_vec(self)?)?;
        written.sync_all()?;
        fs::rename(&next, file)?;
        match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }

    /// What it is after an update, and the names of nodes that are new or another. Of nodes that are too many, or whose
    /// name cannot be, nothing is taken.
    pub(super) fn updated(
        before: Option<&Self>,
        update: CatalogUpdate,
        most: usize,
    ) -> Result<(Self, BTreeSet<String>), UpdateError> {
        let CatalogUpdate { version, generation: _, snapshot, nodes, removed, more: _ } = update;
        if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(UpdateError::Version(version));
        }
        let mut after = match (before, snapshot) {
            (None, false) => return Err(UpdateError::NoSnapshot),
            (Some(before), false) => before.clone(),
            (before, true) => {
                Self { nodes: BTreeMap::new(), deleted: before.map(|kept| kept.deleted.clone()).unwrap_or_default() }
            }
        };
        for name in &removed {
            after.nodes.remove(name);
        }
        for node in nodes {
            let name = node.node.clone();
            if let Err(why) = check_name(&name) {
                warn_limited!(node = %EscapedTruncated(&name), why, "the operator names a node that cannot be");
            } else if after.nodes.len() >= most && !after.nodes.contains_key(&name) {
                warn_limited!(node = name, most, "the operator names more nodes than this aggregator takes");
            } else {
                after.deleted.remove(&name);
                after.nodes.insert(name, node.into());
            }
        }
        let is_changed = |name: &&String| before.and_then(|kept| kept.nodes.get(*name)) != after.nodes.get(*name);
        let changed = after.nodes.keys().filter(is_changed).cloned().collect();
        Ok((after, changed))
    }
}
