//! Losses are records or counted, and the equations of the account hold.

use chainscope_ebpf::network::MissingReason;
use chainscope_proto::v1::Loss;

use super::*;

#[test]
fn holes_are_told_with_their_reason_and_the_equations_hold() {
    let steps = synthetic();
    for lost in (10..steps.len()).step_by(17) {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
        for (index, step) in steps.iter().enumerate() {
            let mut data = socket.data(step.direction, &step.bytes);
            if index == lost {
                data.bytes = &[];
                data.header.missing = Some(MissingReason::Unreadable);
            }
            bench.event(&Event::Data(data));
        }
        socket.close(&mut bench);
        let missing = steps[lost].bytes.len() as u64;
        let kernel = KernelAccount {
            seen: bytes_of(&steps),
            captured: bytes_of(&steps) - missing,
            dropped: vec![("unreadable", missing)],
            ..KernelAccount::default()
        };
        let account = bench.account_now(kernel);
        assert_eq!((account.bytes_in_ring, account.bytes_pending, account.bytes_residual), (0, 0, 0), "{lost}");
        let gaps: Vec<_> = bench
            .connection_events()
            .into_iter()
            .filter_map(|(_, event)| if let ConnectionKind::Gap(gap) = event { Some(gap.clone()) } else { None })
            .collect();
        assert_eq!(gaps.iter().map(|gap| gap.lost_bytes).sum::<u64>(), missing, "{lost}");
        assert!(gaps.iter().all(|gap| gap.reason == "unreadable"), "{gaps:?}");
        let losses: Vec<&Loss> =
            bench.kinds().filter_map(|kind| if let Kind::Loss(loss) = kind { Some(loss) } else { None }).collect();
        assert_eq!(losses.iter().map(|loss| loss.bytes).sum::<u64>(), missing);
        assert!(losses.iter().all(|loss| loss.stage == "kernel"));
    }
}

#[test]
fn records_beyond_the_capacity_are_counted() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    bench.sink.capacity = 20;
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let account = bench.account_now(seen(bytes_of(&synthetic())));
    let dropped = account.messages_dropped.iter().map(|each| each.count).sum::<u64>();
    assert!(dropped > 0);
    assert_eq!(account.messages, account.messages_sent + dropped);
    assert_eq!(account.messages_sent, bench.messages().len() as u64);
    let kept = bench.kinds().filter(|kind| matches!(kind, Kind::Chunk(_))).count() as u64;
    assert_eq!(account.chunks, kept + account.chunks_dropped);
}

#[test]
fn a_message_without_all_of_its_chunks_is_dropped_and_counted() {
    let chunk_of = |kind: &Kind| if let Kind::Chunk(chunk) = kind { Some(chunk.clone()) } else { None };
    let mut whole = bench(identity("synthetic-two-way/identity.json"));
    Socket::open(&mut whole, 1, Some(Role::Initiator)).play(&mut whole, &synthetic());
    let chunks = whole.kinds().filter_map(chunk_of).count();
    for lost in 0..chunks {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        bench.sink.lost_chunk = Some(lost);
        Socket::open(&mut bench, 1, Some(Role::Initiator)).play(&mut bench, &synthetic());
        let account = bench.account_now(seen(bytes_of(&synthetic())));
        let missing = whole.kinds().filter_map(chunk_of).nth(lost).unwrap();
        assert_eq!((account.chunks_dropped, account.chunk_bytes_dropped), (1, missing.wire.len() as u64), "{lost}");
        let kept: u64 = bench.kinds().filter_map(chunk_of).map(|chunk| chunk.wire.len() as u64).sum();
        assert_eq!(account.bytes_in_chunks, kept + account.chunk_bytes_dropped, "{lost}");

        // What is left are exactly the messages that do not need the chunk.
        let needs = |message: &Message| {
            message.incoming == missing.incoming
                && (message.first_chunk..=message.last_chunk).contains(&missing.counter)
        };
        let (with, without): (Vec<&Message>, Vec<&Message>) = whole.messages().into_iter().partition(|m| needs(m));
        assert_eq!(bench.messages(), without, "{lost}");
        let dropped: Vec<_> = account.messages_dropped.iter().map(|each| (each.reason.as_str(), each.count)).collect();
        let expected = if with.is_empty() { vec![] } else { vec![(account::CHUNK_DROPPED, with.len() as u64)] };
        assert_eq!(dropped, expected, "{lost}");
    }
}

#[test]
fn data_before_the_opening_is_counted() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket { id: SocketId(1), ends: [0, 0], time_ns: 1 };
    let data = socket.data(Direction::Received, b"unknown");
    bench.event(&Event::Data(data));
    bench.event(&Event::Opened(Opened { sent_offset: 0, received_offset: 0, ..socket.opened(None) }));
    let account = bench.account_now(seen(7));
    assert_eq!(account.bytes_dropped[0].reason, UNKNOWN_SOCKET);
    assert_eq!((account.bytes_dropped[0].count, account.bytes_in_ring), (7, 0));
}

#[test]
fn a_kernel_that_counts_late_never_makes_the_ring_negative() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let all = bytes_of(&synthetic());
    let account = bench.account_now(KernelAccount { seen: 10, captured: 17, ..KernelAccount::default() });
    assert_eq!((account.bytes_seen, account.bytes_in_ring, account.bytes_residual), (10, 0, -7));
    let account = bench.account_now(seen(all + 1_000));
    assert_eq!((account.bytes_in_ring, account.bytes_residual), (1_000, 0));
}

#[test]
fn a_counter_that_is_wrong_shows_as_a_residual() {
    let played = |break_counter: &dyn Fn(&mut Bench, &mut KernelAccount)| {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        Socket::open(&mut bench, 1, Some(Role::Initiator)).play(&mut bench, &synthetic());
        let mut kernel = seen(bytes_of(&synthetic()));
        break_counter(&mut bench, &mut kernel);
        let residual = bench.account_now(kernel).bytes_residual;
        assert_eq!(bench.tally(PID).unwrap().bytes_residual, residual, "shown in metrics");
        residual
    };
    assert_eq!(played(&|_, _| ()), 0);
    assert_eq!(played(&|_, kernel| kernel.seen += 7), 7);
    assert_eq!(played(&|_, kernel| kernel.left_alone += 7), -7);
    assert_eq!(played(&|_, kernel| kernel.dropped.push(("ring full", 7))), -7);
    assert_eq!(played(&|bench, _| bench.targets.get_mut(&PID).unwrap().totals.bytes_taken += 7), 7);
    assert_eq!(
        played(&|bench, _| _ = bench.targets.get_mut(&PID).unwrap().totals.bytes_dropped.insert(GIVEN_UP, 7)),
        -7
    );
}

#[test]
fn an_account_is_sent_when_it_changed() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut sent_after = |kernel| {
        bench.account(PID, kernel);
        bench.sink.states.len()
    };
    let counts = [seen(0), seen(0), seen(1), seen(1), seen(2)].map(&mut sent_after);
    assert_eq!(counts, [1, 1, 2, 2, 3], "the first one although nothing happened");
}
