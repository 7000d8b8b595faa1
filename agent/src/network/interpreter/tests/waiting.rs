//! Sessions whose identity is read on another thread.

use chainscope_proto::v1::ConnectionState;
use crossbeam_channel::Receiver;

use super::*;
use crate::{
    blocking::BlockingPool,
    targets::{
        ProcessFacts,
        identity::{IdentityReader, READ_TIMEOUT},
        proc::Proc,
    },
};

const PATH: &str = "synthetic-two-way/identity.json";

/// A target whose identity is a file. `stuck`: reads of its node do not return.
fn bench_with_file(stuck: bool) -> (Bench, Receiver<IdentityAnswer>) {
    let (sender, answers) = crossbeam_channel::bounded(64);
    let pool = BlockingPool::new("test", "test");
    if stuck {
        pool.submit("node", std::thread::park, |()| ()).unwrap();
    }
    let reader = IdentityReader::new(Proc::default(), pool, sender);
    let facts = ProcessFacts {
        pid: PID,
        start: 1,
        exe: "/usr/bin/octez-node".into(),
        netns: NETNS,
        container: None,
        location: None,
        parent: 1,
        argument: String::new(),
        listens: [].into(),
    };
    let path = format!("{}/../vectors/tezos/{PATH}", env!("CARGO_MANIFEST_DIR"));
    let path = std::fs::canonicalize(path).unwrap();
    let mut bench =
        Interpreter::new(Collected::default(), Clock::with_offset(1_000), TargetLimits::default(), Waiting::default());
    bench.start_target(Target {
        node: "node".into(),
        label: "pid 77".into(),
        pid: PID,
        p2p_port: Some(9732),
        store: Store::Both,
        keys: Box::new(ProcessKeys::new(reader, "node".into(), &facts, Source::Path(path))),
    });
    (bench, answers)
}

fn answer(answers: &Receiver<IdentityAnswer>) -> IdentityAnswer {
    answers.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
}

#[test]
fn sessions_wait_for_their_identity_also_after_their_end() {
    let steps = synthetic();
    for answered_at in [steps.len() / 2, steps.len(), usize::MAX] {
        let (mut bench, answers) = bench_with_file(false);
        let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
        for (index, step) in steps.iter().enumerate() {
            if index == answered_at {
                assert!(bench.awaits_identities());
                assert!(bench.identity_read(answer(&answers)));
            }
            socket.play(&mut bench, std::slice::from_ref(step));
        }
        if answered_at == steps.len() {
            assert!(bench.identity_read(answer(&answers)));
        }
        socket.close(&mut bench);
        if answered_at == usize::MAX {
            let account = bench.account_now(seen(bytes_of(&steps)));
            assert!(account.bytes_pending > 0 && account.connections_open == 1);
            assert_eq!(account.bytes_residual, 0);
            assert!(bench.identity_read(answer(&answers)));
        }
        assert!(!bench.awaits_identities());
        assert_eq!(p2p_messages(&bench), synthetic_messages(), "{answered_at}");
        let account = bench.account_now(seen(bytes_of(&steps)));
        assert_eq!((account.bytes_pending, account.bytes_residual, account.connections_open), (0, 0, 0));
        assert!(matches!(bench.connection_events().last(), Some((_, ConnectionKind::Closed(_)))));
    }
}

#[test]
fn an_identity_that_is_never_read_is_waited_for_no_longer_than_the_timeout() {
    let (mut bench, _answers) = bench_with_file(true);
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    let steps = synthetic();
    socket.play(&mut bench, &steps[..20]);
    assert_eq!(bench.expire_identities(Instant::now()), [0_u32; 0]);
    assert!(bench.awaits_identities());
    assert_eq!(bench.expire_identities(Instant::now() + READ_TIMEOUT), [PID]);
    // Also of sessions that begin later.
    socket.play(&mut bench, &steps[20..]);
    socket.close(&mut bench);
    Socket::open(&mut bench, 2, Some(Role::Initiator)).play(&mut bench, &steps);
    assert!(!bench.awaits_identities());
    let reasons = bench.connection_events().into_iter().filter_map(|(_, event)| match event {
        ConnectionKind::StateChanged(changed) if changed.state() == ConnectionState::Undecryptable => {
            Some(changed.reason.clone())
        }
        _ => None,
    });
    let reason = "identity: its file system has not answered for 5 seconds";
    assert_eq!(reasons.collect::<Vec<_>>(), [reason, reason]);
    let account = bench.account_now(seen(2 * bytes_of(&steps)));
    assert!(account.chunks_undecryptable > 0 && account.bytes_residual == 0);
}
