//! Which nodes there are, and which one a request means.
//!
//! A node is named by its name (`octez-0`, `default/octez-0`), by the last part of that name, or by a declared alias
//! such as its P2P port. Names are unique; what else matches more than one node is ambiguous, and said so.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;

use crate::{Error, NodeConfig};

/// What a request without `node_name` means, if such a node exists: the original's default.
const DEFAULT: &str = "tezedge";

/// Longest name of a node, in bytes.
const LONGEST: usize = 253;

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
    /// Named by the configuration, not by an agent.
    pub(crate) configured: bool,
}

/// All known nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    known: RwLock<BTreeMap<String, Known>>,
    most: usize,
}

impl Nodes {
    /// The configured nodes, and those that the store already holds.
    pub(crate) fn new(
        configured: &[NodeConfig],
        stored: impl IntoIterator<Item = String>,
        most: usize,
    ) -> Result<Self, Error> {
        let mut known = BTreeMap::new();
        for node in configured {
            check_name(&node.name).map_err(|why| Error::NodeName { name: node.name.clone(), why })?;
            let entry = Known { aliases: node.aliases.iter().cloned().collect(), configured: true };
            if known.insert(node.name.clone(), entry).is_some() {
                return Err(Error::DuplicateNode { name: node.name.clone() });
            }
        }
        for name in stored {
            known.entry(name).or_default();
        }
        Ok(Self { known: RwLock::new(known), most })
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

    /// All nodes, by name.
    pub(crate) fn all(&self) -> Vec<(String, Known)> {
        self.known.read().iter().map(|(name, node)| (name.clone(), node.clone())).collect()
    }

    /// The name of the node that is meant by `wanted`, or by saying nothing.
    pub(crate) fn find(&self, wanted: Option<&str>) -> Result<String, Unclear> {
        let known = self.known.read();
        let Some(wanted) = wanted else {
            return match (Self::matching(&known, DEFAULT).as_slice(), known.len()) {
                ([name], _) => Ok(name.clone()),
                (_, 0) => Err(Unclear::NoNodes),
                (_, 1) => known.keys().next().cloned().ok_or(Unclear::NoNodes),
                _ => Err(Unclear::Unsaid(known.keys().cloned().collect())),
            };
        };
        let mut matching = Self::matching(&known, wanted);
        match (matching.pop(), matching.is_empty()) {
            (None, _) => Err(Unclear::Unknown(wanted.to_owned())),
            (Some(name), true) => Ok(name),
            (Some(name), false) => {
                matching.push(name);
                Err(Unclear::Ambiguous(wanted.to_owned(), matching))
            }
        }
    }

    fn matching(known: &BTreeMap<String, Known>, wanted: &str) -> Vec<String> {
        if known.contains_key(wanted) {
            return vec![wanted.to_owned()];
        }
        let fits = |(name, node): &(&String, &Known)| {
            node.aliases.contains(wanted) || name.split_once('/').is_some_and(|(_, last)| last == wanted)
        };
        known.iter().filter(fits).map(|(name, _)| name.clone()).collect()
    }
}

/// Whether a node may be called so: one or two parts of letters, digits and `._:@-`, so that a name is safe in a path,
/// a label and a log line.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > LONGEST {
        return Err("it is longer than 253 bytes");
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
        Nodes::new(&list, [], 4).unwrap()
    }

    #[test]
    fn a_name_wins_over_aliases_and_ambiguity_is_said() {
        let nodes = nodes(&[("a/x", &["9732"]), ("b/x", &["9732", "main"]), ("main", &[])]);
        assert_eq!(nodes.find(Some("a/x")), Ok("a/x".into()));
        assert_eq!(nodes.find(Some("main")), Ok("main".into()));
        assert_eq!(nodes.find(Some("x")), Err(Unclear::Ambiguous("x".into(), vec!["a/x".into(), "b/x".into()])));
        let both = vec!["a/x".to_owned(), "b/x".to_owned()];
        assert_eq!(nodes.find(Some("9732")), Err(Unclear::Ambiguous("9732".into(), both)));
        assert_eq!(nodes.find(Some("y")), Err(Unclear::Unknown("y".into())));
        assert!(matches!(nodes.find(None), Err(Unclear::Unsaid(all)) if all.len() == 3));
    }

    #[test]
    fn saying_nothing_means_tezedge_or_the_only_node() {
        assert_eq!(nodes(&[]).find(None), Err(Unclear::NoNodes));
        assert_eq!(nodes(&[("9732", &[])]).find(None), Ok("9732".into()));
        assert_eq!(nodes(&[("9732", &[]), ("tezedge", &[])]).find(None), Ok("tezedge".into()));
        assert_eq!(nodes(&[("9732", &["tezedge"]), ("b", &[])]).find(None), Ok("9732".into()));
    }

    #[test]
    fn what_an_agent_calls_a_node_is_checked_and_their_number_bounded() {
        let nodes = nodes(&[]);
        for bad in ["", "/", "a/", "a/b/c", "..", "a/..", "a b", "a\n", "é", &"a".repeat(254)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
            assert!(matches!(nodes.register(bad), Err(Unclear::Bad(..))), "{bad:?}");
        }
        for good in ["a", "b/octez-0", "9732", "c_d.e:f@g"] {
            assert_eq!(nodes.register(good), Ok(()));
        }
        assert_eq!(nodes.register("a"), Ok(()), "known already");
        assert_eq!(nodes.register("z"), Err(Unclear::Many(4)));
    }
}
