//! Which nodes there are, and which one a request means.
//!
//! A node is named by its name (`octez-0`, `default/octez-0`), by the last part of that name, or by a declared alias
//! such as its P2P port. Names are unique; what else matches more than one node is ambiguous, and said so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chainscope_store::{LONGEST_NODE, Retention, SnapshotLimits, Store};
use parking_lot::{Mutex, RwLock};

use crate::{Error, NodeConfig, config::SnapshotPolicy};

/// What a request without `node_name` means, if such a node exists: the original's default.
const DEFAULT: &str = "tezedge";

/// Age of the oldest record of a node whose time is over: nothing is as young as this.
pub(crate) const NOTHING: Duration = Duration::from_nanos(1);

/// Why no node is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unclear {
    /// There is no such node.
    Unknown(String),
    /// Nothing was said, and there is no node at all.
    NoNodes,
    /// Nothing was said, and there are several: their names.
    Unsaid(Vec<String>),
    /// The name fits several: their names.
    Ambiguous(String, Vec<String>),
    /// There are as many nodes as there may be.
    Many(usize),
    /// No node can be called so.
    Bad(String, &'static str),
}

/// A known node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) aliases: BTreeSet<String>,
    /// Named by the configuration or the catalog, not by an agent.
    pub(crate) configured: bool,
    /// How long its records are kept; none: as those of nodes that nobody configured.
    pub(crate) retention: Option<Retention>,
    /// How snapshots of its memory are kept; none: by default.
    pub(crate) memory: Option<SnapshotPolicy>,
    /// When its resource was found deleted, nanoseconds since 1970.
    pub(crate) deleted_ns: Option<i64>,
}

/// All known nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    known: RwLock<BTreeMap<String, Known>>,
    most: usize,
    /// Retention of nodes that have none of their own.
    retention: Retention,
    /// Held while the store is told a retention, so that an older one is never told last.
    telling: Mutex<()>,
}

impl Nodes {
    /// The configured nodes, and those that the store already holds.
    pub(crate) fn new(
        configured: &[NodeConfig],
        stored: impl IntoIterator<Item = String>,
        most: usize,
        retention: Retention,
    ) -> Result<Self, Error> {
        let mut known = BTreeMap::new();
        for node in configured {
            check_name(&node.name).map_err(|why| Error::NodeName { name: node.name.clone(), why })?;
            let entry = Known {
                aliases: node.aliases.iter().cloned().collect(),
                configured: true,
                retention: Some(node.retention),
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
        Ok(Self { known: RwLock::new(known), most, retention, telling: Mutex::new(()) })
    }

    /// Changes what is known. Blocks readers: to be quick.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Known>) -> T) -> T {
        change(&mut self.known.write())
    }

    /// Tells the store how long records of the node are kept. Blocks.
    pub(crate) fn tell_retention(&self, store: &Store, name: &str) -> Result<(), chainscope_store::Error> {
        let _telling = self.telling.lock();
        let own = self.known.read().get(name).and_then(|known| known.retention);
        store.set_retention(name, own.unwrap_or(self.retention))
    }

    /// How snapshots of the node's memory are kept; none if there is no such node, or its time is over.
    pub(crate) fn memory(&self, name: &str) -> Option<SnapshotPolicy> {
        let known = self.known.read();
        let node = known.get(name)?;
        let nothing =
            SnapshotPolicy { every: Duration::ZERO, limits: SnapshotLimits { age: Some(NOTHING), bytes: None } };
        let is_over = node.retention.is_some_and(|retention| retention.age == Some(NOTHING));
        Some(if is_over { nothing } else { node.memory.unwrap_or_default() })
    }

    /// Makes sure that the node is known.
    pub(crate) fn register(&self, name: &str) -> Result<(), Unclear> {
        if self.known.read().contains_key(name) {
            return Ok(());
        }
        check_name(name).map_err(|why| Unclear::Bad(name.to_owned(), why))?;
        let mut known = self.known.write();
        if known.len() >= self.most {
            return Err(Unclear::Many(self.most));
        }
        known.entry(name.to_owned()).or_default();
        Ok(())
    }

    /// How many nodes there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// All nodes, by name.
    pub(crate) fn all(&self) -> Vec<(String, Known)> {
        self.known.read().iter().map(|(name, node)| (name.clone(), node.clone())).collect()
    }

    /// Whether there is a node of this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.known.read().contains_key(name)
    }

    /// Names of all nodes that `wanted` may mean; all nodes if nothing is said.
    pub(crate) fn candidates(&self, wanted: Option<&str>) -> Vec<String> {
        let known = self.known.read();
        known
            .iter()
            .filter(|(name, node)| wanted.is_none_or(|wanted| fits(name, node, wanted)))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The name of the node that is meant by `wanted`, or by saying nothing; `only` these nodes exist for who asks.
    pub(crate) fn find(&self, wanted: Option<&str>, only: Option<&BTreeSet<String>>) -> Result<String, Unclear> {
        let known = self.known.read();
        let there = || known.iter().filter(|(name, _)| only.is_none_or(|only| only.contains(*name)));
        let matching = |wanted: &str| -> Vec<String> {
            match there().find(|(name, _)| *name == wanted) {
                Some((name, _)) => vec![name.clone()],
                None => there().filter(|(name, node)| fits(name, node, wanted)).map(|(name, _)| name.clone()).collect(),
            }
        };
        let Some(wanted) = wanted else {
            if let [name] = matching(DEFAULT).as_slice() {
                return Ok(name.clone());
            }
            let mut all: Vec<String> = there().map(|(name, _)| name.clone()).collect();
            return match (all.pop(), all.is_empty()) {
                (None, _) => Err(Unclear::NoNodes),
                (Some(name), true) => Ok(name),
                (Some(name), false) => {
                    all.push(name);
                    Err(Unclear::Unsaid(all))
                }
            };
        };
        let mut matching = matching(wanted);
        match (matching.pop(), matching.is_empty()) {
            (None, _) => Err(Unclear::Unknown(wanted.to_owned())),
            (Some(name), true) => Ok(name),
            (Some(name), false) => {
                matching.push(name);
                Err(Unclear::Ambiguous(wanted.to_owned(), matching))
            }
        }
    }
}

/// Whether a node may be meant: by its name, the last part of it, or an alias.
fn fits(name: &str, node: &Known, wanted: &str) -> bool {
    name == wanted || node.aliases.contains(wanted) || name.split_once('/').is_some_and(|(_, last)| last == wanted)
}

/// Whether a node may be called so: one or two parts of letters, digits and `._:@-`, so that a name is safe in a path,
/// a label and a log line.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > LONGEST_NODE {
        return Err("it is longer than 507 bytes");
    }
    let mut parts = name.split('/');
    let first = parts.next().unwrap_or_default();
    let second = parts.next();
    if parts.next().is_some() {
        return Err("it has more than two parts");
    }
    for part in std::iter::once(first).chain(second) {
        if part.is_empty() || part == "." || part == ".." {
            return Err("a part of it is empty or consists of dots");
        }
        if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte)) {
            return Err("it has a character other than letters, digits and ._:@-");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use chainscope_store::Retention;

    use super::{Nodes, Unclear, check_name};
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
    fn a_name_wins_over_aliases_and_ambiguity_is_said() {
        let nodes = nodes(&[("a/x", &["9732"]), ("b/x", &["9732", "main"]), ("main", &[])]);
        assert_eq!(nodes.find(Some("a/x"), None), Ok("a/x".into()));
        assert_eq!(nodes.find(Some("main"), None), Ok("main".into()));
        assert_eq!(nodes.find(Some("x"), None), Err(Unclear::Ambiguous("x".into(), vec!["a/x".into(), "b/x".into()])));
        let both = vec!["a/x".to_owned(), "b/x".to_owned()];
        assert_eq!(nodes.find(Some("9732"), None), Err(Unclear::Ambiguous("9732".into(), both)));
        assert_eq!(nodes.find(Some("y"), None), Err(Unclear::Unknown("y".into())));
        assert!(matches!(nodes.find(None, None), Err(Unclear::Unsaid(all)) if all.len() == 3));
    }

    #[test]
    fn saying_nothing_means_tezedge_or_the_only_node() {
        assert_eq!(nodes(&[]).find(None, None), Err(Unclear::NoNodes));
        assert_eq!(nodes(&[("9732", &[])]).find(None, None), Ok("9732".into()));
        assert_eq!(nodes(&[("9732", &[]), ("tezedge", &[])]).find(None, None), Ok("tezedge".into()));
        assert_eq!(nodes(&[("9732", &["tezedge"]), ("b", &[])]).find(None, None), Ok("9732".into()));
    }

    #[test]
    fn what_an_agent_calls_a_node_is_checked_and_their_number_bounded() {
        let nodes = nodes(&[]);
        for bad in ["", "/", "a/", "a/b/c", "..", "a/..", "a b", "a\n", "é", &"a".repeat(508)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
            assert!(matches!(nodes.register(bad), Err(Unclear::Bad(..))), "{bad:?}");
        }
        let longest = format!("{}/{}", "n".repeat(253), "x".repeat(253));
        for good in ["a", "b/octez-0", &longest, "c_d.e:f@g"] {
            assert_eq!(nodes.register(good), Ok(()));
        }
        assert_eq!(nodes.register("a"), Ok(()), "known already");
        assert_eq!(nodes.register("z"), Err(Unclear::Many(4)));
    }
}
