//! The nodes of this aggregator, and which of them a request selects.
//!
//! A request selects a node by its name (`octez-0`, `default/octez-0`), by the last part of that name, or by a declared
//! alias such as its P2P port. Names are unique; an alias or last part of several nodes is an error that lists them.

mod config;
mod name;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chainscope_store::{Retention, SnapshotLimits, Store};
use parking_lot::{Mutex, RwLock};

pub use self::config::{NodeConfig, SnapshotPolicy};
pub(crate) use self::{
    config::{default_log_retention, default_trace_retention, retention_of},
    name::check_name,
};
use crate::Error;

/// Node of a request without `node_name`, if it exists: the default of the original.
const DEFAULT_NODE: &str = "tezedge";

/// Maximum age of the records of a node that is to be deleted: every record is older.
pub(crate) const EXPIRED_AGE: Duration = Duration::from_nanos(1);

/// Why a request selects no node, or a node cannot be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResolveError {
    /// No node has this name or alias.
    Unknown(String),
    /// The request has no name, and there is no node.
    NoNodes,
    /// The request has no name, and there are several nodes: their names.
    Unspecified(Vec<String>),
    /// The name selects several nodes: their names.
    Ambiguous(String, Vec<String>),
    /// The maximum number of nodes is reached.
    TooMany(usize),
    /// The name is not valid: the name and the reason.
    InvalidName(String, &'static str),
}

/// What the aggregator knows of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeEntry {
    pub(crate) aliases: BTreeSet<String>,
    /// It is in the configuration or the catalog, not only named by an agent.
    pub(crate) configured: bool,
    /// Limits of its records; none: the default retention.
    pub(crate) retention: Option<Retention>,
    /// Limits of its log messages; none: the default retention of log messages.
    pub(crate) log_retention: Option<Retention>,
    /// Limits of its events of tracepoints; none: the default retention of these.
    pub(crate) trace_retention: Option<Retention>,
    /// Snapshots of its memory; none: the default policy.
    pub(crate) memory: Option<SnapshotPolicy>,
    /// When its resource was found to be deleted, nanoseconds since 1970.
    pub(crate) deleted_ns: Option<i64>,
}

/// The nodes of this aggregator.
#[derive(Debug)]
pub(crate) struct Nodes {
    known: RwLock<BTreeMap<String, NodeEntry>>,
    max: usize,
    /// Retention of nodes that have none of their own.
    retention: Retention,
    /// Held while a retention is applied, so that an older one never replaces a newer one.
    applying: Mutex<()>,
}

impl Nodes {
    /// The configured nodes and those of the store.
    pub(crate) fn new(
        configured: &[NodeConfig],
        stored: impl IntoIterator<Item = String>,
        max: usize,
        retention: Retention,
    ) -> Result<Self, Error> {
        let mut known = BTreeMap::new();
        for node in configured {
            check_name(&node.name).map_err(|why| Error::NodeName { name: node.name.clone(), why })?;
            let entry = NodeEntry {
                aliases: node.aliases.iter().cloned().collect(),
                configured: true,
                retention: Some(node.retention),
                log_retention: Some(node.log_retention),
                trace_retention: Some(node.trace_retention),
                memory: Some(node.memory),
                deleted_ns: None,
            };
            if known.insert(node.name.clone(), entry).is_some() {
                return Err(Error::DuplicateNode { name: node.name.clone() });
            }
        }
        for name in stored {
            known.entry(name).or_default();
        }
        Ok(Self { known: RwLock::new(known), max, retention, applying: Mutex::new(()) })
    }

    /// Changes the nodes. Readers wait meanwhile.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, NodeEntry>) -> T) -> T {
        change(&mut self.known.write())
    }

    /// Sets the retention of the node in the store. Blocks.
    pub(crate) fn apply_retention(&self, store: &Store, name: &str) -> Result<(), chainscope_store::Error> {
        let _applying = self.applying.lock();
        let known = self.known.read();
        let known = known.get(name).map(|known| (known.retention, known.log_retention, known.trace_retention));
        let (own, logs, trace) = known.unwrap_or_default();
        let retention = own.unwrap_or(self.retention);
        let (logs, trace) = match is_expired(&retention) {
            true => (retention, retention),
            false => (logs.unwrap_or_else(default_log_retention), trace.unwrap_or_else(default_trace_retention)),
        };
        store.set_retention(name, retention)?;
        store.set_log_retention(name, logs)?;
        store.set_trace_retention(name, trace)
    }

    /// Snapshot policy of the node; none if there is no such node. A node that is to be deleted keeps no snapshots.
    pub(crate) fn memory(&self, name: &str) -> Option<SnapshotPolicy> {
        let known = self.known.read();
        let node = known.get(name)?;
        let expired =
            SnapshotPolicy { every: Duration::ZERO, limits: SnapshotLimits { age: Some(EXPIRED_AGE), bytes: None } };
        Some(if node.retention.as_ref().is_some_and(is_expired) { expired } else { node.memory.unwrap_or_default() })
    }

    /// Adds the node unless it is known.
    pub(crate) fn register(&self, name: &str) -> Result<(), ResolveError> {
        if self.known.read().contains_key(name) {
            return Ok(());
        }
        check_name(name).map_err(|why| ResolveError::InvalidName(name.to_owned(), why))?;
        let mut known = self.known.write();
        if known.len() >= self.max {
            return Err(ResolveError::TooMany(self.max));
        }
        known.entry(name.to_owned()).or_default();
        Ok(())
    }

    /// Maximum number of nodes.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// All nodes, by name.
    pub(crate) fn all(&self) -> Vec<(String, NodeEntry)> {
        self.known.read().iter().map(|(name, node)| (name.clone(), node.clone())).collect()
    }

    /// Whether there is a node of this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.known.read().contains_key(name)
    }

    /// Names of the nodes that `wanted` matches; all nodes without it.
    pub(crate) fn candidates(&self, wanted: Option<&str>) -> Vec<String> {
        let known = self.known.read();
        known
            .iter()
            .filter(|(name, node)| wanted.is_none_or(|wanted| matches(name, node, wanted)))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The node that `wanted`, or a request without a name, selects. With `only`, the caller may know these nodes only.
    pub(crate) fn find(&self, wanted: Option<&str>, only: Option<&BTreeSet<String>>) -> Result<String, ResolveError> {
        let known = self.known.read();
        let there = || known.iter().filter(|(name, _)| only.is_none_or(|only| only.contains(*name)));
        let matching = |wanted: &str| -> Vec<String> {
            match there().find(|(name, _)| *name == wanted) {
                Some((name, _)) => vec![name.clone()],
                None => {
                    there().filter(|(name, node)| matches(name, node, wanted)).map(|(name, _)| name.clone()).collect()
                }
            }
        };
        let Some(wanted) = wanted else {
            if let [name] = matching(DEFAULT_NODE).as_slice() {
                return Ok(name.clone());
            }
            let mut all: Vec<String> = there().map(|(name, _)| name.clone()).collect();
            return match (all.pop(), all.is_empty()) {
                (None, _) => Err(ResolveError::NoNodes),
                (Some(name), true) => Ok(name),
                (Some(name), false) => {
                    all.push(name);
                    Err(ResolveError::Unspecified(all))
                }
            };
        };
        let mut matching = matching(wanted);
        match (matching.pop(), matching.is_empty()) {
            (None, _) => Err(ResolveError::Unknown(wanted.to_owned())),
            (Some(name), true) => Ok(name),
            (Some(name), false) => {
                matching.push(name);
                Err(ResolveError::Ambiguous(wanted.to_owned(), matching))
            }
        }
    }
}

/// Whether a retention is that of a node that is to be deleted.
fn is_expired(retention: &Retention) -> bool {
    retention.age == Some(EXPIRED_AGE)
}

/// Whether a node is selected by its name, the last part of it, or an alias.
fn matches(name: &str, node: &NodeEntry, wanted: &str) -> bool {
    name == wanted || node.aliases.contains(wanted) || name.split_once('/').is_some_and(|(_, last)| last == wanted)
}

#[cfg(test)]
mod tests {
    use chainscope_store::Retention;

    use super::{Nodes, ResolveError, check_name};
    use crate::NodeConfig;

    fn nodes(list: &[(&str, &[&str])]) -> Nodes {
        let list: Vec<_> = list
            .iter()
            .map(|(name, aliases)| NodeConfig {
                aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
                ..NodeConfig::new(*name)
            })
            .collect();
        Nodes::new(&list, [], 4, Retention::default()).unwrap()
    }

    #[test]
    fn a_name_has_precedence_over_aliases_and_ambiguity_is_an_error() {
        let nodes = nodes(&[("a/x", &["9732"]), ("b/x", &["9732", "main"]), ("main", &[])]);
        assert_eq!(nodes.find(Some("a/x"), None), Ok("a/x".into()));
        assert_eq!(nodes.find(Some("main"), None), Ok("main".into()));
        assert_eq!(
            nodes.find(Some("x"), None),
            Err(ResolveError::Ambiguous("x".into(), vec!["a/x".into(), "b/x".into()]))
        );
        let both = vec!["a/x".to_owned(), "b/x".to_owned()];
        assert_eq!(nodes.find(Some("9732"), None), Err(ResolveError::Ambiguous("9732".into(), both)));
        assert_eq!(nodes.find(Some("y"), None), Err(ResolveError::Unknown("y".into())));
        assert!(matches!(nodes.find(None, None), Err(ResolveError::Unspecified(all)) if all.len() == 3));
    }

    #[test]
    fn a_request_without_a_name_selects_tezedge_or_the_only_node() {
        assert_eq!(nodes(&[]).find(None, None), Err(ResolveError::NoNodes));
        assert_eq!(nodes(&[("9732", &[])]).find(None, None), Ok("9732".into()));
        assert_eq!(nodes(&[("9732", &[]), ("tezedge", &[])]).find(None, None), Ok("tezedge".into()));
        assert_eq!(nodes(&[("9732", &["tezedge"]), ("b", &[])]).find(None, None), Ok("9732".into()));
    }

    #[test]
    fn names_from_agents_are_checked_and_the_number_of_nodes_is_limited() {
        let nodes = nodes(&[]);
        for bad in ["", "/", "a/", "a/b/c", "..", "a/..", "a b", "a\n", "é", &"a".repeat(508)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
            assert!(matches!(nodes.register(bad), Err(ResolveError::InvalidName(..))), "{bad:?}");
        }
        let longest = format!("{}/{}", "n".repeat(253), "x".repeat(253));
        for good in ["a", "b/octez-0", &longest, "c_d.e:f@g"] {
            assert_eq!(nodes.register(good), Ok(()));
        }
        assert_eq!(nodes.register("a"), Ok(()), "known already");
        assert_eq!(nodes.register("z"), Err(ResolveError::TooMany(4)));
    }
}
