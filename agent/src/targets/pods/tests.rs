//! Processes of pods that come, go and change, on a machine made up for it.

use std::{cell::RefCell, path::Path, rc::Rc, sync::atomic::AtomicBool, sync::atomic::Ordering};

use chainscope_proto::v1::{HostUpdate, MemoryOptions, NetworkOptions, ObservedPod};

use super::*;
use crate::targets::{
    ContainerId, Plan, TargetChange, any_address,
    pod_map::tests::{OTHER_UID, UID, location, pod, snapshot},
    system::{ExitWatch, FakeExit, System},
    table::TargetTable,
};

type Processes = BTreeMap<u32, (ProcessFacts, Arc<AtomicBool>)>;

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Processes>>);

impl System for Fake {
    fn facts(&self, pid: u32) -> Option<ProcessFacts> {
        self.0.borrow().get(&pid).map(|(facts, _)| facts.clone())
    }

    fn scan(&self, _ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
        self.0.borrow().values().map(|(facts, _)| facts.clone()).collect()
    }

    fn netns(&self, _path: &Path) -> Option<u32> {
        None
    }

    fn containers(&self, _name: &str) -> Vec<ContainerId> {
        Vec::new()
    }

    fn watch(&self, pid: u32) -> Option<Box<dyn ExitWatch>> {
        Some(Box::new(FakeExit(Arc::clone(&self.0.borrow().get(&pid)?.1))))
    }
}

struct Bench {
    machine: Fake,
    table: TargetTable<Fake>,
    map: PodMap,
}

impl Bench {
    fn new() -> Self {
        let machine = Fake::default();
        let table = TargetTable::new(machine.clone(), Plan::pods(Watch::default(), Arc::default()));
        Self { machine, table, map: PodMap::default() }
    }

    fn with(pods: Vec<ObservedPod>) -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.configure(pods), []);
        bench
    }

    fn configure(&mut self, pods: Vec<ObservedPod>) -> Vec<TargetChange> {
        let update: HostUpdate = snapshot(self.map.generation + 1, pods);
        self.map.apply(update, true).unwrap();
        let map = Arc::new(self.map.clone());
        self.table.replan(|plan| {
            if let Plan::Pods(pods) = plan {
                pods.set(map)
            }
        })
    }

    fn process(&self, pid: u32, exe: &str, location: ContainerLocation) {
        let facts = ProcessFacts {
            pid,
            start: u64::from(pid),
            exe: Path::new("/usr/local/bin").join(exe),
            netns: 1,
            container: Some(location.container.clone()),
            location: Some(location),
            parent: 1,
            argument: exe.to_owned(),
            listens: BTreeSet::new(),
        };
        self.machine.0.borrow_mut().insert(pid, (facts, Arc::default()));
    }

    fn edit(&self, pid: u32, edit: impl FnOnce(&mut ProcessFacts)) {
        edit(&mut self.machine.0.borrow_mut().get_mut(&pid).unwrap().0);
    }

    fn stop(&self, pid: u32) {
        let (_, over) = self.machine.0.borrow_mut().remove(&pid).unwrap();
        over.store(true, Ordering::Relaxed);
    }

    fn plan(&self) -> &PodPlan {
        let Plan::Pods(plan) = self.table.plan() else { panic!() };
        plan
    }
}

fn started(change: Option<TargetChange>) -> (u32, String, bool) {
    let Some(TargetChange::Started(found)) = change else { panic!("{change:?}") };
    assert_eq!(found.owner, Owner::Pod(UID.to_owned()));
    (found.facts.pid, found.assignment.node.to_string(), found.was_held)
}

fn node() -> String {
    "default/octez".to_owned()
}

#[test]
fn a_process_of_a_configured_pod_is_observed_at_its_execution() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    assert!(bench.table.is_incomplete());
    bench.process(10, "octez-node", location('a', Some(UID)));
    assert_eq!(started(bench.table.executed(10)), (10, node(), false));
    assert_eq!(bench.table.executed(10), None, "known already");
    assert!(!bench.table.is_incomplete());
    assert!(bench.table.scan().is_empty());
}

#[test]
fn a_process_without_a_match_is_dismissed() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-client", location('a', Some(UID)));
    bench.process(11, "octez-node", location('a', Some(OTHER_UID)));
    bench.edit(11, |facts| facts.exe = "/usr/bin/else".into());
    bench.edit(11, |facts| facts.argument.clear());
    bench.process(12, "octez-node", location('a', Some(UID)));
    bench.edit(12, |facts| facts.location = None);
    for pid in [10, 11, 12, 99] {
        assert_eq!(bench.table.executed(pid), Some(TargetChange::Dismissed(pid)), "{pid}");
    }
}

#[test]
fn a_program_may_be_known_by_its_first_argument() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node-v20", location('a', Some(UID)));
    bench.edit(10, |facts| facts.argument = "octez-node".to_owned());
    assert_eq!(started(bench.table.executed(10)).0, 10);
}

#[test]
fn a_child_of_the_node_is_not_the_node() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", location('a', Some(UID)));
    started(bench.table.executed(10));
    bench.process(11, "octez-node", location('a', Some(UID)));
    bench.edit(11, |facts| facts.parent = 10);
    assert_eq!(bench.table.executed(11), Some(TargetChange::Dismissed(11)));
    assert!(bench.table.scan().is_empty());
}

#[test]
fn a_process_is_held_until_it_is_configured() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", location('a', Some(UID)));
    assert!(matches!(bench.table.executed(10), Some(TargetChange::Held(facts)) if facts.pid == 10));
    assert_eq!(bench.configure(vec![pod(OTHER_UID, 'b')]), [], "not yet");
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert_eq!(changes.len(), 1);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_known_port_holds_a_process_of_any_name() {
    let mut bench = Bench::new();
    bench.process(10, "my-node", location('a', Some(UID)));
    assert_eq!(bench.table.executed(10), Some(TargetChange::Dismissed(10)));
    assert!(matches!(bench.table.listening(10, 1, any_address(9732)), Some(TargetChange::Held(_))));
    let named = ObservedPod { process: "my-node".to_owned(), ..pod(UID, 'a') };
    let changes = bench.configure(vec![named]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
    // From now on its name is known to the kernel too.
    assert!(bench.table.watch_list().process_names.contains("my-node"));
}

#[test]
fn a_process_that_is_never_configured_is_released_and_not_held_again() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", location('a', Some(UID)));
    bench.table.executed(10);
    let now = std::time::Instant::now();
    let hold = Watch::default().hold;
    assert_eq!(bench.table.overdue(now), []);
    assert_eq!(bench.table.overdue(now + hold), [TargetChange::Discarded(10)]);
    assert_eq!(bench.table.settled(10), None);
    assert!(bench.table.scan().is_empty());
    assert_eq!(bench.table.overdue(now + 2 * hold), []);
    // It is observed when it is configured after all, from then on.
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), false));
}

#[test]
fn a_held_process_that_exited_is_still_interpreted() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", location('a', Some(UID)));
    bench.table.executed(10);
    bench.stop(10);
    let ended = bench.table.ended();
    assert_eq!(ended.iter().map(|ended| (ended.pid, ended.was_observed)).collect::<Vec<_>>(), [(10, false)]);
    assert!(bench.table.ended().is_empty());
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert!(matches!(&changes[..], [TargetChange::Started(found)] if found.has_exited && found.was_held));
    assert!(bench.table.is_incomplete(), "it is gone");
}

/// A pod that executes programs of the node's name takes no place of other pods.
#[test]
fn held_processes_are_limited() {
    const OF_POD: u32 = 32;
    const ALL: u32 = 256;
    let uid = |number: u32| format!("{number:08}-0000-0000-0000-000000000000");
    let mut bench = Bench::new();
    let execute = |bench: &mut Bench, number: u32, pod: u32| {
        let pid = 1000 * (pod + 1) + number;
        bench.process(pid, "octez-node", location('a', Some(&uid(pod))));
        bench.table.executed(pid)
    };
    for pod in 0..ALL / OF_POD {
        for number in 0..OF_POD {
            assert!(matches!(execute(&mut bench, number, pod), Some(TargetChange::Held(_))), "{number} of pod {pod}");
        }
        let pid = 1000 * (pod + 1) + OF_POD;
        assert_eq!(execute(&mut bench, OF_POD, pod), Some(TargetChange::Dismissed(pid)), "one more of pod {pod}");
    }
    assert_eq!(execute(&mut bench, 0, 99), Some(TargetChange::Dismissed(100_000)), "of another pod");
    // One that is configured is observed nevertheless.
    assert_eq!(bench.configure(vec![pod(UID, 'b')]), []);
    bench.process(10, "octez-node", location('b', Some(UID)));
    assert_eq!(started(bench.table.executed(10)), (10, node(), false));
    // Held processes whose time is over make place.
    let over = std::time::Instant::now() + Watch::default().hold;
    assert_eq!(bench.table.overdue(over).len(), ALL as usize);
    assert!(matches!(execute(&mut bench, 1, 99), Some(TargetChange::Held(_))));
}

/// A container that starts many processes of the node's name takes no places of other nodes.
#[test]
fn observed_processes_of_a_configured_pod_are_limited() {
    const OF_POD: u32 = 64;
    let mut bench = Bench::with(vec![pod(UID, 'a'), pod(OTHER_UID, 'b')]);
    let execute = |bench: &mut Bench, pid: u32| {
        bench.process(pid, "octez-node", location('a', Some(UID)));
        bench.table.executed(pid)
    };
    for pid in 0..OF_POD {
        assert_eq!(started(execute(&mut bench, 100 + pid)).0, 100 + pid);
    }
    assert!(bench.table.take_refused().is_empty());
    for pid in [200, 201] {
        assert_eq!(execute(&mut bench, pid), Some(TargetChange::Dismissed(pid)), "the kernel must not capture it");
    }
    let refused = bench.table.take_refused();
    let [refused] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!((refused.pid, refused.owner.pod()), (200, Some(UID)));
    assert_eq!(bench.configure(vec![pod(UID, 'a'), pod(OTHER_UID, 'b')]), [], "the others stay");
    // Of another pod.
    bench.process(300, "octez-node", location('b', Some(OTHER_UID)));
    assert!(matches!(bench.table.executed(300), Some(TargetChange::Started(_))));
    // When one exits there is room for one.
    assert!(bench.table.scan().is_empty());
    bench.stop(100);
    let mut changes = bench.table.scan();
    assert_eq!(started(changes.pop()).0, 200);
    assert!(changes.is_empty());
    assert_eq!(bench.table.take_refused().iter().map(|refused| refused.pid).collect::<Vec<_>>(), [201]);
}

#[test]
fn a_node_is_held_until_its_identity_arrives_again() {
    let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way/identity.json"));
    let secret = || ObservedPod {
        identity: Some(chainscope_proto::v1::observed_pod::Identity::IdentityJson(json.as_bytes().to_vec())),
        ..pod(UID, 'a')
    };
    let kept = |bench: &mut Bench| {
        bench.map.apply(snapshot(1, vec![secret()]), true).unwrap();
        let bare = bench.map.bare();
        assert_eq!(bench.configure(bare.pods), []);
        bench.process(10, "octez-node", location('a', Some(UID)));
        assert!(matches!(bench.table.scan()[..], [TargetChange::Held(_)]));
    };
    let mut bench = Bench::new();
    kept(&mut bench);
    let changes = bench.configure(vec![secret()]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
    // The operator stays away: it is recorded as it is.
    let mut bench = Bench::new();
    kept(&mut bench);
    let now = std::time::Instant::now();
    assert_eq!(bench.table.overdue(now), []);
    let changes = bench.table.overdue(now + Watch::default().hold);
    assert_eq!(changes.len(), 1);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_restarted_container_is_held_until_its_id_arrives() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", location('b', Some(UID)));
    assert!(matches!(bench.table.executed(10), Some(TargetChange::Held(_))));
    let both = ObservedPod { container_ids: vec!["b".repeat(64)], ..pod(UID, 'a') };
    let changes = bench.configure(vec![both]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_node_that_is_removed_is_released_and_found_again() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", location('a', Some(UID)));
    bench.table.executed(10);
    assert_eq!(bench.configure(vec![]), [TargetChange::Released(10)]);
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "not before the kernel has forgotten it");
    assert_eq!(started(bench.table.settled(10)), (10, node(), false));
    // The pod becomes another node's.
    let other = ObservedPod { node: "default/other".to_owned(), ..pod(UID, 'a') };
    assert_eq!(bench.configure(vec![other]), [TargetChange::Released(10)]);
    assert_eq!(started(bench.table.settled(10)), (10, "default/other".to_owned(), false));
}

#[test]
fn options_change_without_a_restart_of_the_capture() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", location('a', Some(UID)));
    bench.table.executed(10);
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "nothing new");
    let network = Some(NetworkOptions { enabled: true, plain_only: true });
    let changes = bench.configure(vec![ObservedPod { network, p2p_port: Some(19732), ..pod(UID, 'a') }]);
    let [TargetChange::Changed(10, assignment)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(
        (assignment.p2p_port, assignment.observe.network.map(|network| network.store)),
        (Some(19732), Some(chainscope_spec::Stored::Plain))
    );
    let network = Some(NetworkOptions { enabled: false, plain_only: false });
    assert_eq!(bench.configure(vec![ObservedPod { network, ..pod(UID, 'a') }]), [TargetChange::Released(10)]);
    assert!(!bench.table.is_incomplete(), "none of its pillars is enabled");
}

#[test]
fn memory_is_observed_without_the_network() {
    let asked = |network| ObservedPod {
        network: Some(NetworkOptions { enabled: network, plain_only: false }),
        memory: Some(MemoryOptions { enabled: true }),
        ..pod(UID, 'a')
    };
    let observed = |change: Option<TargetChange>| match change {
        Some(TargetChange::Started(found)) => {
            (found.assignment.observe.network.is_some(), found.assignment.observe.memory)
        }
        other => panic!("{other:?}"),
    };
    let mut bench = Bench::with(vec![asked(false)]);
    assert!(bench.table.is_incomplete());
    bench.process(10, "octez-node", location('a', Some(UID)));
    assert_eq!(observed(bench.table.executed(10)), (false, true));
    // What the kernel captures begins and ends: so does the observation.
    for network in [true, false] {
        assert_eq!(bench.configure(vec![asked(network)]), [TargetChange::Released(10)]);
        assert_eq!(observed(bench.table.settled(10)), (network, true));
    }
}

#[test]
fn restarts_inside_the_container_are_followed() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    let map = Arc::clone(bench.plan().map());
    let pod = &map.pods[UID];
    assert!(!bench.plan().pods_with_container().contains(&pod.uid));
    // The shell that runs the node in a loop.
    bench.process(5, "sh", location('a', Some(UID)));
    assert!(bench.table.scan().is_empty());
    assert!(bench.plan().pods_with_container().contains(&pod.uid));
    for pid in 10..13 {
        bench.process(pid, "octez-node", location('a', Some(UID)));
        assert_eq!(started(bench.table.executed(pid)).0, pid);
        bench.stop(pid);
        assert!(bench.table.ended().iter().all(|ended| ended.pid == pid && ended.was_observed));
        assert!(bench.table.is_incomplete());
    }
    bench.stop(5);
    bench.table.scan();
    assert!(!bench.plan().pods_with_container().contains(&pod.uid));
}

#[test]
fn a_process_number_that_is_used_again_is_another_process() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", location('a', Some(UID)));
    bench.table.executed(10);
    bench.stop(10);
    bench.table.ended();
    bench.process(10, "octez-node", location('b', Some(OTHER_UID)));
    bench.edit(10, |facts| facts.start = 99);
    assert!(matches!(bench.table.executed(10), Some(TargetChange::Held(facts)) if facts.start == 99));
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "the pod's process is gone, and this one is another's");
}
