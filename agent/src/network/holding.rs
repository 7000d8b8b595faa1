//! The holding buffer: capture before configuration, until it is decided whether a process is a target, and of which node.
//!
//! ```text
//!   program of a known name executed, ─▶ held ─▶ configured: its events are interpreted from the first one on
//!   or known port listened on,             └──▶ not meant, or 60 s over: thrown away, and counted
//!   in a pod's container
//!   socket of an unknown process ──▶ provisionally held ──▶ as discovery answers: a target, held, or left alone
//! ```
//!
//! Up to 8 MiB of memory are used for each pod (or container, or the processes outside of one) and 64 MiB for all: payload,
//! and what describes it. What comes after that is dropped and counted, so that the beginning is always complete. A process of
//! which 64 MiB were dropped is captured no further: it would take the place of others in the ring. This does not apply to a
//! target, which is held only until its identity was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chainscope_ebpf::network::{Closed, Data, DataHeader, Event, KernelAccount, Opened, SocketId, Verdict};

use crate::targets::ProcessGroup;

/// Memory for what is held of the processes of one group.
const GROUP_BYTES: usize = 8 << 20;
/// Dropped payload of one process after which its connections are left alone.
const MAX_DROPPED_BYTES: u64 = 64 << 20;
/// Memory for what is held of all processes.
const ALL_BYTES: usize = 64 << 20;
/// Payload leaves this part of both limits to openings and endings: connections that begin later can still be held.
const RESERVED_PART: usize = 8;
/// Memory of an item beside its payload: a list may have capacity for twice its items, and payload has an allocation of its own.
const ITEM_BYTES: usize = 2 * size_of::<Item>() + 32;
/// Memory of a connection without payload: its opening and its ending, with the entries of its socket in tables.
const CONNECTION_BYTES: usize = 2 * ITEM_BYTES;
/// Processes from which on no unknown one is held.
const MAX_PROCESSES: usize = 1024;

/// An event that owns its payload.
#[derive(Debug)]
enum Item {
    Opened(Opened),
    Inode { socket: SocketId, inode: u64 },
    Data { header: DataHeader, bytes: Box<[u8]> },
    Closed(Closed),
}

/// What is held of one process.
#[derive(Debug)]
pub(crate) struct Held {
    /// Whose bounds apply; none while discovery has been asked about the process and has not answered yet.
    group: Option<ProcessGroup>,
    /// It is a target whose identity is being read.
    is_target: bool,
    items: Vec<Item>,
    /// Payload of the items.
    bytes: usize,
    /// Memory that it is charged.
    memory: usize,
    /// Payload that did not fit.
    pub(crate) dropped_bytes: u64,
    /// It exited and all its events are here; with the kernel's account.
    pub(crate) settled: Option<Option<KernelAccount>>,
    sockets: BTreeSet<SocketId>,
}

impl Held {
    fn new(group: Option<ProcessGroup>) -> Self {
        Self {
            group,
            is_target: false,
            items: Vec::new(),
            bytes: 0,
            memory: 0,
            dropped_bytes: 0,
            settled: None,
            sockets: BTreeSet::new(),
        }
    }

    fn is_provisional(&self) -> bool {
        self.group.is_none()
    }

    /// Everything, in order.
    pub(crate) fn replay(&self, take: &mut dyn FnMut(&Event<'_>)) {
        for item in &self.items {
            take(&match item {
                Item::Opened(opened) => Event::Opened(*opened),
                Item::Inode { socket, inode } => Event::Inode { socket: *socket, inode: *inode },
                Item::Closed(closed) => Event::Closed(*closed),
                Item::Data { header, bytes } => Event::Data(Data { header: *header, bytes }),
            });
        }
    }
}

/// Memory in use.
#[derive(Debug, Default)]
struct Memory {
    all: usize,
    /// Of each group; of provisional processes together.
    groups: HashMap<Option<ProcessGroup>, usize>,
}

impl Memory {
    /// Whether a connection fits, or another item without payload.
    fn fits(&self, group: &Option<ProcessGroup>, bytes: usize) -> bool {
        self.is_within(group, bytes, (GROUP_BYTES, ALL_BYTES))
    }

    /// Whether payload fits, with its item.
    fn fits_payload(&self, group: &Option<ProcessGroup>, bytes: usize) -> bool {
        let limits = (GROUP_BYTES - GROUP_BYTES / RESERVED_PART, ALL_BYTES - ALL_BYTES / RESERVED_PART);
        self.is_within(group, bytes, limits)
    }

    fn is_within(&self, group: &Option<ProcessGroup>, bytes: usize, (of_group, of_all): (usize, usize)) -> bool {
        let used = self.groups.get(group).copied().unwrap_or(0);
        used + bytes <= of_group && self.all + bytes <= of_all
    }

    /// Charges a process with what is held of it.
    fn charge(&mut self, held: &mut Held, bytes: usize) {
        held.memory += bytes;
        self.add(&held.group, bytes);
    }

    fn add(&mut self, group: &Option<ProcessGroup>, bytes: usize) {
        self.all += bytes;
        *self.groups.entry(group.clone()).or_default() += bytes;
    }

    fn subtract(&mut self, group: &Option<ProcessGroup>, bytes: usize) {
        self.all -= bytes;
        if let Some(sum) = self.groups.get_mut(group) {
            *sum -= bytes;
            if *sum == 0 {
                self.groups.remove(group);
            }
        }
    }
}

/// What was dropped since the agent started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Discarded {
    pub(crate) processes: u64,
    pub(crate) bytes: u64,
}

/// All held processes.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    held: BTreeMap<u32, Held>,
    owners: HashMap<SocketId, u32>,
    /// Payload.
    bytes: usize,
    memory: Memory,
    discarded: Discarded,
    verdicts: Vec<(SocketId, Verdict)>,
}

impl Holding {
    /// Holds what a process does until it is configured.
    pub(crate) fn hold(&mut self, pid: u32, group: ProcessGroup) {
        match self.held.get_mut(&pid).filter(|held| held.is_provisional()) {
            Some(held) => {
                let before = held.group.replace(group);
                self.memory.subtract(&before, held.memory);
                self.memory.add(&held.group, held.memory);
            }
            None => {
                // Of an earlier process with this number.
                self.discard(pid);
                self.held.insert(pid, Held::new(Some(group)));
            }
        }
    }

    /// A held process is a target: it is not left alone, whatever is dropped of it.
    pub(crate) fn set_target(&mut self, pid: u32) {
        if let Some(held) = self.held.get_mut(&pid) {
            held.is_target = true;
        }
    }

    /// Whether another connection of a held process can be held.
    pub(crate) fn fits_connection(&self, pid: u32) -> bool {
        self.held.get(&pid).is_some_and(|held| self.memory.fits(&held.group, CONNECTION_BYTES))
    }

    /// Buffers events of an unknown process until discovery answers; a full buffer leaves its sockets alone.
    pub(crate) fn begin_provisional(&mut self, pid: u32) {
        if self.held.len() < MAX_PROCESSES {
            self.held.insert(pid, Held::new(None));
        }
    }

    pub(crate) fn is_provisional(&self, pid: u32) -> bool {
        self.held.get(&pid).is_some_and(Held::is_provisional)
    }

    /// Whether an answer about any process is outstanding.
    pub(crate) fn has_provisional(&self) -> bool {
        self.held.values().any(Held::is_provisional)
    }

    /// Discovery answered, and nothing is to be done about the process: its sockets are left alone.
    pub(crate) fn drop_provisional(&mut self, pid: u32) {
        if self.is_provisional(pid) {
            self.discard(pid);
        }
    }

    pub(crate) fn has(&self, pid: u32) -> bool {
        self.held.contains_key(&pid)
    }

    /// A held process exited, and all its events are here; false if it is not held.
    pub(crate) fn settle(&mut self, pid: u32, account: Option<&KernelAccount>) -> bool {
        let held = self.held.get_mut(&pid);
        held.map(|held| held.settled = Some(account.cloned())).is_some()
    }

    pub(crate) fn processes(&self) -> usize {
        self.held.values().filter(|held| !held.is_provisional()).count()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn discarded(&self) -> Discarded {
        self.discarded
    }

    /// Takes an event of a held process; false if it is of none.
    pub(crate) fn event(&mut self, event: &Event<'_>) -> bool {
        let socket = match event {
            Event::Opened(opened) => {
                if !self.held.contains_key(&opened.pid) {
                    return false;
                }
                self.owners.insert(opened.socket, opened.pid);
                opened.socket
            }
            Event::Inode { socket, .. } => *socket,
            Event::Data(data) => data.header.socket,
            Event::Closed(closed) => closed.socket,
            _ => return false,
        };
        let Some(held) = self.owners.get(&socket).and_then(|pid| self.held.get_mut(pid)) else { return false };
        match event {
            Event::Opened(opened) if self.memory.fits(&held.group, CONNECTION_BYTES) => {
                held.sockets.insert(socket);
                held.items.push(Item::Opened(*opened));
                self.memory.charge(held, CONNECTION_BYTES);
            }
            // Without its opening nothing of the connection can be interpreted.
            Event::Opened(_) if !held.is_target => self.verdicts.push((socket, Verdict::LeaveAlone)),
            Event::Inode { socket, inode } if self.memory.fits(&held.group, ITEM_BYTES) => {
                held.items.push(Item::Inode { socket: *socket, inode: *inode });
                self.memory.charge(held, ITEM_BYTES);
            }
            Event::Data(data) => {
                let length = data.bytes.len();
                let memory = ITEM_BYTES + length;
                if !held.sockets.contains(&socket) || !self.memory.fits_payload(&held.group, memory) {
                    held.dropped_bytes += length as u64;
                    if held.dropped_bytes > MAX_DROPPED_BYTES && !held.is_target {
                        self.verdicts.push((socket, Verdict::LeaveAlone));
                    }
                } else {
                    held.bytes += length;
                    self.bytes += length;
                    self.memory.charge(held, memory);
                    // The interpreter has the same verdict on these bytes of a target.
                    if is_foreign(data) {
                        self.verdicts.push((socket, Verdict::LeaveAlone));
                    }
                    held.items.push(Item::Data { header: data.header, bytes: data.bytes.into() });
                }
            }
            // The end of a held connection is always kept: its memory was charged with the opening.
            Event::Closed(closed) if held.sockets.contains(&socket) => {
                held.items.push(Item::Closed(*closed));
                self.owners.remove(&socket);
            }
            Event::Closed(_) => {
                self.owners.remove(&socket);
            }
            _ => {}
        }
        true
    }

    /// Verdicts for the kernel since the last call.
    pub(crate) fn take_verdicts(&mut self) -> Vec<(SocketId, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    /// Removes and returns what is held of a process.
    pub(crate) fn take(&mut self, pid: u32) -> Option<Held> {
        let held = self.held.remove(&pid)?;
        self.bytes -= held.bytes;
        self.memory.subtract(&held.group, held.memory);
        self.owners.retain(|_, owner| *owner != pid);
        Some(held)
    }

    /// Drops what is held of a process.
    pub(crate) fn discard(&mut self, pid: u32) {
        let Some(held) = self.take(pid) else { return };
        if held.is_provisional() {
            self.verdicts.extend(held.sockets.iter().map(|socket| (*socket, Verdict::LeaveAlone)));
        } else {
            self.discarded.processes += 1;
            self.discarded.bytes += held.bytes as u64 + held.dropped_bytes;
        }
    }
}

/// Whether these are the first bytes of another protocol: the first message between peers is clear and begins with its
/// length of some hundred bytes. Requests to a node's RPC must not fill the buffer before the node is known.
fn is_foreign(data: &Data<'_>) -> bool {
    data.header.offset == 0 && data.bytes.len() >= 2 && data.bytes.first().is_some_and(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use chainscope_ebpf::network::{ClosedBy, Direction};

    use super::*;
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

    fn replayed(held: &Held) -> (usize, Vec<u8>) {
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
        let closed =
            Closed { socket: SocketId(1), by: ClosedBy::Local, sent_offset: 6, received_offset: 0, time_ns: 3 };
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
    fn used(held: &Held) -> usize {
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
}
