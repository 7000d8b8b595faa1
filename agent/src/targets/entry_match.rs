//! Matching a process with the entries of a configuration file, and the names of their nodes. Pure.

use std::{collections::BTreeMap, path::Path};

use super::{ContainerId, ProcessFacts};
use crate::config::NodeConfig;

/// A node entry with what was resolved for it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) config: NodeConfig,
    /// Inode of the namespace that `netns` names; none if it is not given or does not exist yet.
    pub(crate) netns: Option<u32>,
    /// Containers that have the name given as `container`.
    pub(crate) containers: Vec<ContainerId>,
}

impl Entry {
    pub(crate) fn new(config: NodeConfig) -> Self {
        Self { config, netns: None, containers: Vec::new() }
    }

    /// Whether the process is one of this entry's.
    pub(crate) fn is_met_by(&self, process: &ProcessFacts) -> bool {
        let config = &self.config;
        // A process id names one process: the port then only selects among its connections.
        let is_port = match config.p2p_port {
            Some(port) if config.pid.is_none() => process.is_listening_on(port),
            _ => true,
        };
        is_port
            && config.pid.is_none_or(|pid| pid == process.pid)
            && config.exe.as_deref().is_none_or(|exe| is_executable(exe, &process.exe))
            && config.container.as_deref().is_none_or(|wanted| self.is_container(wanted, process.container.as_ref()))
            && (config.netns.is_none() || self.netns == Some(process.netns))
    }

    fn is_container(&self, wanted: &str, container: Option<&ContainerId>) -> bool {
        container.is_some_and(|id| id.is_named(wanted) || self.containers.contains(id))
    }
}

/// A bare name matches the file in any directory.
fn is_executable(wanted: &Path, exe: &Path) -> bool {
    if wanted.is_absolute() { wanted == exe } else { exe.file_name() == Some(wanted.as_os_str()) }
}

/// Names of nodes: an entry that says only a port may meet processes in several network namespaces, and those are
/// several nodes.
///
/// The entry's plain name belongs to the first namespace; each further one is `<name>@<inode>`. A namespace keeps its
/// name while the agent runs. When the holder of the plain name has no live process any more, the next new namespace
/// takes the name over: a container that is started again gets a new namespace and is still the same node.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// (entry, namespace) to name.
    given: BTreeMap<(usize, u32), String>,
}

impl Names {
    /// The node's name for a process of `entry` in `netns`; `is_live`: whether a namespace has a live process of
    /// this entry.
    pub(crate) fn name(
        &mut self,
        index: usize,
        entry: &NodeConfig,
        netns: u32,
        is_live: impl Fn(u32) -> bool,
    ) -> String {
        if entry.is_narrowed() {
            return entry.name.clone();
        }
        if let Some(name) = self.given.get(&(index, netns)) {
            return name.clone();
        }
        let holder = self.given.iter().find(|((of, _), name)| *of == index && **name == entry.name);
        let name = match holder.map(|((_, netns), _)| *netns) {
            Some(holder) if is_live(holder) => format!("{}@{netns}", entry.name),
            Some(gone) => {
                self.given.remove(&(index, gone));
                entry.name.clone()
            }
            None => entry.name.clone(),
        };
        self.given.insert((index, netns), name.clone());
        name
    }
}

/// The first entry that a process matches. Narrower entries come first: `p2p_port` alone also matches a process that
/// another entry selects by its namespace.
pub(crate) fn entry_of(entries: &[Entry], process: &ProcessFacts) -> Option<usize> {
    let met = |index: &usize| entries.get(*index).is_some_and(|entry| entry.is_met_by(process));
    let narrow = |index: &usize| entries.get(*index).is_some_and(|entry| entry.config.is_narrowed());
    (0..entries.len()).filter(narrow).find(met).or_else(|| (0..entries.len()).filter(|index| !narrow(index)).find(met))
}

/// Of the processes that hold one listening socket, the one that serves it: the oldest, because its children inherited
/// the descriptor; but not the host's init, which only passes sockets to the services that it starts.
pub(crate) fn owner(holders: &[(u32, u64)]) -> Option<u32> {
    let oldest = |holders: &mut dyn Iterator<Item = &(u32, u64)>| {
        holders.min_by_key(|(pid, start)| (*start, *pid)).map(|(pid, _)| *pid)
    };
    oldest(&mut holders.iter().filter(|(pid, _)| *pid != 1)).or_else(|| oldest(&mut holders.iter()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{super::any_address, *};

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn process(pid: u32, netns: u32, ports: &[u16]) -> ProcessFacts {
        ProcessFacts {
            pid,
            start: 100,
            exe: PathBuf::from("/usr/local/bin/octez-node"),
            netns,
            container: None,
            location: None,
            parent: 1,
            argument: "octez-node".to_owned(),
            listens: ports.iter().copied().map(any_address).collect(),
        }
    }

    fn by_port(name: &str) -> NodeConfig {
        NodeConfig { name: name.to_owned(), p2p_port: Some(9732), ..NodeConfig::default() }
    }

    #[test]
    fn everything_that_is_given_must_hold() {
        let config = NodeConfig { exe: Some("octez-node".into()), netns: Some("/run/netns/a".into()), ..by_port("n") };
        let mut entry = Entry { netns: Some(5), ..Entry::new(config) };
        assert!(entry.is_met_by(&process(1, 5, &[8732, 9732])));
        assert!(!entry.is_met_by(&process(1, 6, &[9732])), "another namespace");
        assert!(!entry.is_met_by(&process(1, 5, &[8732])), "another port");
        let other = ProcessFacts { exe: "/usr/bin/tezos-node".into(), ..process(1, 5, &[9732]) };
        assert!(!entry.is_met_by(&other), "another executable");
        entry.netns = None;
        assert!(!entry.is_met_by(&process(1, 5, &[9732])), "the namespace is not there yet");
    }

    #[test]
    fn a_path_is_compared_whole_and_a_name_in_any_folder() {
        let exe = |exe: &str| {
            Entry::new(NodeConfig { name: "n".to_owned(), exe: Some(exe.into()), ..NodeConfig::default() })
                .is_met_by(&process(1, 1, &[]))
        };
        assert!(exe("octez-node"));
        assert!(exe("/usr/local/bin/octez-node"));
        assert!(!exe("/usr/bin/octez-node"));
        assert!(!exe("octez"));
    }

    #[test]
    fn a_process_id_needs_no_listening_socket() {
        let entry = Entry::new(NodeConfig { pid: Some(7), ..by_port("n") });
        assert!(entry.is_met_by(&process(7, 1, &[])));
        assert!(!entry.is_met_by(&process(8, 1, &[9732])));
    }

    #[test]
    fn containers_are_known_by_id_and_by_name() {
        let id = ContainerId::parse(ID);
        let inside = ProcessFacts { container: id.clone(), ..process(1, 1, &[]) };
        let named = |container: &str| {
            Entry::new(NodeConfig {
                name: "n".to_owned(),
                container: Some(container.to_owned()),
                ..NodeConfig::default()
            })
        };
        assert!(named(&ID[..12]).is_met_by(&inside));
        assert!(!named("tezedge").is_met_by(&inside));
        let resolved = Entry { containers: id.into_iter().collect(), ..named("tezedge") };
        assert!(resolved.is_met_by(&inside));
        assert!(!resolved.is_met_by(&process(1, 1, &[])), "in no container");
    }

    #[test]
    fn the_entry_that_says_more_comes_first() {
        let narrow =
            Entry { netns: Some(6), ..Entry::new(NodeConfig { netns: Some("/run/netns/b".into()), ..by_port("b") }) };
        let entries = [Entry::new(by_port("a")), narrow];
        assert_eq!(entry_of(&entries, &process(1, 5, &[9732])), Some(0));
        assert_eq!(entry_of(&entries, &process(2, 6, &[9732])), Some(1));
        assert_eq!(entry_of(&entries, &process(2, 6, &[1])), None);
    }

    #[test]
    fn a_second_namespace_is_a_node_of_its_own() {
        let mut names = Names::default();
        let entry = by_port("9732");
        assert_eq!(names.name(0, &entry, 5, |_| false), "9732");
        assert_eq!(names.name(0, &entry, 6, |_| true), "9732@6");
        assert_eq!(names.name(0, &entry, 5, |_| true), "9732", "a restart in its namespace");
        assert_eq!(names.name(0, &entry, 6, |_| true), "9732@6");
        let narrowed = NodeConfig { netns: Some("/x".into()), ..entry };
        assert_eq!(names.name(1, &narrowed, 9, |_| true), "9732");
    }

    #[test]
    fn a_container_that_starts_again_keeps_the_name() {
        let mut names = Names::default();
        let entry = by_port("9732");
        assert_eq!(names.name(0, &entry, 5, |_| false), "9732");
        assert_eq!(names.name(0, &entry, 7, |netns| netns != 5), "9732", "5 has no process any more");
        assert_eq!(names.name(0, &entry, 5, |netns| netns == 7), "9732@5");
    }

    #[test]
    fn the_oldest_holder_serves_a_listening_socket() {
        assert_eq!(owner(&[(20, 900), (10, 500), (30, 901)]), Some(10));
        assert_eq!(owner(&[(1, 1), (30, 901)]), Some(30));
        assert_eq!(owner(&[(1, 1)]), Some(1));
        assert_eq!(owner(&[]), None);
    }
}
