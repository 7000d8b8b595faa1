//! The worker without a kernel: what it tells the reader.

use chainscope_ebpf::network::{Opened, SocketId};
use chainscope_proto::v1::Record;
use crossbeam_channel::unbounded;

use super::*;
use crate::{
    blocking::BlockingPool,
    clock::Clock,
    config::TargetLimits,
    network::journal::Waiting,
    targets::{Assignment, Network, Observe, Owner, ProcessFacts, StartCause, StartedTarget, identity::Source},
};

struct NoRecords;

impl RecordSink for NoRecords {
    fn push(&mut self, _node: &str, _record: Record) -> bool {
        true
    }

    fn merge(&mut self, _node: &str, _record: Record) {}
}

struct Bench {
    worker: Worker<NoRecords>,
    commands: Receiver<Command>,
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
    let identity_reader = IdentityReader::new(proc.clone(), BlockingPool::new("test", "test"), answers);
    let channels = Channels {
        commands,
        wake_reader: Box::new(|| ()),
        inbox: changes,
        notices: unbounded().0,
        identity_reader,
        identities,
    };
    let interpreter = Interpreter::new(NoRecords, Clock::with_offset(0), TargetLimits::default(), Waiting::default());
    let worker = Worker::new(
        interpreter,
        proc,
        channels,
        Folder::open(dir.path()).unwrap(),
        false,
        Arc::new(Figures::new(Vec::new())),
        Heartbeat::new("test"),
    );
    Bench { worker, commands: commanded, _inbox: inbox, _dir: dir }
}

/// This process as a target that began at this time.
fn started(start: u64) -> TargetChange {
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
    TargetChange::Started(Arc::new(StartedTarget {
        facts,
        owner: Owner::Entry(0),
        assignment,
        cause: StartCause::Found,
        was_held: false,
        has_exited: false,
    }))
}

fn opened() -> Event<'static> {
    Event::Opened(Opened {
        socket: SocketId(7),
        pid: std::process::id(),
        netns: 1,
        inode: 2,
        local: "127.0.0.1:9732".parse().unwrap(),
        remote: "127.0.0.1:1".parse().unwrap(),
        role: None,
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
