//! Processes of pods that come, go and change, on a machine made up for it.

use std::{cell::RefCell, path::Path, rc::Rc, sync::atomic::AtomicBool, sync::atomic::Ordering};

use chainscope_proto::v1::{HostUpdate, MemoryOptions, NetworkOptions, ObservedPod};

use super::*;
use crate::{
    operator::pods::tests::{OTHER_UID, UID, place, pod, snapshot},
    targets::{Change, ContainerId, Life, Plan, Roster, System},
};

type Processes = BTreeMap<u32, (ProcessFacts, Arc<AtomicBool>)>;

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Processes>>);

struct FakeLife(Arc<AtomicBool>);

impl Life for FakeLife {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

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

    fn watch(&self, pid: u32) -> Option<Box<dyn Life>> {
        Some(Box::new(FakeLife(Arc::clone(&self.0.borrow().get(&pid)?.1))))
    }
}

struct Bench {
    machine: Fake,
    roster: Roster<Fake>,
    map: PodMap,
}

impl Bench {
    fn new() -> Self {
        let machine = Fake::default();
        let roster = Roster::new(machine.clone(), Plan::Pods(PodPlan::new(Watch::default())));
        Self { machine, roster, map: PodMap::default() }
    }

    fn with(pods: Vec<ObservedPod>) -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.configure(pods), []);
        bench
    }

    fn configure(&mut self, pods: Vec<ObservedPod>) -> Vec<Change> {
        let update: HostUpdate = snapshot(self.map.generation + 1, pods);
        self.map.apply(update, true).unwrap();
        let map = Arc::new(self.map.clone());
        self.roster.replan(|plan| {
            if let Plan::Pods(pods) = plan {
                pods.set(map)
            }
        })
    }

    fn process(&self, pid: u32, exe: &str, place: Place) {
        let facts = ProcessFacts {
            pid,
            start: u64::from(pid),
            exe: Path::new("/usr/local/bin").join(exe),
            netns: 1,
            container: Some(place.container.clone()),
            place: Some(place),
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
        let Plan::Pods(plan) = self.roster.plan() else { panic!() };
        plan
    }
}

fn started(change: Option<Change>) -> (u32, String, bool) {
    let Some(Change::Start(found)) = change else { panic!("{change:?}") };
    assert_eq!(found.owner, Owner::Pod(UID.to_owned()));
    (found.facts.pid, found.assignment.node.to_string(), found.was_held)
}

fn node() -> String {
    "default/octez".to_owned()
}

#[test]
fn a_process_of_a_configured_pod_is_observed_at_its_execution() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    assert!(bench.roster.is_incomplete());
    bench.process(10, "octez-node", place('a', Some(UID)));
    assert_eq!(started(bench.roster.executed(10)), (10, node(), false));
    assert_eq!(bench.roster.executed(10), None, "known already");
    assert!(!bench.roster.is_incomplete());
    assert!(bench.roster.scan().is_empty());
}

#[test]
fn what_is_not_meant_is_dismissed() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-client", place('a', Some(UID)));
    bench.process(11, "octez-node", place('a', Some(OTHER_UID)));
    bench.edit(11, |facts| facts.exe = "/usr/bin/else".into());
    bench.edit(11, |facts| facts.argument.clear());
    bench.process(12, "octez-node", place('a', Some(UID)));
    bench.edit(12, |facts| facts.place = None);
    for pid in [10, 11, 12, 99] {
        assert_eq!(bench.roster.executed(pid), Some(Change::Dismiss(pid)), "{pid}");
    }
}

#[test]
fn a_program_may_be_known_by_its_first_argument() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node-v20", place('a', Some(UID)));
    bench.edit(10, |facts| facts.argument = "octez-node".to_owned());
    assert_eq!(started(bench.roster.executed(10)).0, 10);
}

#[test]
fn a_part_of_the_node_s_work_is_not_the_node() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", place('a', Some(UID)));
    started(bench.roster.executed(10));
    bench.process(11, "octez-node", place('a', Some(UID)));
    bench.edit(11, |facts| facts.parent = 10);
    assert_eq!(bench.roster.executed(11), Some(Change::Dismiss(11)));
    assert!(bench.roster.scan().is_empty());
}

#[test]
fn a_process_is_held_until_it_is_configured() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", place('a', Some(UID)));
    assert!(matches!(bench.roster.executed(10), Some(Change::Hold(facts)) if facts.pid == 10));
    assert_eq!(bench.configure(vec![pod(OTHER_UID, 'b')]), [], "not yet");
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert_eq!(changes.len(), 1);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_known_port_holds_a_process_of_any_name() {
    let mut bench = Bench::new();
    bench.process(10, "my-node", place('a', Some(UID)));
    assert_eq!(bench.roster.executed(10), Some(Change::Dismiss(10)));
    assert!(matches!(bench.roster.listening(10, 1, 9732), Some(Change::Hold(_))));
    let named = ObservedPod { process: "my-node".to_owned(), ..pod(UID, 'a') };
    let changes = bench.configure(vec![named]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
    // From now on its name is known to the kernel too.
    assert!(bench.roster.watched_programs().contains("my-node"));
}

#[test]
fn a_process_that_nobody_configures_is_let_go_and_not_held_again() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", place('a', Some(UID)));
    bench.roster.executed(10);
    let now = std::time::Instant::now();
    let hold = Watch::default().hold;
    assert_eq!(bench.roster.overdue(now), []);
    assert_eq!(bench.roster.overdue(now + hold), [Change::Discard(10)]);
    assert_eq!(bench.roster.settled(10), None);
    assert!(bench.roster.scan().is_empty());
    assert_eq!(bench.roster.overdue(now + 2 * hold), []);
    // It is observed when it is configured after all, from then on.
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), false));
}

#[test]
fn a_held_process_that_ended_is_interpreted_all_the_same() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", place('a', Some(UID)));
    bench.roster.executed(10);
    bench.stop(10);
    let ended = bench.roster.ended();
    assert_eq!(ended.iter().map(|ended| (ended.pid, ended.was_observed)).collect::<Vec<_>>(), [(10, false)]);
    assert!(bench.roster.ended().is_empty());
    let changes = bench.configure(vec![pod(UID, 'a')]);
    assert!(matches!(&changes[..], [Change::Start(found)] if found.is_gone && found.was_held));
    assert!(bench.roster.is_incomplete(), "it is gone");
}

#[test]
fn with_its_identity_on_the_way_again_a_node_is_held_for_a_while() {
    let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way/identity.json"));
    let secret = || ObservedPod {
        identity: Some(chainscope_proto::v1::observed_pod::Identity::IdentityJson(json.as_bytes().to_vec())),
        ..pod(UID, 'a')
    };
    let kept = |bench: &mut Bench| {
        bench.map.apply(snapshot(1, vec![secret()]), true).unwrap();
        let bare = bench.map.bare();
        assert_eq!(bench.configure(bare.pods), []);
        bench.process(10, "octez-node", place('a', Some(UID)));
        assert!(matches!(bench.roster.scan()[..], [Change::Hold(_)]));
    };
    let mut bench = Bench::new();
    kept(&mut bench);
    let changes = bench.configure(vec![secret()]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
    // The operator stays away: it is recorded as it is.
    let mut bench = Bench::new();
    kept(&mut bench);
    let now = std::time::Instant::now();
    assert_eq!(bench.roster.overdue(now), []);
    let changes = bench.roster.overdue(now + Watch::default().hold);
    assert_eq!(changes.len(), 1);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_container_that_is_restarted_is_held_until_its_id_is_told() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", place('b', Some(UID)));
    assert!(matches!(bench.roster.executed(10), Some(Change::Hold(_))));
    let both = ObservedPod { container_ids: vec!["b".repeat(64)], ..pod(UID, 'a') };
    let changes = bench.configure(vec![both]);
    assert_eq!(started(changes.into_iter().next()), (10, node(), true));
}

#[test]
fn a_node_that_is_no_longer_wanted_is_released_and_found_again() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", place('a', Some(UID)));
    bench.roster.executed(10);
    assert_eq!(bench.configure(vec![]), [Change::Release(10)]);
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "not before the kernel has forgotten it");
    assert_eq!(started(bench.roster.settled(10)), (10, node(), false));
    // The pod becomes another node's.
    let other = ObservedPod { node: "default/other".to_owned(), ..pod(UID, 'a') };
    assert_eq!(bench.configure(vec![other]), [Change::Release(10)]);
    assert_eq!(started(bench.roster.settled(10)), (10, "default/other".to_owned(), false));
}

#[test]
fn options_change_without_a_new_beginning() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    bench.process(10, "octez-node", place('a', Some(UID)));
    bench.roster.executed(10);
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "nothing new");
    let network = Some(NetworkOptions { enabled: true, plain_only: true });
    let changes = bench.configure(vec![ObservedPod { network, p2p_port: Some(19732), ..pod(UID, 'a') }]);
    let [Change::Update(10, assignment)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((assignment.p2p_port, assignment.store), (Some(19732), chainscope_spec::Stored::Plain));
    let network = Some(NetworkOptions { enabled: false, plain_only: false });
    assert_eq!(bench.configure(vec![ObservedPod { network, ..pod(UID, 'a') }]), [Change::Release(10)]);
    assert!(!bench.roster.is_incomplete(), "nothing is wanted of it");
}

#[test]
fn memory_is_observed_without_the_network() {
    let asked = |network| ObservedPod {
        network: Some(NetworkOptions { enabled: network, plain_only: false }),
        memory: Some(MemoryOptions { enabled: true }),
        ..pod(UID, 'a')
    };
    let observed = |change: Option<Change>| match change {
        Some(Change::Start(found)) => (found.assignment.network, found.assignment.memory),
        other => panic!("{other:?}"),
    };
    let mut bench = Bench::with(vec![asked(false)]);
    assert!(bench.roster.is_incomplete());
    bench.process(10, "octez-node", place('a', Some(UID)));
    assert_eq!(observed(bench.roster.executed(10)), (false, true));
    // What the kernel captures begins and ends: so does the observation.
    for network in [true, false] {
        assert_eq!(bench.configure(vec![asked(network)]), [Change::Release(10)]);
        assert_eq!(observed(bench.roster.settled(10)), (network, true));
    }
}

#[test]
fn restarts_inside_the_container_are_followed() {
    let mut bench = Bench::with(vec![pod(UID, 'a')]);
    let map = Arc::clone(bench.plan().map());
    let pod = &map.pods[UID];
    assert!(!bench.plan().has_container(pod));
    // The shell that runs the node in a loop.
    bench.process(5, "sh", place('a', Some(UID)));
    assert!(bench.roster.scan().is_empty());
    assert!(bench.plan().has_container(pod));
    for pid in 10..13 {
        bench.process(pid, "octez-node", place('a', Some(UID)));
        assert_eq!(started(bench.roster.executed(pid)).0, pid);
        bench.stop(pid);
        assert!(bench.roster.ended().iter().all(|ended| ended.pid == pid && ended.was_observed));
        assert!(bench.roster.is_incomplete());
    }
    bench.stop(5);
    bench.roster.scan();
    assert!(!bench.plan().has_container(pod));
}

#[test]
fn a_process_number_that_is_used_again_is_another_process() {
    let mut bench = Bench::new();
    bench.process(10, "octez-node", place('a', Some(UID)));
    bench.roster.executed(10);
    bench.stop(10);
    bench.roster.ended();
    bench.process(10, "octez-node", place('b', Some(OTHER_UID)));
    bench.edit(10, |facts| facts.start = 99);
    assert!(matches!(bench.roster.executed(10), Some(Change::Hold(facts)) if facts.start == 99));
    assert_eq!(bench.configure(vec![pod(UID, 'a')]), [], "the pod's process is gone, and this one is another's");
}
