//! The worker without a kernel: what it tells the reader.

use chainscope_ebpf::network::{Direction, Opened, Role, SocketId};
use chainscope_proto::v1::{Record, record::Kind};
use crossbeam_channel::unbounded;
use parking_lot::Mutex;

use super::*;
use crate::{
    blocking::BlockingPool,
    clock::Clock,
    config::TargetLimits,
    figures::TargetTallies,
    network::{
        interpreter::tests::recorded::{Step, synthetic, whole},
        journal::Waiting,
    },
    pillar::PillarStatus as _,
    targets::{
        Assignment, Network, Observe, Owner, ProcessFacts, RefusedTarget, StartCause, StartedTarget, identity::Source,
    },
};

/// Keeps the events of targets.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl RecordSink for Events {
    fn push(&mut self, _node: &str, record: Record) -> bool {
        if let Some(Kind::TargetEvent(event)) = record.kind {
            self.0.lock().push(event.event);
        }
        true
    }

    fn merge(&mut self, _node: &str, _record: Record) {}
}

struct Bench {
    worker: Worker<Events>,
    commands: Receiver<Command>,
    events: Events,
    notices: Receiver<Notice>,
    /// Reads of identities run here.
    pool: BlockingPool,
    _inbox: Sender<TargetChange>,
    _dir: tempfile::TempDir,
}

#[expect(clippy::disallowed_methods, reason = "few values")]
fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let proc = Proc::default();
    let (commands, commanded) = unbounded();
    let (inbox, changes) = unbounded();
    let (answers, identities) = unbounded();
    let pool = BlockingPool::new("test", "test");
    let identity_reader = IdentityReader::new(proc.clone(), pool.clone(), answers);
    let (notices, noticed) = unbounded();
    let events = Events::default();
    let channels =
        Channels { commands, wake_reader: Box::new(|| ()), inbox: changes, notices, identity_reader, identities };
    let interpreter =
        Interpreter::new(events.clone(), Clock::with_offset(0), TargetLimits::default(), Waiting::default());
    let worker = Worker::new(
        interpreter,
        proc,
        channels,
        Folder::open(dir.path()).unwrap(),
        false,
        Arc::new(Figures::new(Vec::new())),
        Heartbeat::new("test"),
    );
    Bench { worker, commands: commanded, events, notices: noticed, pool, _inbox: inbox, _dir: dir }
}

/// This process as a target that began at this time.
fn started(start: u64) -> TargetChange {
    TargetChange::Started(Arc::new(target(start)))
}

fn target(start: u64) -> StartedTarget {
    let facts = ProcessFacts {
        pid: std::process::id(),
        start,
        exe: "/x".into(),
        netns: 1,
        container: None,
        location: None,
        parent: 1,
        argument: String::new(),
        listens: BTreeSet::new(),
    };
    let assignment = Assignment {
        node: "node".into(),
        label: "pid".into(),
        p2p_port: Some(9732),
        identity: Source::Missing("a test".to_owned()),
        observe: Observe { network: Some(Network::default()), ..Observe::default() },
    };
    StartedTarget {
        facts,
        owner: Owner::Entry(0),
        assignment,
        cause: StartCause::Found,
        was_held: false,
        has_exited: false,
    }
}

fn opened() -> Event<'static> {
    opened_as(7)
}

fn opened_as(socket: u64) -> Event<'static> {
    Event::Opened(Opened {
        socket: SocketId(socket),
        pid: std::process::id(),
        netns: 1,
        inode: 2,
        local: "127.0.0.1:9732".parse().unwrap(),
        remote: "127.0.0.1:1".parse().unwrap(),
        role: Some(Role::Initiator),
        sent_offset: 0,
        received_offset: 0,
        time_ns: 1,
    })
}

/// Whether the worker lets the kernel leave the socket alone.
fn is_left_alone(bench: &Bench) -> bool {
    let is_verdict = |command: &Command| matches!(command, Command::Decide(SocketId(7), Verdict::LeaveAlone));
    bench.commands.try_iter().any(|command| is_verdict(&command))
}

#[test]
fn sockets_of_a_later_process_with_the_id_of_a_target_are_left_alone() {
    let start = Proc::default().start_of(std::process::id()).unwrap();
    for (start, is_reused) in [(start, false), (start - 1, true)] {
        let mut bench = bench();
        bench.worker.apply(&started(start));
        bench.worker.event(&ProbeEvent::Event(opened()));
        bench.worker.send_verdicts();
        assert_eq!(is_left_alone(&bench), is_reused);
    }
}

impl Bench {
    fn start(&mut self, target: StartedTarget) {
        self.worker.apply(&TargetChange::Started(Arc::new(target)));
    }

    fn event(&mut self, event: Event<'_>) {
        self.worker.event(&ProbeEvent::Event(event));
        self.worker.send_verdicts();
    }

    /// Whether a command to capture this process was sent to the kernel since the last call.
    fn is_added(&self) -> bool {
        let is_this = |command: &Command| matches!(command, Command::AddProcess { pid, port: Some(9732), .. } if *pid == std::process::id());
        self.commands.try_iter().filter(is_this).count() == 1
    }

    /// Causes in the next report.
    fn refused(&self) -> Vec<(String, String)> {
        let mut tallies = TargetTallies::default();
        self.worker.figures.tally(&mut tallies);
        tallies.refused
    }

    /// A process exits, and the kernel forgets it.
    fn forget(&mut self, pid: u32) {
        self.worker.apply(&TargetChange::Exited(pid));
        self.worker.event(&ProbeEvent::Settled { pid, account: None });
    }
}

fn pod_of(target: StartedTarget) -> StartedTarget {
    StartedTarget { owner: Owner::Pod("uid".to_owned()), ..target }
}

const FULL: &str = "the table of processes is full";

#[test]
fn a_refused_target_is_tried_again_until_the_kernel_captures_it() {
    let pid = std::process::id();
    let mut bench = bench();
    bench.start(pod_of(target(Proc::default().start_of(pid).unwrap())));
    assert!(bench.is_added());
    let causes = vec![("uid".to_owned(), FULL.to_owned())];
    bench.worker.event(&ProbeEvent::Refused { pid, cause: FULL });
    assert_eq!(bench.refused(), causes);
    bench.worker.poll();
    assert!(!bench.is_added(), "too early");
    // When the kernel forgot another process, and after a while.
    bench.forget(99);
    bench.worker.poll();
    assert!(bench.is_added());
    bench.worker.event(&ProbeEvent::Refused { pid, cause: FULL });
    bench.worker.retried = Instant::now().checked_sub(RETRY_INTERVAL);
    bench.worker.poll();
    assert!(bench.is_added());
    bench.worker.event(&ProbeEvent::Watched { pid });
    assert_eq!(bench.refused(), [], "what no report has taken is not true any more");
    assert!(bench.notices.try_iter().any(|notice| notice == Notice::Captured { pid }));
    assert_eq!(*bench.events.0.lock(), ["identity error", "not captured", "found"]);
    bench.event(opened());
    assert!(!is_left_alone(&bench));
    bench.forget(98);
    bench.worker.poll();
    assert!(!bench.is_added(), "it is captured");
}

#[test]
fn a_refused_target_whose_capture_ends_is_not_tried_again() {
    let pid = std::process::id();
    let mut bench = bench();
    bench.start(target(Proc::default().start_of(pid).unwrap()));
    bench.worker.event(&ProbeEvent::Refused { pid, cause: FULL });
    bench.worker.apply(&TargetChange::Exited(pid));
    bench.commands.try_iter().for_each(drop);
    bench.worker.retried = None;
    bench.worker.poll();
    assert!(!bench.is_added(), "it would revoke the end");
    bench.worker.event(&ProbeEvent::Settled { pid, account: None });
    bench.worker.poll();
    assert!(!bench.is_added());
    assert!(bench.worker.refused.is_empty() && bench.worker.unannounced.is_empty());
}

#[test]
fn a_process_that_discovery_refuses_is_reported() {
    let mut bench = bench();
    let StartedTarget { assignment, .. } = target(1);
    let refused = |owner| {
        let assignment = assignment.clone();
        TargetChange::Refused(Arc::new(RefusedTarget { pid: 5, owner, assignment, cause: "too many".to_owned() }))
    };
    bench.worker.apply(&refused(Owner::Entry(0)));
    assert_eq!((bench.refused(), bench.events.0.lock().len()), (vec![], 0), "its node has no stream");
    bench.worker.apply(&started(Proc::default().start_of(std::process::id()).unwrap()));
    bench.worker.apply(&refused(Owner::Pod("uid".to_owned())));
    assert_eq!(bench.refused(), [("uid".to_owned(), "too many".to_owned())]);
    assert_eq!(bench.events.0.lock().last().map(String::as_str), Some("not captured"));
}

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way");

fn data(socket: u64, direction: Direction, offset: u64, bytes: &[u8]) -> Event<'_> {
    Event::Data(whole(SocketId(socket), direction, offset, 2, bytes))
}

/// A target whose identity is read only when the returned sender is dropped.
fn start_with_slow_identity(bench: &mut Bench) -> Sender<()> {
    let (release, released) = crossbeam_channel::bounded::<()>(0);
    bench.pool.submit("node", move || released.recv(), drop).unwrap();
    let mut target = target(Proc::default().start_of(std::process::id()).unwrap());
    let path = std::fs::canonicalize(VECTORS).unwrap().join("identity.json");
    target.assignment.identity = Source::Path(path);
    bench.start(target);
    assert!(bench.worker.awaiting_identity.contains(&std::process::id()));
    release
}

fn verdicts(bench: &Bench, socket: u64) -> Vec<Verdict> {
    let of_socket = |command| match command {
        Command::Decide(SocketId(of), verdict) if of == socket => Some(verdict),
        _ => None,
    };
    bench.commands.try_iter().filter_map(of_socket).collect()
}

#[test]
fn a_target_that_transfers_much_before_its_identity_is_read_is_still_captured() {
    let mut bench = bench();
    let release = start_with_slow_identity(&mut bench);
    bench.event(opened());
    let mut ends = [0, 0];
    let play = |bench: &mut Bench, ends: &mut [u64; 2], steps: &[Step]| {
        for Step { direction, bytes } in steps {
            let end = &mut ends[usize::from(*direction == Direction::Received)];
            bench.event(data(7, *direction, *end, bytes));
            *end += bytes.len() as u64;
        }
    };
    let steps = synthetic();
    play(&mut bench, &mut ends, &steps[..steps.len() / 2]);
    // On another connection, of another protocol.
    bench.event(opened_as(8));
    let piece = vec![0; 1 << 20];
    (0..80).for_each(|number| bench.event(data(8, Direction::Sent, number << 20, &piece)));
    // Until there is no room for a byte either.
    (80 << 20..(80 << 20) + 4096).for_each(|offset| bench.event(data(8, Direction::Sent, offset, b"\0")));
    play(&mut bench, &mut ends, &steps[steps.len() / 2..]);
    assert_eq!(verdicts(&bench, 7), [], "the interpreter decides");
    drop(release);
    let answer = bench.worker.channels.identities.recv_timeout(Duration::from_secs(60)).unwrap();
    bench.worker.identity_read(answer);
    bench.worker.send_verdicts();
    assert_eq!(verdicts(&bench, 7), [Verdict::Keep]);
    assert!(!bench.worker.holding.has(std::process::id()));
}

#[test]
fn a_target_with_too_many_connections_to_hold_waits_no_longer_for_its_identity() {
    let pid = std::process::id();
    let mut bench = bench();
    let _release = start_with_slow_identity(&mut bench);
    let mut count = 0;
    while bench.worker.awaiting_identity.contains(&pid) && count < 20_000 {
        count += 1;
        bench.event(opened_as(count));
    }
    assert!(count > 1000 && !bench.worker.holding.has(pid), "{count}");
    assert_eq!(verdicts(&bench, count), [], "the last one is the interpreter's");
}

/// A process that is not configured may begin to listen as often as it wants.
#[test]
fn notices_of_one_process_leave_room_for_others() {
    let mut bench = bench();
    let listening = |pid| Event::Listening { pid, netns: 1, local: "[::]:9732".parse().unwrap(), time_ns: 1 };
    (0..100_000).for_each(|_| bench.event(listening(10)));
    let of = |bench: &Bench, pid| bench.notices.try_iter().filter(|notice| is_listening(notice, pid)).count();
    assert_eq!(of(&bench, 10), MAX_NOTICES_OF_PROCESS);
    bench.event(listening(11));
    assert_eq!(of(&bench, 11), 1);
    // A socket of the process is held: an answer about it arrives.
    bench.event(opened());
    (0..100).for_each(|_| bench.event(opened_as(8)));
    assert!(!is_left_alone(&bench));
    // After an answer one more notice is sent.
    bench.worker.apply(&TargetChange::Unchanged(10));
    (0..2).for_each(|_| bench.event(listening(10)));
    assert_eq!(of(&bench, 10), 1);
    (0..9).for_each(|_| bench.worker.apply(&TargetChange::Unchanged(10)));
    bench.worker.apply(&TargetChange::Unchanged(11));
    bench.worker.apply(&TargetChange::Dismissed(std::process::id()));
    assert!(bench.worker.unanswered.is_empty());
}

fn is_listening(notice: &Notice, of: u32) -> bool {
    matches!(notice, Notice::Listening { pid, .. } if *pid == of)
}
