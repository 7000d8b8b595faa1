//! What the journal is good for: sessions that go on after a restart, and those that cannot.

use chainscope_proto::v1::ConnectionState;

use super::*;

#[test]
fn a_restart_goes_on_with_the_session_under_the_same_key() {
    let steps = synthetic();
    for cut in [steps.len() / 4, steps.len() / 2, steps.len() - 3] {
        let mut first = bench(identity("synthetic-two-way/identity.json"));
        let mut socket = Socket::open(&mut first, 1, Some(Role::Initiator));
        socket.play(&mut first, &steps[..cut]);
        let journal = first.stop();
        assert_eq!(journal.sessions.len(), 1);
        assert!(!first.connection_events().iter().any(|(_, event)| matches!(event, ConnectionKind::Closed(_))));
        let account = first.sink.states.last().unwrap().kind.clone();
        let Some(Kind::NetworkAccount(account)) = account else { panic!("no account") };
        assert_eq!(account::broken_equation(&account), None);

        let sessions = journal::read(&journal.encode_to_vec(), &journal.boot_id);
        let waiting = Waiting::new(journal.boot_id.clone(), sessions);
        let key = identity("synthetic-two-way/identity.json");
        let mut second = bench_with(key, TargetLimits::default(), waiting, Store::Both);
        assert_eq!(second.journal(), journal, "kept until the socket is seen");
        // The probe reports the socket at its first traffic, without its role.
        let mut late = Socket { id: SocketId(99), ..socket };
        let opened = Opened { socket: SocketId(99), inode: INODE + 1, ..late.opened(None) };
        second.event(&Event::Opened(opened));
        late.play(&mut second, &steps[cut..]);
        let mut both = p2p_messages(&first);
        both.extend(p2p_messages(&second));
        both.sort();
        both.dedup();
        // A message that the restart cut is lost, in each direction at most one.
        let missing = synthetic_messages().into_iter().filter(|message| !both.contains(message)).count();
        assert!(missing <= 2, "{missing} missing at {cut}");
        assert!(both.iter().all(|message| synthetic_messages().contains(message)));
        assert!(second.connection_events().iter().all(|(key, _)| *key == 6_001));
        assert!(!second.connection_events().iter().any(|(_, event)| matches!(event, ConnectionKind::Opened(_))));
        late.close(&mut second);
        assert!(second.journal().sessions.is_empty());
    }
}

#[test]
fn a_session_asks_for_the_journal_once_as_soon_as_it_can_be_saved() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    let mut asked = Vec::new();
    for (number, step) in synthetic().iter().enumerate() {
        let was_saved = !bench.journal().sessions.is_empty();
        socket.play(&mut bench, std::slice::from_ref(step));
        if bench.take_new_session() {
            assert!(!was_saved && !bench.journal().sessions.is_empty(), "at step {number}");
            asked.push(number);
        }
    }
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[test]
fn a_late_session_that_no_journal_has_is_undecryptable() {
    let steps = synthetic();
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let ends = steps[..40].iter().fold([0, 0], |mut ends, step| {
        ends[usize::from(step.direction == Direction::Received)] += step.bytes.len() as u64;
        ends
    });
    let mut socket = Socket { id: SocketId(1), ends, time_ns: 7 };
    bench.event(&Event::Opened(socket.opened(None)));
    socket.play(&mut bench, &steps[40..]);
    let events = bench.connection_events();
    let changed = events.iter().find_map(|(_, event)| match event {
        ConnectionKind::StateChanged(changed) => Some(changed),
        _ => None,
    });
    let changed = changed.unwrap();
    assert_eq!(changed.state(), ConnectionState::Undecryptable);
    assert_eq!(changed.reason, "started before capture");
    assert!(changed.remedy.contains("restart the node"));
    assert!(bench.journal().sessions.is_empty());
}

#[test]
fn waiting_sessions_whose_sockets_are_gone_are_closed() {
    let mut first = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut first, 1, Some(Role::Initiator));
    socket.play(&mut first, &synthetic());
    let journal = first.stop();
    let waiting = Waiting::new(journal.boot_id.clone(), journal.sessions.clone());
    let key = identity("synthetic-two-way/identity.json");
    let mut second = bench_with(key, TargetLimits::default(), waiting, Store::Both);
    assert_eq!(second.waiting_namespaces(), [NETNS]);
    second.drop_vanished(NETNS + 1, &HashSet::new());
    second.drop_vanished(NETNS, &HashSet::from([INODE + 1]));
    assert_eq!(second.waiting_namespaces(), [NETNS]);
    second.drop_vanished(NETNS, &HashSet::from([4]));
    assert!(second.waiting_namespaces().is_empty());
    assert!(matches!(second.connection_events().as_slice(), [(6_001, ConnectionKind::Closed(_))]));
    assert!(journal::read(&journal.encode_to_vec(), "another boot").is_empty());
    assert!(journal::read(b"\xff\xff\xff", "").is_empty());
}
