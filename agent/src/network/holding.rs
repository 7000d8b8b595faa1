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

mod memory;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chainscope_ebpf::network::{Closed, Data, DataHeader, Event, KernelAccount, Opened, SocketId, Verdict};

use self::memory::Memory;
use crate::targets::ProcessGroup;

/// Dropped payload of one process after which its connections are left alone.
const MAX_DROPPED_BYTES: u64 = 64 << 20;
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
pub(crate) struct HeldProcess {
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

impl HeldProcess {
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

/// What was dropped since the agent started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Discarded {
    pub(crate) processes: u64,
    pub(crate) bytes: u64,
}

/// All held processes.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    held: BTreeMap<u32, HeldProcess>,
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
                self.held.insert(pid, HeldProcess::new(Some(group)));
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
            self.held.insert(pid, HeldProcess::new(None));
        }
    }

    pub(crate) fn is_provisional(&self, pid: u32) -> bool {
        self.held.get(&pid).is_some_and(HeldProcess::is_provisional)
    }

    /// Whether an answer about any process is outstanding.
    pub(crate) fn has_provisional(&self) -> bool {
        self.held.values().any(HeldProcess::is_provisional)
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
    pub(crate) fn take(&mut self, pid: u32) -> Option<HeldProcess> {
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
