//! The reader on a fake probe.

use std::{collections::VecDeque, sync::mpsc, thread};

use chainscope_ebpf::network::{ClosedBy, Direction, MissingReason};
use crossbeam_channel::bounded;
use parking_lot::Mutex;

use super::*;

/// State of the fake probe.
#[derive(Default)]
struct Kernel {
    /// Payloads in the ring, each of one socket.
    ring: VecDeque<Vec<u8>>,
    offset: u64,
    applied: Vec<String>,
    polls: usize,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Kernel>>);

impl Probe for Fake {
    fn poll(&mut self, _: Duration, take: &mut dyn FnMut(Event<'_>)) -> Result<usize, chainscope_ebpf::Error> {
        let mut count = 0;
        loop {
            let (payload, offset) = {
                let mut kernel = self.0.lock();
                kernel.polls += 1;
                let Some(payload) = kernel.ring.pop_front() else { break };
                let offset = kernel.offset;
                kernel.offset += payload.len() as u64;
                (payload, offset)
            };
            count += 1;
            let header = DataHeader {
                socket: SocketId(1),
                direction: Direction::Sent,
                offset,
                covers: payload.len() as u64,
                missing: None,
                call_start: true,
                socket_call: false,
                time_ns: 1,
            };
            take(Event::Data(Data { header, bytes: &payload }));
        }
        Ok(count)
    }

    fn account(&self, _: u32) -> Option<KernelAccount> {
        let captured = self.0.lock().offset;
        Some(KernelAccount { seen: captured, captured, ..KernelAccount::default() })
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn apply(&mut self, command: &Command) -> Result<(), chainscope_ebpf::Error> {
        self.0.lock().applied.push(format!("{command:?}"));
        Ok(())
    }
}

struct Bench {
    kernel: Fake,
    commands: Sender<Command>,
    batches: Receiver<Batch>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(), Error>>,
}

fn bench(depth: usize) -> Bench {
    let kernel = Fake::default();
    let (commands, orders) = bounded(16);
    let (sender, batches) = bounded(depth);
    let (_, spare) = bounded(1);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = Reader::new(kernel.clone(), orders, sender, spare, Arc::clone(&stop), Heartbeat::new("test"));
    Bench { kernel, commands, batches, stop, thread: thread::spawn(move || reader.run()) }
}

/// Payload bytes of data events, and the captured bytes of accounts with those that came before them.
fn read(batches: impl Iterator<Item = Batch>) -> (Vec<u8>, Vec<(usize, u64)>, Vec<u32>) {
    let (mut bytes, mut accounts, mut settled) = (Vec::new(), Vec::new(), Vec::new());
    for batch in batches {
        for event in batch.events() {
            match event {
                ProbeEvent::Event(Event::Data(data)) => {
                    assert_eq!(data.header.offset, bytes.len() as u64);
                    bytes.extend_from_slice(data.bytes);
                }
                ProbeEvent::Event(_) | ProbeEvent::Watched { .. } | ProbeEvent::Counters(_) => {}
                ProbeEvent::Refused { pid, cause } => panic!("{pid}: {cause}"),
                ProbeEvent::Account { account, .. } => accounts.push((bytes.len(), account.captured)),
                ProbeEvent::Settled { pid, account } => {
                    accounts.push((bytes.len(), account.unwrap().captured));
                    settled.push(pid);
                }
            }
        }
    }
    (bytes, accounts, settled)
}

#[test]
fn everything_arrives_in_order_and_accounts_after_what_they_count() {
    let bench = bench(2);
    bench.commands.send(Command::AddProcess { pid: 7, port: None, listens: vec![] }).unwrap();
    let expected: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    for payload in expected.chunks(70_000) {
        bench.kernel.0.lock().ring.push_back(payload.to_vec());
    }
    bench.commands.send(Command::RemoveProcess { pid: 8 }).unwrap();
    bench.stop.store(true, Ordering::Release);
    let (bytes, accounts, settled) = read(bench.batches.iter());
    bench.thread.join().unwrap().unwrap();
    assert_eq!(bytes, expected);
    assert!(!accounts.is_empty());
    for (before, captured) in accounts {
        assert!(before as u64 <= captured, "{before} bytes came before an account of {captured}");
    }
    // Whether the command was seen depends on which came first; if it was, it was applied to the end.
    let applied = bench.kernel.0.lock().applied.clone();
    assert_eq!(settled.len(), applied.iter().filter(|command| command.starts_with("RemoveProcess")).count());
}

#[test]
fn a_process_is_forgotten_only_after_all_that_it_did() {
    let bench = bench(4);
    bench.kernel.0.lock().ring.push_back(vec![1; 1000]);
    bench.commands.send(Command::RemoveProcess { pid: 7 }).unwrap();
    let (bytes, accounts, settled) = loop {
        let got = read(bench.batches.iter().take(1));
        if !got.2.is_empty() {
            break got;
        }
        // The ring came first; the removal follows.
        assert_eq!(got.0.len(), 1000);
    };
    assert_eq!(settled, [7]);
    assert!(bytes.len() as u64 <= accounts[0].1);
    assert_eq!(accounts[0].1, 1000);
    bench.stop.store(true, Ordering::Release);
    bench.thread.join().unwrap().unwrap();
}

#[test]
fn a_process_that_becomes_a_target_again_stays() {
    let kernel = Fake::default();
    let (commands, orders) = bounded(16);
    let (sender, _batches) = bounded(4);
    let (_, spare) = bounded(1);
    let mut reader = Reader::new(kernel.clone(), orders, sender, spare, Arc::default(), Heartbeat::new("test"));
    commands.send(Command::RemoveProcess { pid: 7 }).unwrap();
    commands.send(Command::AddProcess { pid: 7, port: None, listens: vec![] }).unwrap();
    assert!(reader.apply().is_empty());
    assert!(kernel.0.lock().applied[0].starts_with("AddProcess"));
}

#[test]
fn an_interpreter_that_is_behind_stops_the_reader_not_the_node() {
    let bench = bench(1);
    let total = 40;
    for _ in 0..total {
        bench.kernel.0.lock().ring.push_back(vec![0; BATCH_BYTES]);
    }
    // The reader fills the channel and waits with one batch in its hand: the rest stays in the ring.
    let (done, waited) = mpsc::sync_channel(1);
    let batches = bench.batches.clone();
    thread::spawn(move || {
        while batches.is_empty() {
            thread::yield_now();
        }
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).unwrap();
    let taken = total - bench.kernel.0.lock().ring.len();
    assert!(taken <= 4, "{taken} taken");
    bench.stop.store(true, Ordering::Release);
    let (bytes, ..) = read(bench.batches.iter());
    assert_eq!(bytes.len(), total * BATCH_BYTES);
    bench.thread.join().unwrap().unwrap();
}

#[test]
fn every_kind_of_event_survives_the_batch() {
    let address = "[::1]:9732".parse().unwrap();
    let opened = Opened {
        socket: SocketId(1),
        pid: 2,
        netns: 3,
        inode: 0,
        local: address,
        remote: address,
        role: None,
        sent_offset: 4,
        received_offset: 5,
        time_ns: 6,
    };
    let header = DataHeader {
        socket: SocketId(1),
        direction: Direction::Received,
        offset: 9,
        covers: 7,
        missing: Some(MissingReason::Compat),
        call_start: true,
        socket_call: true,
        time_ns: 10,
    };
    let closed = Closed { socket: SocketId(1), by: ClosedBy::Reset, sent_offset: 1, received_offset: 2, time_ns: 11 };
    let events = [
        Event::Listening { pid: 1, netns: 2, local: "[::]:3".parse().unwrap(), time_ns: 4 },
        Event::Exec { pid: 1, time_ns: 2 },
        Event::Opened(opened),
        Event::Inode { socket: SocketId(1), inode: 7 },
        Event::Data(Data { header, bytes: b"bytes" }),
        Event::Data(Data { header, bytes: &[] }),
        Event::Closed(closed),
    ];
    let mut batch = Batch::default();
    events.iter().for_each(|event| batch.push(event));
    let back: Vec<Event<'_>> = batch
        .events()
        .map(|event| match event {
            ProbeEvent::Event(event) => event,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(back, events);
}
