//! The table of a configuration file on a fake machine.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::*;
use crate::{
    config::NodeConfig,
    targets::{
        ContainerId, Machine, any_address,
        entries::{ASK_INTERVAL, EntryPlan, TRIES},
        proc::Proc,
        system::{ExitWatch, FakeExit},
    },
};

#[derive(Default)]
struct World {
    processes: BTreeMap<u32, (ProcessFacts, Arc<AtomicBool>)>,
    namespaces: HashMap<PathBuf, u32>,
    containers: HashMap<String, ContainerId>,
    /// How often containers were asked for.
    asked: u32,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<World>>);

impl System for Fake {
    fn facts(&self, pid: u32) -> Option<ProcessFacts> {
        self.0.borrow().processes.get(&pid).map(|(facts, _)| facts.clone())
    }

    fn scan(&self, _ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
        self.0.borrow().processes.values().map(|(facts, _)| facts.clone()).collect()
    }

    fn netns(&self, path: &Path) -> Option<u32> {
        self.0.borrow().namespaces.get(path).copied()
    }

    fn containers(&self, name: &str) -> Vec<ContainerId> {
        self.0.borrow_mut().asked += 1;
        self.0.borrow().containers.get(name).cloned().into_iter().collect()
    }

    fn watch(&self, pid: u32) -> Option<Box<dyn ExitWatch>> {
        let (_, over) = self.0.borrow().processes.get(&pid)?.clone();
        Some(Box::new(FakeExit(over)))
    }
}

impl Fake {
    fn start(&self, pid: u32, netns: u32, ports: &[u16], container: Option<&ContainerId>) {
        let facts = ProcessFacts {
            pid,
            start: u64::from(pid),
            exe: "/usr/bin/octez-node".into(),
            netns,
            container: container.cloned(),
            location: None,
            parent: 1,
            argument: String::new(),
            listens: ports.iter().copied().map(any_address).collect(),
        };
        self.0.borrow_mut().processes.insert(pid, (facts, Arc::default()));
    }

    fn stop(&self, pid: u32) {
        if let Some((_, over)) = self.0.borrow_mut().processes.remove(&pid) {
            over.store(true, Ordering::Relaxed);
        }
    }
}

fn by_container(name: &str) -> NodeConfig {
    NodeConfig { name: name.to_owned(), container: Some("tezedge".to_owned()), ..NodeConfig::default() }
}

fn by_port(name: &str) -> NodeConfig {
    NodeConfig { name: name.to_owned(), p2p_port: Some(9732), ..NodeConfig::default() }
}

fn table(machine: &Fake, nodes: &[NodeConfig]) -> TargetTable<Fake> {
    TargetTable::new(machine.clone(), Plan::entries(nodes))
}

fn found(change: Option<TargetChange>) -> Option<StartedTarget> {
    change.map(|change| {
        if let TargetChange::Started(found) = change { StartedTarget::clone(&found) } else { panic!("{change:?}") }
    })
}

fn names(changes: Vec<TargetChange>) -> Vec<(u32, String)> {
    let named = |found: StartedTarget| (found.facts.pid, found.assignment.node.to_string());
    changes.into_iter().filter_map(|change| found(Some(change))).map(named).collect()
}

fn named(pid: u32, name: &str) -> (u32, String) {
    (pid, name.to_owned())
}

fn pids(ended: Vec<Ended>) -> Vec<u32> {
    ended.into_iter().map(|ended| ended.pid).collect()
}

#[test]
fn a_restart_is_the_same_node() {
    let machine = Fake::default();
    machine.start(10, 1, &[9732], None);
    let mut table = table(&machine, &[by_port("tezos")]);
    assert_eq!(names(table.scan()), [named(10, "tezos")]);
    assert_eq!(names(table.scan()), [], "known already");
    machine.stop(10);
    assert_eq!(pids(table.ended()), [10]);
    assert!(table.is_incomplete());
    machine.start(11, 1, &[], None);
    let found = found(table.listening(11, 1, any_address(9732))).unwrap();
    assert_eq!((&*found.assignment.node, &*found.assignment.label), ("tezos", "pid 11"));
    assert!(!table.is_incomplete());
    assert!(table.ended().is_empty());
}

#[test]
fn two_namespaces_are_two_nodes_and_a_new_namespace_after_a_restart_is_not() {
    let machine = Fake::default();
    machine.start(10, 1, &[9732], None);
    machine.start(20, 2, &[9732], None);
    let mut table = table(&machine, &[by_port("9732")]);
    assert_eq!(names(table.scan()), [named(10, "9732"), named(20, "9732@2")]);
    machine.stop(10);
    table.ended();
    machine.start(30, 3, &[9732], None);
    assert_eq!(names(table.listening(30, 3, any_address(9732)).into_iter().collect()), [named(30, "9732")]);
}

#[test]
fn a_process_that_matches_only_the_port_is_not_a_target() {
    let machine = Fake::default();
    machine.0.borrow_mut().namespaces.insert("/run/netns/a".into(), 1);
    machine.start(20, 2, &[9732], None);
    let entry = NodeConfig { netns: Some("/run/netns/a".into()), ..by_port("a") };
    let mut table = table(&machine, &[entry]);
    assert_eq!(table.watch_list().ports, BTreeSet::from([(Some(1), 9732)]));
    assert!(table.scan().is_empty());
    assert_eq!(
        table.listening(20, 2, any_address(9732)),
        Some(TargetChange::Dismissed(20)),
        "the kernel captures it already"
    );
    assert_eq!(table.executed(99), None, "gone already");
}

#[test]
fn a_container_that_appears_later_is_found_by_its_name() {
    let machine = Fake::default();
    let id = ContainerId::parse(&"ab".repeat(32)).unwrap();
    let mut table = table(&machine, &[by_container("t")]);
    assert!(matches!(table.plan(), Plan::Entries(entries) if entries.needs_exec()));
    assert!(table.scan().is_empty());
    machine.0.borrow_mut().containers.insert("tezedge".to_owned(), id.clone());
    machine.start(10, 1, &[], Some(&id));
    let found = found(table.executed(10)).unwrap();
    assert_eq!((&*found.assignment.node, &*found.assignment.label), ("t", "pid 10 in abababababab"));
}

/// Longer than any interval between two requests, on a slow machine too.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn docker_is_asked_only_about_unnamed_containers_and_at_intervals() {
    let machine = Fake::default();
    let [own, other] = ["ab", "cd"].map(|two| ContainerId::parse(&two.repeat(32)).unwrap());
    machine.0.borrow_mut().containers.insert("tezedge".to_owned(), own.clone());
    machine.start(10, 1, &[], None);
    machine.start(20, 2, &[], Some(&other));
    machine.start(30, 3, &[], Some(&own));
    let mut plan = EntryPlan::new(&[NodeConfig { exe: Some("tezos-node".into()), ..by_container("t") }]);
    let mut now = Instant::now();
    let execute = |plan: &mut EntryPlan, pid, now| plan.resolve_for(&machine.facts(pid).unwrap(), &machine, now);
    let asked = || machine.0.borrow().asked;

    execute(&mut plan, 10, now);
    assert_eq!(asked(), 0, "in no container");
    execute(&mut plan, 20, now);
    execute(&mut plan, 20, now + ASK_INTERVAL / 2);
    assert_eq!((asked(), plan.due(&machine, now).len()), (1, 0), "too early");
    execute(&mut plan, 30, now + LONG);
    assert_eq!(asked(), 1, "known, and another program");

    // Missing from a few answers, it is not asked about again.
    for _ in 0..2 * TRIES {
        now += LONG;
        assert!(plan.due(&machine, now).is_empty() && plan.due(&machine, now).is_empty());
    }
    execute(&mut plan, 20, now + LONG);
    assert_eq!(asked(), u32::from(TRIES));
}

#[test]
fn an_entry_without_a_container_name_sends_no_request() {
    let machine = Fake::default();
    let id = ContainerId::parse(&"ab".repeat(32)).unwrap();
    machine.start(10, 1, &[], Some(&id));
    let mut table = table(&machine, &[by_port("a"), NodeConfig { netns: Some("/run/netns/b".into()), ..by_port("b") }]);
    assert_eq!(table.executed(10), None);
    assert_eq!(machine.0.borrow().asked, 0);
}

#[test]
fn a_process_whose_container_is_named_late_is_found_when_it_is() {
    let machine = Fake::default();
    let id = ContainerId::parse(&"ab".repeat(32)).unwrap();
    let mut table = table(&machine, &[by_container("t")]);
    machine.start(10, 1, &[], Some(&id));
    let before = Instant::now();
    assert_eq!(table.executed(10), None);
    machine.0.borrow_mut().containers.insert("tezedge".to_owned(), id);
    assert!(table.overdue(before).is_empty(), "too early");
    assert_eq!(names(table.overdue(before + LONG)), [named(10, "t")]);
    assert!(table.overdue(before + 2 * LONG).is_empty());
    assert_eq!(machine.0.borrow().asked, 2);
}

#[test]
fn the_exit_of_a_real_process_is_noticed() {
    let mut child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let exit = Machine::new(Proc::default()).watch(child.id()).unwrap();
    assert!(!exit.has_exited());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(exit.has_exited());
    assert!(Machine::new(Proc::default()).watch(child.id()).is_none_or(|exit| exit.has_exited()));
}
