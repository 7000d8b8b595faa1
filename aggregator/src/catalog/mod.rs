//! The catalog of nodes that the operator maintains: names, aliases, retention, and the hosts with pods of a node.
//!
//! ```text
//! operator ══ snapshot, then changes ══▶ client ─▶ Catalog ─┬─▶ file      for the next start
//!                                                           ├─▶ nodes     names and aliases, for requests
//!                                                           ├─▶ store     retention
//!                                                           └─▶ ingest    which host may deliver which node
//! ```
//!
//! The records of a node whose resource was deleted are kept for [`CatalogConfig::deleted_retention`], so that a deletion
//! can be undone, and then evicted. This includes nodes of the store that are not in the catalog. If half of the nodes or more
//! vanish with one snapshot, they are kept until further snapshots over that time confirm it.

pub(crate) mod client;
mod persisted;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::CatalogUpdate;
use chainscope_store::{NodeInfo, Retention, Store};
use parking_lot::{Mutex, RwLock};

use self::persisted::{PersistedCatalog, UpdateError};
use crate::{
    Error,
    nodes::{self, NodeEntry, Nodes},
};

/// Retention of a node that is to be deleted: every record is evicted.
const EVICT_ALL: Retention = Retention { rows: None, bytes: None, age: Some(nodes::EXPIRED_AGE) };

/// Source of the catalog.
#[derive(Debug, Clone)]
pub struct CatalogConfig {
    /// Address of the operator's config stream: `https://host:17734`, or `http://…` without a CA bundle.
    pub operator: String,
    /// CA bundle used to verify the operator.
    pub ca_file: Option<PathBuf>,
    /// File of the bearer token; read at each connection.
    pub token_file: Option<PathBuf>,
    /// File that the catalog is persisted in.
    pub file: PathBuf,
    /// How long the records of a deleted node are kept.
    pub deleted_retention: Duration,
}

/// The nodes of the last update of the operator.
pub(crate) struct Catalog {
    /// None before the first update ever.
    persisted: RwLock<Option<PersistedCatalog>>,
    /// Held while a change is applied, so that changes are applied in order.
    changing: Mutex<()>,
    nodes: Arc<Nodes>,
    store: Store,
    file: PathBuf,
    deleted_retention: Duration,
    connected: AtomicBool,
}

impl Catalog {
    /// Opens the persisted catalog. Blocks.
    pub(crate) fn open(config: &CatalogConfig, nodes: Arc<Nodes>, store: Store, now_ns: i64) -> Result<Self, Error> {
        let persisted =
            PersistedCatalog::load(&config.file).map_err(|source| Error::File { path: config.file.clone(), source })?;
        let catalog = Self {
            persisted: RwLock::new(None),
            changing: Mutex::new(()),
            nodes,
            store,
            file: config.file.clone(),
            deleted_retention: config.deleted_retention,
            connected: AtomicBool::new(false),
        };
        if let Some(persisted) = persisted {
            let names = persisted.nodes.keys().cloned().collect();
            *catalog.persisted.write() = Some(persisted);
            catalog.publish(names, now_ns);
        }
        Ok(catalog)
    }

    /// Whether an operator has ever sent the catalog.
    pub(crate) fn is_known(&self) -> bool {
        self.persisted.read().is_some()
    }

    /// Whether the config stream of the operator is open.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Whether the node has pods on the host.
    pub(crate) fn lists(&self, node: &str, host: &str) -> bool {
        self.persisted
            .read()
            .as_ref()
            .and_then(|persisted| persisted.nodes.get(node))
            .is_some_and(|node| node.hosts.contains(host))
    }

    /// Applies an update of the operator. Blocks.
    pub(crate) fn apply(&self, update: CatalogUpdate, now_ns: i64) -> Result<(), UpdateError> {
        let _changing = self.changing.lock();
        let before = self.persisted.read().clone();
        let is_snapshot = update.snapshot;
        let (mut persisted, changed) = PersistedCatalog::updated(before.as_ref(), update, self.nodes.max())?;
        if is_snapshot {
            let known = self.nodes.candidates(None);
            let vanished = persisted.keep_vanished(
                before.as_ref().unwrap_or(&PersistedCatalog::default()),
                known,
                now_ns,
                self.keep_ns(),
            );
            if vanished > 0 {
                tracing::error!(
                    vanished,
                    listed = persisted.nodes.len(),
                    "the operator's snapshot lacks half of the nodes or more: they are kept until further snapshots confirm it"
                );
            }
        }
        if before.as_ref() != Some(&persisted) {
            *self.persisted.write() = Some(persisted);
            self.save();
        }
        self.publish(changed, now_ns);
        Ok(())
    }

    /// Applies the catalog to the `changed` nodes, and marks nodes that are not in it as deleted.
    fn publish(&self, changed: BTreeSet<String>, now_ns: i64) {
        {
            let persisted = self.persisted.read();
            let Some(persisted) = persisted.as_ref() else { return };
            self.nodes.change(|known| {
                for (name, node) in &persisted.nodes {
                    if changed.contains(name) || !known.contains_key(name) {
                        let (aliases, retention) = (node.aliases.clone(), Some(node.retention()));
                        let node = NodeEntry {
                            aliases,
                            configured: true,
                            retention,
                            log_retention: node.log_retention(),
                            trace_retention: node.trace_retention(),
                            memory: node.memory(),
                            deleted_ns: None,
                        };
                        known.insert(name.clone(), node);
                    }
                }
            });
        }
        self.update_deleted(now_ns);
        for name in changed {
            self.apply_retention(&name);
        }
    }

    /// Records since when nodes are missing in the catalog.
    fn update_deleted(&self, now_ns: i64) {
        let mut guard = self.persisted.write();
        let Some(persisted) = guard.as_mut() else { return };
        let before = persisted.deleted.clone();
        self.nodes.change(|known| {
            persisted.deleted.retain(|name, _| !persisted.nodes.contains_key(name));
            let is_gone = |name: &String| !persisted.nodes.contains_key(name) && !persisted.missing.contains_key(name);
            for (name, node) in known.iter_mut().filter(|(name, _)| is_gone(name)) {
                let since = *persisted.deleted.entry(name.clone()).or_insert(now_ns);
                node.configured = false;
                node.deleted_ns = Some(since);
            }
        });
        let is_changed = persisted.deleted != before;
        drop(guard);
        if is_changed {
            self.save();
        }
    }

    /// Sets deleted nodes whose retention has expired to be evicted, and removes those without records. Blocks. The caller
    /// evicts afterwards.
    pub(crate) fn expire_deleted(&self, now_ns: i64) {
        let _changing = self.changing.lock();
        self.update_deleted(now_ns);
        let keep_ns = self.keep_ns();
        let expired: Vec<String> = self.persisted.read().as_ref().map_or_else(Vec::new, |persisted| {
            let is_expired = |since: &i64| now_ns.saturating_sub(*since) >= keep_ns;
            persisted.deleted.iter().filter(|(_, since)| is_expired(since)).map(|(name, _)| name.clone()).collect()
        });
        if expired.is_empty() {
            return;
        }
        let stored = self.store.nodes();
        for name in expired {
            let has_records = stored.iter().any(|node| node.name == name && !is_empty(node));
            if has_records {
                // The next eviction drops all records.
                self.nodes.change(|known| {
                    known.entry(name.clone()).or_default().retention = Some(EVICT_ALL);
                });
                self.apply_retention(&name);
                continue;
            }
            tracing::info!(node = name, "a deleted node is removed");
            let retention = self.nodes.change(|known| known.remove(&name)).and_then(|node| node.retention);
            if retention == Some(EVICT_ALL) {
                // Only the summary of open connections is left. With the default retention it is not evicted and written
                // again each time.
                self.apply_retention(&name);
            }
            if let Some(persisted) = self.persisted.write().as_mut() {
                persisted.deleted.remove(&name);
            }
        }
        self.save();
    }

    fn keep_ns(&self) -> i64 {
        i64::try_from(self.deleted_retention.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Number of nodes that vanished from the operator's snapshot and are kept.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.persisted.read().as_ref().map_or(0, |persisted| persisted.missing.len())
    }

    fn save(&self) {
        if let Some(persisted) = self.persisted.read().as_ref()
            && let Err(error) = persisted.save(&self.file)
        {
            warn_limited!(%error, file = %self.file.display(), "the catalog could not be persisted");
        }
    }

    fn apply_retention(&self, name: &str) {
        if let Err(error) = self.nodes.apply_retention(&self.store, name) {
            warn_limited!(%error, node = name, "retention could not be set");
        }
    }
}

/// Whether the node has no records, except possibly the summary of open connections.
pub(crate) fn is_empty(node: &NodeInfo) -> bool {
    node.facts == 0
}

#[cfg(test)]
mod tests;
