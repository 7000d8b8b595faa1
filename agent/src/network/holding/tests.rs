//! Tests of the holding buffer.

use std::net::SocketAddr;

use chainscope_ebpf::network::{ClosedBy, Direction};

use super::{
    memory::{ALL_BYTES, GROUP_BYTES},
    *,
};
use crate::{network::interpreter::tests::recorded::whole, targets::PodUid};

fn opened(pid: u32, socket: u64) -> Opened {
    let address = SocketAddr::from(([127, 0, 0, 1], 9732));
    Opened {
        socket: SocketId(socket),
        pid,
        netns: 1,
        inode: 0,
        local: address,
        remote: address,
        role: None,
        sent_offset: 0,
        received_offset: 0,
        time_ns: 1,
    }
}

fn data(socket: u64, offset: u64, bytes: &[u8]) -> Event<'_> {
    Event::Data(whole(SocketId(socket), Direction::Sent, offset, 2, bytes))
}

fn replayed(held: &HeldProcess) -> (usize, Vec<u8>) {
    let (mut count, mut bytes) = (0, Vec::new());
    held.replay(&mut |event| {
        count += 1;
        if let Event::Data(data) = event {
            bytes.extend_from_slice(data.bytes);
        }
    });
    (count, bytes)
}

#[test]
fn a_held_process_is_given_back_as_it_was() {
    let mut holding = Holding::default();
    holding.hold(7, ProcessGroup::Host);
    assert!(holding.event(&Event::Opened(opened(7, 1))));
    assert!(!holding.event(&Event::Opened(opened(8, 2))), "of another process");
    assert!(holding.event(&data(1, 0, b"\0\x10ab")));
    assert!(!holding.event(&data(2, 0, b"\0\x10ab")));
    assert!(holding.event(&Event::Inode { socket: SocketId(1), inode: 4 }));
    assert!(holding.event(&data(1, 4, b"cd")));
    let closed = Closed { socket: SocketId(1), by: ClosedBy::Local, sent_offset: 6, received_offset: 0, time_ns: 3 };
    assert!(holding.event(&Event::Closed(closed)));
    assert_eq!((holding.processes(), holding.bytes()), (1, 6));
    let held = holding.take(7).unwrap();
    assert_eq!(replayed(&held), (5, b"\0\x10abcd".to_vec()));
    assert_eq!((holding.processes(), holding.bytes()), (0, 0));
    assert_eq!(holding.discarded(), Discarded::default());
    assert!(holding.take_verdicts().is_empty());
    assert!(!holding.event(&data(1, 6, b"x")), "it is the interpreter's now");
}

#[test]
fn an_unknown_process_is_held_until_the_answer() {
    let mut holding = Holding::default();
    holding.begin_provisional(7);
    assert!(holding.event(&Event::Opened(opened(7, 1))));
    assert!(holding.event(&data(1, 0, b"\0\x10ab")));
    assert_eq!((holding.processes(), holding.bytes()), (0, 4), "it counts as no held process");
    assert!(holding.has_provisional() && holding.is_provisional(7));
    // It is no target: the kernel leaves its sockets alone, and nothing counts as discarded.
    holding.drop_provisional(7);
    assert_eq!(holding.take_verdicts(), [(SocketId(1), Verdict::LeaveAlone)]);
    assert_eq!((holding.discarded(), holding.bytes()), (Discarded::default(), 0));
    // It is held: what came before the answer is kept.
    holding.begin_provisional(7);
    assert!(holding.event(&Event::Opened(opened(7, 2))));
    assert!(holding.event(&data(2, 0, b"\0\x10cd")));
    holding.hold(7, ProcessGroup::Host);
    holding.drop_provisional(7);
    assert!(!holding.has_provisional());
    assert_eq!(replayed(&holding.take(7).unwrap()), (2, b"\0\x10cd".to_vec()));
}

fn group(number: u32) -> ProcessGroup {
    ProcessGroup::Pod(PodUid::parse(&format!("{number:032}")).unwrap())
}

/// Pieces of 1 MiB that fit into the memory of a pod: their items take a part of the seventh.
const PIECES: u64 = 6;

#[test]
fn what_is_too_much_is_missing_at_the_end_and_counted() {
    let mut holding = Holding::default();
    let piece = vec![0; 1 << 20];
    for pid in 0..10 {
        holding.hold(pid, group(pid));
        holding.event(&Event::Opened(opened(pid, u64::from(pid))));
        for count in 0..9 {
            assert!(holding.event(&data(u64::from(pid), count << 20, &piece)));
        }
    }
    // After 54 MiB of nine pods one piece of the tenth.
    assert_eq!(holding.bytes(), 55 << 20);
    assert!(holding.memory.all <= ALL_BYTES);
    let first = holding.take(0).unwrap();
    assert_eq!((replayed(&first).1.len() as u64, first.dropped_bytes), (PIECES << 20, (9 - PIECES) << 20));
    let last = holding.take(9).unwrap();
    assert_eq!((replayed(&last).1.len(), last.dropped_bytes), (1 << 20, 8 << 20));
    holding.discard(1);
    holding.discard(1);
    assert_eq!(holding.discarded(), Discarded { processes: 1, bytes: 9 << 20 });
}

/// Memory of what is held, without the tables of sockets.
fn used(held: &HeldProcess) -> usize {
    let of_item = |item: &Item| if let Item::Data { bytes, .. } = item { bytes.len() } else { 0 };
    held.items.capacity() * size_of::<Item>() + held.items.iter().map(of_item).sum::<usize>()
}

#[test]
fn one_byte_pieces_are_held_within_the_memory_of_a_pod() {
    const PROCESSES: u32 = 32;
    const SENT: u64 = 4096;
    let mut holding = Holding::default();
    for pid in 0..PROCESSES {
        holding.hold(pid, group(1));
        holding.event(&Event::Opened(opened(pid, u64::from(pid))));
        (0..SENT).for_each(|offset| assert!(holding.event(&data(u64::from(pid), offset, b"\0"))));
    }
    let memory = holding.held.values().map(used).sum::<usize>();
    assert!(memory <= GROUP_BYTES, "{memory}");
    assert!(memory <= holding.memory.all && holding.memory.all <= GROUP_BYTES, "{}", holding.memory.all);
    let mut sum = 0;
    for pid in 0..PROCESSES {
        let held = holding.take(pid).unwrap();
        sum += replayed(&held).1.len() as u64 + held.dropped_bytes;
    }
    assert_eq!(sum, u64::from(PROCESSES) * SENT, "each byte is held or counted");
    assert_eq!((holding.bytes(), holding.memory.all, holding.memory.groups.len()), (0, 0, 0));
}

#[test]
fn connections_that_begin_after_the_payload_is_full_are_held() {
    let mut holding = Holding::default();
    holding.hold(7, group(1));
    holding.event(&Event::Opened(opened(7, 1)));
    (0..=1 << 15).for_each(|offset| assert!(holding.event(&data(1, offset, b"\0"))));
    assert!(holding.fits_connection(7));
    assert!(holding.event(&Event::Opened(opened(7, 2))));
    assert!(holding.event(&data(2, 0, b"\0\x10ab")));
    assert!(holding.take_verdicts().is_empty());
    let held = holding.take(7).unwrap();
    assert!(held.sockets.contains(&SocketId(2)));
    assert_eq!(held.bytes as u64 + held.dropped_bytes, (1 << 15) + 5);
}

#[test]
fn processes_of_a_pod_share_its_part() {
    let mut holding = Holding::default();
    let piece = vec![0; 1 << 20];
    // Provisional bytes become those of the group.
    holding.begin_provisional(0);
    for pid in 0..100 {
        holding.event(&Event::Opened(opened(pid, u64::from(pid))));
        holding.event(&data(u64::from(pid), 0, &piece));
        holding.hold(pid, group(1));
        holding.event(&Event::Opened(opened(pid, u64::from(pid))));
        holding.event(&data(u64::from(pid), 0, &piece));
    }
    assert_eq!(holding.bytes() as u64, PIECES << 20);
    holding.hold(200, group(2));
    holding.event(&Event::Opened(opened(200, 200)));
    holding.event(&data(200, 0, &piece));
    assert_eq!(holding.take(200).map(|held| (held.bytes, held.dropped_bytes)), Some((1 << 20, 0)));
    // What is given back can be used again.
    (0..100).for_each(|pid| holding.discard(pid));
    assert_eq!((holding.bytes(), holding.memory.groups.len()), (0, 0));
    holding.hold(300, group(1));
    holding.event(&Event::Opened(opened(300, 300)));
    holding.event(&data(300, 0, &piece));
    assert_eq!(holding.bytes(), 1 << 20);
}

#[test]
fn endless_traffic_is_left_alone() {
    let mut holding = Holding::default();
    let piece = vec![0; 1 << 20];
    holding.hold(7, group(1));
    holding.event(&Event::Opened(opened(7, 1)));
    let dropped = MAX_DROPPED_BYTES >> 20;
    (0..PIECES + dropped).for_each(|count| assert!(holding.event(&data(1, count << 20, &piece))));
    assert!(holding.take_verdicts().is_empty());
    holding.event(&data(1, (PIECES + dropped) << 20, &piece));
    assert_eq!(holding.take_verdicts(), [(SocketId(1), Verdict::LeaveAlone)]);
    assert_eq!(holding.take(7).map(|held| held.dropped_bytes), Some(MAX_DROPPED_BYTES + (1 << 20)));
}

#[test]
fn connections_that_do_not_fit_are_left_alone() {
    let mut holding = Holding::default();
    holding.hold(7, ProcessGroup::Host);
    let count = (GROUP_BYTES / CONNECTION_BYTES) as u64;
    for socket in 0..=count {
        assert_eq!(holding.fits_connection(7), socket < count);
        assert!(holding.event(&Event::Opened(opened(7, socket))));
    }
    assert_eq!(holding.take_verdicts(), [(SocketId(count), Verdict::LeaveAlone)]);
    assert!(holding.event(&data(count, 0, b"\0\x10ab")));
    assert_eq!(holding.take(7).unwrap().dropped_bytes, 4);
}

#[test]
fn a_target_is_not_left_alone_and_what_is_dropped_of_it_is_counted() {
    let mut holding = Holding::default();
    let piece = vec![0; 1 << 20];
    holding.hold(7, group(1));
    holding.set_target(7);
    let count = MAX_DROPPED_BYTES >> 19;
    holding.event(&Event::Opened(opened(7, 1)));
    (0..count).for_each(|number| assert!(holding.event(&data(1, number << 20, &piece))));
    (2..1 << 15).for_each(|socket| assert!(holding.event(&Event::Opened(opened(7, socket)))));
    assert!(holding.take_verdicts().is_empty());
    assert_eq!(holding.take(7).map(|held| held.dropped_bytes), Some((count - PIECES) << 20));
}

#[test]
fn other_protocols_do_not_fill_the_memory() {
    let mut holding = Holding::default();
    holding.hold(7, ProcessGroup::Host);
    holding.event(&Event::Opened(opened(7, 1)));
    holding.event(&data(1, 0, b"GET /health"));
    assert_eq!(holding.take_verdicts(), [(SocketId(1), Verdict::LeaveAlone)]);
}
