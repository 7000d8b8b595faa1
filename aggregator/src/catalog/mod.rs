//! Which nodes there are, as the operator says: names, aliases, retention, the hosts with pods of a node.
//!
//! ```text
//! operator ══ snapshot, then changes ══▶ client ─▶ Kept ─┬─▶ file      known again after a restart, operator or not
//!                                                        ├─▶ nodes     names and aliases, for requests
//!                                                        ├─▶ store     retention
//!                                                        └─▶ ingest    which host may deliver which node
//! ```
//!
//! A node whose resource was deleted keeps its records for a while ([`CatalogConfig::keep_deleted`]), so that a slip can
//! be undone; then they go. So does a node that the store has and the operator does not know.

mod client;
mod kept;

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

pub(crate) use self::client::follow;
use self::kept::Kept;
use crate::{
    Error,
    nodes::{self, Known, Nodes},
};

/// Retention of a node whose time is over: nothing is as young as this.
const NOTHING: Retention = Retention { rows: None, bytes: None, age: Some(nodes::NOTHING) };

/// Where the catalog comes from.
#[derive(Debug, Clone)]
pub struct CatalogConfig {
    /// The operator's config stream: `https://host:17734`, or `http://…` without a file of authorities.
    pub operator: String,
    /// Certificate authorities that the operator is believed by.
    pub ca_file: Option<PathBuf>,
    /// The token that this program shows; read again at each connection.
    pub token_file: Option<PathBuf>,
    /// Where the catalog is kept for the next start.
    pub file: PathBuf,
    /// How long records of a deleted node are kept.
    pub keep_deleted: Duration,
}

/// Bytes that a summary of open connections may have: at most a few thousand of them, some hundred bytes each.
const SUMMARY: u64 = 1 << 20;

/// Why an update is not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("the operator's update is of version {0}, which this build does not speak")]
    Version(u32),
    #[error("the operator sends changes before anything that they change")]
    NoSnapshot,
}

/// What the operator said last.
pub(crate) struct Catalog {
    kept: RwLock<Option<Kept>>,
    /// Held while a change is taken over, so that they follow one another.
    changing: Mutex<()>,
    nodes: Arc<Nodes>,
    store: Store,
    file: PathBuf,
    keep_deleted: Duration,
    connected: AtomicBool,
}

impl Catalog {
    /// The catalog as it was kept; blocks.
    pub(crate) fn open(config: &CatalogConfig, nodes: Arc<Nodes>, store: Store, now_ns: i64) -> Result<Self, Error> {
        let kept = Kept::load(&config.file).map_err(|source| Error::File { path: config.file.clone(), source })?;
        let catalog = Self {
            kept: RwLock::new(None),
            changing: Mutex::new(()),
            nodes,
            store,
            file: config.file.clone(),
            keep_deleted: config.keep_deleted,
            connected: AtomicBool::new(false),
        };
        if let Some(kept) = kept {
            let names = kept.nodes.keys().cloned().collect();
            *catalog.kept.write() = Some(kept);
            catalog.show(names, now_ns);
        }
        Ok(catalog)
    }

    /// Whether an operator ever said which nodes there are.
    pub(crate) fn is_known(&self) -> bool {
        self.kept.read().is_some()
    }

    /// Whether the operator is there now.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Whether pods of the node are on the host.
    pub(crate) fn lists(&self, node: &str, host: &str) -> bool {
        self.kept.read().as_ref().and_then(|kept| kept.nodes.get(node)).is_some_and(|node| node.hosts.contains(host))
    }

    /// Takes over what the operator says. Blocks.
    pub(crate) fn apply(&self, update: CatalogUpdate, now_ns: i64) -> Result<(), UpdateError> {
        let _changing = self.changing.lock();
        let before = self.kept.read().clone();
        let (kept, changed) = Kept::updated(before.as_ref(), update, self.nodes.most())?;
        if before.as_ref() != Some(&kept) {
            *self.kept.write() = Some(kept);
            self.save();
        }
        self.show(changed, now_ns);
        Ok(())
    }

    /// Makes these nodes what the catalog says, and all others no longer configured.
    fn show(&self, changed: BTreeSet<String>, now_ns: i64) {
        {
            let kept = self.kept.read();
            let Some(kept) = kept.as_ref() else { return };
            self.nodes.change(|known| {
                for (name, node) in &kept.nodes {
                    if changed.contains(name) || !known.contains_key(name) {
                        let (aliases, retention) = (node.aliases.clone(), Some(node.retention()));
                        let memory = node.memory();
                        let node = Known { aliases, configured: true, retention, memory, deleted_ns: None };
                        known.insert(name.clone(), node);
                    }
                }
            });
        }
        self.look_for_deleted(now_ns);
        for name in changed {
            self.tell(&name);
        }
    }

    /// Notes since when nodes are missing in the catalog.
    fn look_for_deleted(&self, now_ns: i64) {
        let mut guard = self.kept.write();
        let Some(kept) = guard.as_mut() else { return };
        let before = kept.deleted.clone();
        self.nodes.change(|known| {
            kept.deleted.retain(|name, _| !kept.nodes.contains_key(name));
            for (name, node) in known.iter_mut().filter(|(name, _)| !kept.nodes.contains_key(*name)) {
                let since = *kept.deleted.entry(name.clone()).or_insert(now_ns);
                node.configured = false;
                node.deleted_ns = Some(since);
            }
        });
        let is_changed = kept.deleted != before;
        drop(guard);
        if is_changed {
            self.save();
        }
    }

    /// Lets go of deleted nodes whose time is over. To be called before the store evicts. Blocks.
    pub(crate) fn tick(&self, now_ns: i64) {
        let _changing = self.changing.lock();
        self.look_for_deleted(now_ns);
        let keep_ns = i64::try_from(self.keep_deleted.as_nanos()).unwrap_or(i64::MAX);
        let over: Vec<String> = self.kept.read().as_ref().map_or_else(Vec::new, |kept| {
            let is_over = |since: &i64| now_ns.saturating_sub(*since) >= keep_ns;
            kept.deleted.iter().filter(|(_, since)| is_over(since)).map(|(name, _)| name.clone()).collect()
        });
        if over.is_empty() {
            return;
        }
        let stored = self.store.nodes();
        for name in over {
            let has_records = stored.iter().any(|node| node.name == name && !is_empty(node));
            if has_records {
                // The eviction that follows drops everything.
                self.nodes.change(|known| {
                    known.entry(name.clone()).or_default().retention = Some(NOTHING);
                });
                self.tell(&name);
                continue;
            }
            tracing::info!(node = name, "a deleted node is forgotten");
            let retention = self.nodes.change(|known| known.remove(&name)).and_then(|node| node.retention);
            if retention == Some(NOTHING) {
                // Nothing but the summary of connections that were open is left, which is not worth a new one each time.
                self.tell(&name);
            }
            if let Some(kept) = self.kept.write().as_mut() {
                kept.deleted.remove(&name);
            }
        }
        self.save();
    }

    fn save(&self) {
        if let Some(kept) = self.kept.read().as_ref()
            && let Err(error) = kept.save(&self.file)
        {
            warn_limited!(%error, file = %self.file.display(), "the catalog could not be kept for the next start");
        }
    }

    fn tell(&self, name: &str) {
        if let Err(error) = self.nodes.tell_retention(&self.store, name) {
            warn_limited!(%error, node = name, "retention could not be set");
        }
    }
}

/// Whether nothing is left of the node but, at most, the summary of connections that were open.
pub(crate) fn is_empty(node: &NodeInfo) -> bool {
    node.rows == 0 && node.bytes < SUMMARY
}

#[cfg(test)]
mod tests;
