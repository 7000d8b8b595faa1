//! The interpreter fed with events made from recorded sessions: no kernel.

use std::net::SocketAddr;

use chainscope_ebpf::{Direction, KernelAccount, MissingReason, Role};
use chainscope_proto::v1::{
    ChunkState, ConnectionState, Loss, Message, NetworkAccount, connection_event::Event as ConnectionKind, record::Kind,
};
use chainscope_tezos::Identity;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::account;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos");
const PID: u32 = 77;
const NETNS: u32 = 4_026_531_840;
const INODE: u64 = 12_345;

/// Records as they would go into lanes, with room for so many.
struct Collected {
    records: Vec<(String, Record)>,
    states: Vec<Record>,
    room: usize,
    /// There is no room for this chunk, counted from 0.
    lost_chunk: Option<usize>,
}

impl Default for Collected {
    fn default() -> Self {
        Self { records: Vec::new(), states: Vec::new(), room: usize::MAX, lost_chunk: None }
    }
}

impl Sink for Collected {
    fn push(&mut self, node: &str, record: Record) -> bool {
        let is_chunk = |record: &Record| matches!(record.kind, Some(Kind::Chunk(_)));
        let nth = || self.records.iter().filter(|(_, known)| is_chunk(known)).count();
        if self.lost_chunk.is_some() && is_chunk(&record) && self.lost_chunk == Some(nth()) {
            self.lost_chunk = None;
            return false;
        }
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        self.records.push((node.to_owned(), record));
        true
    }

    fn merge(&mut self, _node: &str, record: Record) {
        self.states.push(record);
    }
}

struct OneKey(Result<Arc<Identity>, String>);

impl Keyring for OneKey {
    fn identity(&mut self, public_key: &[u8; 32]) -> Result<Arc<Identity>, String> {
        self.0.clone().and_then(|mut identity| identity.identity(public_key))
    }
}

impl Keys for OneKey {
    fn take_news(&mut self) -> Vec<News> {
        Vec::new()
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{VECTORS}/{path}")).unwrap()
}

fn identity(path: &str) -> OneKey {
    OneKey(Ok(Arc::new(Identity::from_json(read(path).as_bytes()).unwrap())))
}

type Bench = Interpreter<Collected>;

fn bench(keys: OneKey) -> Bench {
    bench_with(keys, TargetLimits::default(), Waiting::default(), Store::Both)
}

fn bench_with(keys: OneKey, limits: TargetLimits, waiting: Waiting, store: Store) -> Bench {
    let mut bench = Interpreter::new(Collected::default(), Clock::with_offset(1_000), limits, waiting);
    let target = Target {
        node: "node".into(),
        label: "pid 77".into(),
        pid: PID,
        p2p_port: Some(9732),
        store,
        keys: Box::new(keys),
    };
    bench.start_target(target);
    bench
}

impl Bench {
    fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.sink.records.iter().filter_map(|(_, record)| record.kind.as_ref())
    }

    fn messages(&self) -> Vec<&Message> {
        self.kinds().filter_map(|kind| if let Kind::Message(message) = kind { Some(message) } else { None }).collect()
    }

    fn connection_events(&self) -> Vec<(u64, &ConnectionKind)> {
        self.kinds()
            .filter_map(|kind| match kind {
                Kind::Connection(event) => Some((event.connection, event.event.as_ref().unwrap())),
                _ => None,
            })
            .collect()
    }

    /// The newest account, once the kernel's is as given; its equations were checked where it was made.
    fn account_now(&mut self, kernel: KernelAccount) -> NetworkAccount {
        self.account(PID, kernel);
        match self.sink.states.last().unwrap().kind.clone() {
            Some(Kind::NetworkAccount(account)) => account,
            other => panic!("{other:?}"),
        }
    }
}

/// One captured stretch of a session.
struct Step {
    direction: Direction,
    bytes: Vec<u8>,
}

/// The events of a socket, with stream offsets kept.
struct Socket {
    id: SocketId,
    ends: [u64; 2],
    time_ns: u64,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Socket {
    fn opened(&self, role: Option<Role>) -> Opened {
        Opened {
            socket: self.id,
            pid: PID,
            netns: NETNS,
            inode: INODE + self.id.0,
            local: address("[::ffff:10.0.0.1]:40000"),
            remote: address("[::ffff:10.0.0.2]:9732"),
            role,
            sent_offset: self.ends[0],
            received_offset: self.ends[1],
            time_ns: self.time_ns,
        }
    }

    fn open(bench: &mut Bench, id: u64, role: Option<Role>) -> Self {
        let socket = Self { id: SocketId(id), ends: [0, 0], time_ns: 5_000 + id };
        bench.event(&Event::Opened(socket.opened(role)));
        socket
    }

    fn data<'a>(&mut self, direction: Direction, bytes: &'a [u8]) -> Data<'a> {
        let end = &mut self.ends[usize::from(direction == Direction::Received)];
        let offset = *end;
        *end += bytes.len() as u64;
        self.time_ns += 1;
        Data {
            socket: self.id,
            direction,
            offset,
            bytes,
            covers: bytes.len() as u64,
            missing: None,
            call_start: true,
            socket_call: false,
            time_ns: self.time_ns,
        }
    }

    fn push(&mut self, bench: &mut Bench, direction: Direction, bytes: &[u8]) {
        let data = self.data(direction, bytes);
        bench.event(&Event::Data(data));
    }

    fn play(&mut self, bench: &mut Bench, steps: &[Step]) {
        for step in steps {
            self.push(bench, step.direction, &step.bytes);
        }
    }

    fn close(self, bench: &mut Bench) {
        bench.event(&Event::Closed(Closed {
            socket: self.id,
            by: ClosedBy::Remote,
            sent_offset: self.ends[0],
            received_offset: self.ends[1],
            time_ns: self.time_ns + 1,
        }));
    }
}

fn carthagenet() -> Vec<Step> {
    read("carthagenet-2020/payloads.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let (direction, bytes) = line.split_once(',').unwrap();
            let direction = if direction == "sent" { Direction::Sent } else { Direction::Received };
            Step { direction, bytes: hex::decode(bytes).unwrap() }
        })
        .collect()
}

fn syscalls(path: &str) -> Vec<Step> {
    read(path)
        .lines()
        .filter_map(|line| {
            let call: serde_json::Value = serde_json::from_str(line).unwrap();
            let direction = match call["op"].as_str().unwrap() {
                "write" => Direction::Sent,
                "read" => Direction::Received,
                _ => return None,
            };
            let bytes = hex::decode(call["data"].as_str().unwrap()).unwrap();
            (!bytes.is_empty()).then_some(Step { direction, bytes })
        })
        .collect()
}

fn synthetic() -> Vec<Step> {
    syscalls("synthetic-two-way/outgoing-all-messages.syscalls.jsonl")
}

/// Direction, kind, first chunk and SHA-256 of every message between peers that the synthetic session holds.
fn synthetic_messages() -> Vec<(bool, u64, Vec<u8>)> {
    let expected: serde_json::Value =
        serde_json::from_str(&read("synthetic-two-way/outgoing-all-messages.expected.json")).unwrap();
    let message = |message: &serde_json::Value| {
        let is_incoming = message["from_"] == "R";
        // There the first encrypted chunk has number 0, here the connection message has.
        let first = message["first_counter"].as_u64().unwrap() + 1;
        (is_incoming, first, hex::decode(message["plaintext_sha256"].as_str().unwrap()).unwrap())
    };
    let mut messages: Vec<_> = expected["messages"].as_array().unwrap().iter().map(message).collect();
    messages.sort();
    messages
}

fn p2p_messages(bench: &Bench) -> Vec<(bool, u64, Vec<u8>)> {
    let mut messages: Vec<_> = bench
        .messages()
        .into_iter()
        .filter(|message| message.category == "p2p")
        .map(|message| (message.incoming, message.first_chunk, message.sha256.to_vec()))
        .collect();
    messages.sort();
    messages
}

fn bytes_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.bytes.len() as u64).sum()
}

fn seen(bytes: u64) -> KernelAccount {
    KernelAccount { seen: bytes, captured: bytes, ..KernelAccount::default() }
}

#[test]
fn the_real_session_of_carthagenet_comes_out_whole() {
    let mut bench = bench(identity("carthagenet-2020/identity.json"));
    let steps = carthagenet();
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &steps);
    socket.close(&mut bench);

    let expected = read("carthagenet-2020/sent.expected.jsonl");
    let expected: Vec<serde_json::Value> = expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages = bench.messages();
    let sent: Vec<&&Message> =
        messages.iter().filter(|message| !message.incoming && message.category != "connection").collect();
    assert_eq!(sent.len(), expected.len());
    assert_eq!(sent.len(), 5_474);
    for (message, expected) in sent.iter().zip(&expected) {
        let plain = hex::decode(expected["plaintext_hex"].as_str().unwrap()).unwrap();
        assert_eq!(message.sha256, Sha256::digest(&plain).as_slice(), "{expected}");
        let kind = expected["type"].as_str().unwrap().to_lowercase();
        assert_eq!(message.kind, if kind == "ack" { "ack_message" } else { &kind });
        assert_eq!(message.first_chunk, expected["chunk"].as_u64().unwrap() + 1);
        assert_eq!((message.protocol.as_str(), message.error.as_str()), ("tezos", ""));
        assert!(message.preview.is_some());
    }
    let events = bench.connection_events();
    assert!(events.iter().all(|(key, _)| *key == 5_001 + 1_000), "the key is the real time of the start");
    assert!(!events.iter().any(|(_, event)| matches!(event, ConnectionKind::Gap(_))));
    assert!(matches!(events.first().unwrap().1, ConnectionKind::Opened(_)));
    let ConnectionKind::Closed(closed) = events.last().unwrap().1 else { panic!("{events:?}") };
    assert_eq!((closed.by.as_str(), closed.sent_bytes), ("remote", 713_756));
    let identified = events.iter().find_map(|(_, event)| match event {
        ConnectionKind::Identified(identified) => Some(identified),
        _ => None,
    });
    assert_eq!(identified.unwrap().network, "TEZOS_ALPHANET_CARTHAGE_2019-11-28T13:02:13Z");

    let account = bench.account_now(seen(bytes_of(&steps)));
    assert_eq!((account.bytes_in_ring, account.bytes_pending, account.gaps), (0, 0, 0));
    assert_eq!(account.bytes_in_chunks, bytes_of(&steps));
    assert_eq!((account.connections, account.connections_open), (1, 0));
    assert_eq!(account.messages_sent, bench.messages().len() as u64);
    assert_eq!(bench.take_verdicts(), [(SocketId(1), Verdict::Keep)]);
}

#[test]
fn the_synthetic_session_comes_out_whole_in_both_directions() {
    for role in [Some(Role::Initiator), None] {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        let mut socket = Socket::open(&mut bench, 1, role);
        socket.play(&mut bench, &synthetic());
        socket.close(&mut bench);
        assert_eq!(p2p_messages(&bench), synthetic_messages(), "{role:?}");
        let account = bench.account_now(seen(bytes_of(&synthetic())));
        assert_eq!((account.bytes_in_chunks, account.gaps), (bytes_of(&synthetic()), 0));
    }
}

#[test]
fn plain_bytes_alone_can_be_stored() {
    let mut bench = bench_with(
        identity("synthetic-two-way/identity.json"),
        TargetLimits::default(),
        Waiting::default(),
        Store::Plain,
    );
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let chunks: Vec<_> =
        bench.kinds().filter_map(|kind| if let Kind::Chunk(chunk) = kind { Some(chunk) } else { None }).collect();
    assert_eq!(chunks.len(), 2 + 16 + 22);
    for chunk in chunks {
        assert_eq!(chunk.wire.is_empty(), chunk.state() == ChunkState::Opened);
        assert!(!chunk.plain.is_empty());
    }
}

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
        // The probe tells of the socket at its first traffic, and not of its role.
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
fn a_late_session_that_nobody_knows_is_undecryptable() {
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
    let limits = TargetLimits { undecided_connections: 100, undecided_bytes: 40_000 };
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
    let data = Data {
        offset: 100,
        ..Socket { id: SocketId(0), ends: [0, 100], time_ns: 9 }.data(Direction::Received, &[1; 50])
    };
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
fn holes_are_told_with_their_reason_and_the_equations_hold() {
    let steps = synthetic();
    for lost in (10..steps.len()).step_by(17) {
        let mut bench = bench(identity("synthetic-two-way/identity.json"));
        let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
        for (index, step) in steps.iter().enumerate() {
            let mut data = socket.data(step.direction, &step.bytes);
            if index == lost {
                data.bytes = &[];
                data.missing = Some(MissingReason::Unreadable);
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
        assert_eq!((account.bytes_in_ring, account.bytes_pending), (0, 0), "{lost}");
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
fn records_without_room_are_counted() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    bench.sink.room = 20;
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
fn data_before_the_opening_is_counted() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket { id: SocketId(1), ends: [0, 0], time_ns: 1 };
    let data = socket.data(Direction::Received, b"orphans");
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
    let account = bench.account_now(seen(10));
    assert_eq!((account.bytes_seen, account.bytes_in_ring), (bytes_of(&synthetic()), 0));
    let account = bench.account_now(seen(bytes_of(&synthetic()) + 1_000));
    assert_eq!(account.bytes_in_ring, 1_000);
}

#[test]
fn connection_keys_are_given_once() {
    let mut keys = ConnectionKeys::default();
    assert_eq!([keys.give(7), keys.give(7), keys.give(8), keys.give(7)], [7, 8, 9, 10]);
}

#[test]
fn no_secret_leaves_the_interpreter() {
    let mut bench = bench(identity("synthetic-two-way/identity.json"));
    let mut socket = Socket::open(&mut bench, 1, Some(Role::Initiator));
    socket.play(&mut bench, &synthetic());
    let json: serde_json::Value = serde_json::from_str(&read("synthetic-two-way/identity.json")).unwrap();
    let expected: serde_json::Value =
        serde_json::from_str(&read("synthetic-two-way/outgoing-all-messages.expected.json")).unwrap();
    let mut everything: Vec<u8> = bench.sink.records.iter().flat_map(|(_, record)| record.encode_to_vec()).collect();
    everything.extend(bench.journal().encode_to_vec());
    assert!(everything.len() > 300_000);
    for secret in [&json["secret_key"], &expected["precomputed_key"]] {
        let text = secret.as_str().unwrap();
        let raw = hex::decode(text).unwrap();
        assert!(!everything.windows(raw.len()).any(|window| window == raw));
        assert!(!everything.windows(text.len()).any(|window| window == text.as_bytes()));
    }
}
