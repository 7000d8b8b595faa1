//! The catalog as it is persisted in a file, so that it is known after a restart without the operator.

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
    v1::{CatalogNode, CatalogUpdate, LogRetention, MemorySnapshots, TraceRetention},
};
use chainscope_store::{Retention, SnapshotLimits};
use serde::{Deserialize, Serialize};

use crate::nodes::{SnapshotPolicy, check_name};

/// Why an update is not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("the operator's update is of version {0}, which this build does not support")]
    Version(u32),
    #[error("the operator sent a change before a snapshot")]
    NoSnapshot,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PersistedCatalog {
    pub(super) nodes: BTreeMap<String, CatalogEntry>,
    /// When each deleted node was found to be missing, nanoseconds since 1970.
    #[serde(default)]
    pub(super) deleted: BTreeMap<String, i64>,
    /// Nodes that vanished from a snapshot together with many others. They are kept until later snapshots confirm it.
    #[serde(default)]
    pub(super) missing: BTreeMap<String, Missing>,
}

/// Since when a node is missing from snapshots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Missing {
    /// Nanoseconds since 1970.
    since_ns: i64,
    /// Snapshots without it.
    snapshots: u32,
}

/// Number of snapshots without a node that confirm that it was deleted.
const CONFIRMING_SNAPSHOTS: u32 = 3;

/// One node of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CatalogEntry {
    #[serde(default)]
    pub(super) aliases: BTreeSet<String>,
    #[serde(default)]
    pub(super) hosts: BTreeSet<String>,
    keep_rows: Option<u64>,
    keep_bytes: Option<u64>,
    keep_seconds: Option<u64>,
    #[serde(default)]
    memory: Option<MemorySnapshotConfig>,
    #[serde(default)]
    logs: Option<Limits>,
    #[serde(default)]
    trace: Option<Limits>,
}

/// Snapshots of a node's memory, as the operator configures them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct MemorySnapshotConfig {
    every_seconds: u64,
    keep_bytes: Option<u64>,
    keep_seconds: Option<u64>,
}

/// Limits of the log messages or the events of tracepoints of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Limits {
    keep_rows: Option<u64>,
    keep_bytes: Option<u64>,
    keep_seconds: Option<u64>,
}

impl Limits {
    fn retention(&self) -> Retention {
        let Self { keep_rows, keep_bytes, keep_seconds } = *self;
        Retention { rows: keep_rows, bytes: keep_bytes, age: keep_seconds.map(Duration::from_secs) }
    }
}

impl CatalogEntry {
    /// Limits of its log messages, if the operator configures them.
    pub(super) fn log_retention(&self) -> Option<Retention> {
        self.logs.as_ref().map(Limits::retention)
    }

    /// Limits of its events of tracepoints, if the operator configures them.
    pub(super) fn trace_retention(&self) -> Option<Retention> {
        self.trace.as_ref().map(Limits::retention)
    }

    /// Snapshots of its memory, if the operator configures them.
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

impl From<CatalogNode> for CatalogEntry {
    fn from(node: CatalogNode) -> Self {
        let CatalogNode {
            node: _,
            aliases,
            keep_rows,
            keep_bytes,
            keep_seconds,
            hosts,
            memory_snapshots,
            log_retention,
            trace_retention,
        } = node;
        let memory = memory_snapshots.map(|MemorySnapshots { every_seconds, keep_bytes, keep_seconds }| {
            MemorySnapshotConfig { every_seconds, keep_bytes, keep_seconds }
        });
        let logs = log_retention.map(|LogRetention { keep_rows, keep_bytes, keep_seconds }| Limits {
            keep_rows,
            keep_bytes,
            keep_seconds,
        });
        let trace = trace_retention.map(|TraceRetention { keep_rows, keep_bytes, keep_seconds }| Limits {
            keep_rows,
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
            logs,
            trace,
        }
    }
}

impl PersistedCatalog {
    /// Reads the file. None if there is none, or if it is damaged: the operator sends a snapshot.
    pub(super) fn load(file: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(mut catalog) => {
                catalog.nodes.retain(|name, _| check_name(name).is_ok());
                Ok(Some(catalog))
            }
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "the persisted catalog is damaged and ignored: the operator sends a snapshot");
                Ok(None)
            }
        }
    }

    /// Replaces the file atomically.
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

    /// The catalog after an update, and the names of new and changed nodes. Nodes with an invalid name and those beyond
    /// `max` are ignored.
    pub(super) fn updated(
        before: Option<&Self>,
        update: CatalogUpdate,
        max: usize,
    ) -> Result<(Self, BTreeSet<String>), UpdateError> {
        let CatalogUpdate { version, generation: _, snapshot, nodes, removed, more: _ } = update;
        if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(UpdateError::Version(version));
        }
        let mut after = match (before, snapshot) {
            (None, false) => return Err(UpdateError::NoSnapshot),
            (Some(before), false) => before.clone(),
            (before, true) => Self {
                nodes: BTreeMap::new(),
                deleted: before.map(|before| before.deleted.clone()).unwrap_or_default(),
                missing: before.map(|before| before.missing.clone()).unwrap_or_default(),
            },
        };
        for name in &removed {
            after.nodes.remove(name);
            after.missing.remove(name);
        }
        for node in nodes {
            let name = node.node.clone();
            if let Err(why) = check_name(&name) {
                warn_limited!(node = %EscapedTruncated(&name), why, "the catalog has a node with an invalid name");
            } else if after.nodes.len() >= max && !after.nodes.contains_key(&name) {
                warn_limited!(node = name, max, "the catalog has more nodes than this aggregator accepts");
            } else {
                after.deleted.remove(&name);
                after.missing.remove(&name);
                after.nodes.insert(name, node.into());
            }
        }
        let is_changed = |name: &&String| before.and_then(|before| before.nodes.get(*name)) != after.nodes.get(*name);
        let changed = after.nodes.keys().filter(is_changed).cloned().collect();
        Ok((after, changed))
    }

    /// Keeps nodes that this snapshot lacks if they are half of all or more: rather than deleted by their owners, they were
    /// lost by the operator. They count as deleted since then once [`CONFIRMING_SNAPSHOTS`] snapshots over `confirm_ns` lack
    /// them. `known` are the nodes before the snapshot. Returns the number of nodes that vanished with it.
    pub(super) fn keep_vanished(
        &mut self,
        before: &Self,
        known: impl IntoIterator<Item = String>,
        now_ns: i64,
        confirm_ns: i64,
    ) -> usize {
        for (name, missing) in std::mem::take(&mut self.missing) {
            let missing = Missing { snapshots: missing.snapshots.saturating_add(1), ..missing };
            let is_confirmed =
                missing.snapshots >= CONFIRMING_SNAPSHOTS && now_ns.saturating_sub(missing.since_ns) >= confirm_ns;
            match is_confirmed {
                true => drop(self.deleted.insert(name, missing.since_ns)),
                false => self.keep(before, name, missing),
            }
        }
        let is_expected = |name: &String| !before.deleted.contains_key(name) && !before.missing.contains_key(name);
        let expected: BTreeSet<String> =
            before.nodes.keys().cloned().chain(known).filter(|name| is_expected(name)).collect();
        let vanished: Vec<&String> = expected.iter().filter(|name| !self.nodes.contains_key(*name)).collect();
        if vanished.len() * 2 < expected.len() {
            return 0;
        }
        for name in &vanished {
            self.keep(before, (*name).clone(), Missing { since_ns: now_ns, snapshots: 1 });
        }
        vanished.len()
    }

    fn keep(&mut self, before: &Self, name: String, missing: Missing) {
        if let Some(entry) = before.nodes.get(&name) {
            self.nodes.insert(name.clone(), entry.clone());
        }
        self.missing.insert(name, missing);
    }
}
