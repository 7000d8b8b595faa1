//! Which sockets become connections, under which key and until when; the others are left alone and bounded.

use chainscope_proto::v1::ConnectionState;

use super::*;

#[test]
fn other_protocols_are_left_alone_without_a_record() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let before = bench.sink.records.len();
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.push(&mut bench, Direction::Sent, b"GET /chains/main/blocks/head HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.push(&mut bench, Direction::Received, b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(bench.take_verdicts(), [(SocketId(1), Verdict::LeaveAlone)]);
    socket.close(&mut bench);
    assert_eq!(bench.sink.records.len(), before);
    let account = bench.account_now(seen(77));
    assert_eq!((account.bytes_not_protocol, account.connections), (77, 1));

    // A process that is not observed.
    let opened = Opened { pid: 1, ..Socket { id: SocketId(2), ends: [0, 0], time_ns: 1 }.opened(None) };
    bench.event(&Event::Opened(opened));
    assert_eq!(bench.take_verdicts(), [(SocketId(2), Verdict::LeaveAlone)]);
}

#[test]
fn garbage_on_the_p2p_port_is_told() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket { id: SocketId(1), ends: [0, 0], time_ns: 1 };
    let local = address("[::ffff:10.0.0.1]:9732");
    let remote = address("[::ffff:10.0.0.9]:5555");
    bench.event(&Event::Opened(Opened { local, remote, ..socket.opened(Some(Role::Responder)) }));
    socket.push(&mut bench, Direction::Received, &[b'A'; 70_000]);
    socket.close(&mut bench);
    let events = bench.connection_events();
    assert!(matches!(events[0].1, ConnectionKind::Opened(_)), "{events:?}");
    assert!(events.iter().any(|(_, event)| matches!(event, ConnectionKind::Comment(_))), "{events:?}");
    assert!(matches!(events.last().unwrap().1, ConnectionKind::Closed(_)));
}

#[test]
fn an_identity_that_is_missing_is_named_on_the_connection() {
    let mut bench = bench(OneKey(Err("not found at /data/identity.json".to_owned())));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let events = bench.connection_events();
    let is_named = |event: &ConnectionKind| {
        matches!(event, ConnectionKind::StateChanged(changed)
            if changed.state() == ConnectionState::Undecryptable
                && changed.reason == "identity: not found at /data/identity.json")
    };
    assert!(events.iter().any(|(_, event)| is_named(event)), "{events:?}");
    let chunks = bench.kinds().filter(|kind| matches!(kind, Kind::Chunk(_))).count();
    assert!(chunks > 10, "raw chunks are recorded: {chunks}");
}

#[test]
fn half_open_connections_are_bounded_and_counted() {
    let limits = TargetLimits { undecided_connections: 100, undecided_bytes: 40_000, ..TargetLimits::default() };
    let mut bench = bench_with(identity("synthetic-two-way/identity.json"), limits, Waiting::default(), Store::Both);
    let steps = synthetic();
    // A real session among them is settled and stays.
    let mut real = Socket::open(&mut bench, 1_000_000, Some(Role::Initiator));
    real.play(&mut bench, &steps[..40]);
    let opening: Vec<u8> = [&[0x00, 0x67][..], &[7; 98]].concat();
    let mut total = bytes_of(&steps[..40]);
    for id in 0..10_000 {
        let mut socket = Socket::open(&mut bench, id, Some(Role::Responder));
        // The half of a connection message.
        socket.push(&mut bench, Direction::Received, &opening);
        total += 100;
        let observed = &bench.targets[&PID];
        assert!(observed.undecided_count <= 100);
        assert!(observed.undecided_bytes <= 40_000);
        assert!(observed.undecided.len() <= 400, "{}", observed.undecided.len());
    }
    let given_up = bench.take_verdicts().iter().filter(|(_, verdict)| *verdict == Verdict::LeaveAlone).count();
    assert_eq!(given_up, 9_900);
    // More on one that was given up is counted as dropped.
    let data = Socket { id: SocketId(0), ends: [0, 100], time_ns: 9 }.data(Direction::Received, &[1; 50]);
    bench.event(&Event::Data(data));
    real.play(&mut bench, &steps[40..]);
    total += 50 + bytes_of(&steps[40..]);
    let account = bench.account_now(seen(total));
    assert_eq!(account.bytes_in_ring, 0);
    assert!(account.bytes_dropped.iter().any(|dropped| dropped.reason == GIVEN_UP && dropped.count == 50));
    assert_eq!(p2p_messages(&bench), synthetic_messages());
    for id in 0..10_000 {
        Socket { id: SocketId(id), ends: [0, 100], time_ns: 10 }.close(&mut bench);
    }
    let observed = &bench.targets[&PID];
    assert_eq!((observed.undecided_count, observed.undecided_bytes), (0, 0));
    assert_eq!(bench.account_now(seen(total)).connections_open, 1);
}

#[test]
fn incomplete_messages_of_a_target_are_bounded_and_leave_other_targets_whole() {
    const OTHER: u32 = 78;
    let limits = TargetLimits { session_bytes: 1 << 20, ..TargetLimits::default() };
    let target = |pid: u32| Target {
        node: format!("node {pid}").into(),
        label: "".into(),
        pid,
        p2p_port: None,
        store: Store::Both,
        keys: Box::new(identity("synthetic-two-way/identity.json")),
    };
    let open = |bench: &mut Bench, id: u64, pid: u32| {
        let socket = Socket { id: SocketId(id), ends: [0, 0], time_ns: 5_000 + id };
        bench.event(&Event::Opened(Opened { pid, ..socket.opened(Some(Role::Initiator)) }));
        socket
    };
    let mut bench = bench_with(identity("synthetic-two-way/identity.json"), limits, Waiting::default(), Store::Both);
    bench.start_target(target(OTHER));
    // Where the session buffers most: within its message of 170 kB.
    let steps = synthetic();
    let mut socket = Socket::open(&mut bench, 1_000, Some(Role::Initiator));
    let used: Vec<usize> = steps
        .iter()
        .map(|step| {
            socket.push(&mut bench, step.direction, &step.bytes);
            bench.targets[&PID].memory.used()
        })
        .collect();
    let most = used.iter().copied().max().unwrap();
    let end = used.iter().position(|used| *used == most).unwrap() + 1;
    assert!(most > 100_000, "{most}");

    bench.sink.capacity = 0;
    for id in 0..200 {
        let mut socket = Socket::open(&mut bench, id, Some(Role::Initiator));
        socket.play(&mut bench, &steps[..end]);
        assert!(bench.targets[&PID].memory.used() <= limits.session_bytes);
    }
    bench.account_now(seen(bytes_of(&steps) + 200 * bytes_of(&steps[..end])));
    let reasons = bench.tally(PID).unwrap().over_memory;
    assert!(reasons.contains_key("chunk skipped"), "{reasons:?}");

    bench.sink = Collected::default();
    open(&mut bench, 2_000, OTHER).play(&mut bench, &steps);
    assert_eq!(p2p_messages(&bench), synthetic_messages());
    assert!(bench.messages().iter().all(|message| message.error.is_empty()));
    bench.account(OTHER, seen(bytes_of(&steps)));
    assert!(bench.tally(OTHER).unwrap().over_memory.is_empty());
    bench.end_target(PID, "process exited", "exited");
    assert_eq!(bench.targets[&OTHER].memory.used(), 0);
}

#[test]
fn the_end_of_a_process_ends_its_connections() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    bench.end_target(PID, "process exited", "exited");
    let events = bench.connection_events();
    let ConnectionKind::Closed(closed) = events.last().unwrap().1 else { panic!("{events:?}") };
    assert_eq!(closed.by, "process exited");
    assert!(!bench.is_target(PID));
    let Some(Kind::TargetEvent(event)) = bench.kinds().last() else { panic!("no event") };
    assert_eq!((event.event.as_str(), event.pid), ("exited", PID));
    // What the kernel still has to say about the socket changes nothing.
    socket.close(&mut bench);
}

#[test]
fn connection_keys_are_given_once() {
    let mut keys = ConnectionKeys::default();
    assert_eq!([keys.give(7), keys.give(7), keys.give(8), keys.give(7)], [7, 8, 9, 10]);
}
