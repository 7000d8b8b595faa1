//! The reader's thread: takes events from the ring as fast as they arrive and passes them on in batches.
//!
//! Batches go through a bounded channel. When the interpreter is behind, this thread waits, the ring fills, and the
//! kernel counts what does not fit: memory stays bounded and the observed process never waits.
//!
//! Accounts are read after the ring was drained and travel in the same channel as the events, so that the
//! receiver of an account has every event that came before it.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use chainscope_ebpf::network::{
    Closed, Counters, Data, DataHeader, Event, KernelAccount, NetworkProbe, Opened, SocketId, Verdict,
};
use chainscope_hygiene::warn_limited;
use crossbeam_channel::{Receiver, Sender};

use crate::{Error, thread::Heartbeat};

/// Payload bytes of a batch.
const BATCH_BYTES: usize = 512 << 10;
/// Events of a batch.
const BATCH_EVENTS: usize = 2048;
/// Batches in flight to the interpreter: with [`BATCH_BYTES`] 8 MiB.
pub(crate) const BATCHES: usize = 16;
/// How long a poll waits if nothing happens and no command is sent.
const POLL_TIMEOUT: Duration = Duration::from_millis(250);
/// How often accounts are read.
const ACCOUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A command to the probe: the control path from the worker into the kernel.
#[derive(Debug)]
pub(crate) enum Command {
    WatchPort {
        netns: Option<u32>,
        port: u16,
    },
    UnwatchPort {
        netns: Option<u32>,
        port: u16,
    },
    /// Capture a process; `port`: of its accepted sockets only those on this local port.
    AddProcess {
        pid: u32,
        port: Option<u16>,
        listens: Vec<(u32, SocketAddr)>,
    },
    /// Of the sockets that a process accepts from now on, capture only those on this local port.
    SetPort {
        pid: u32,
        port: Option<u16>,
    },
    /// A process exited. [`ProbeEvent::Settled`] follows everything that it did.
    RemoveProcess {
        pid: u32,
    },
    /// Stop capturing a process that goes on, and forget its sockets. [`ProbeEvent::Settled`] follows its last event.
    ReleaseProcess {
        pid: u32,
    },
    WatchProgram(String),
    UnwatchProgram(String),
    Decide(SocketId, Verdict),
}

/// An event in a batch; payload is in the batch's buffer.
#[derive(Debug)]
enum Item {
    Listening { pid: u32, netns: u32, local: SocketAddr, time_ns: u64 },
    Exec { pid: u32, time_ns: u64 },
    Opened(Opened),
    Inode { socket: SocketId, inode: u64 },
    Data { header: DataHeader, bytes: Range<usize> },
    Closed(Closed),
    Watched { pid: u32 },
    Refused { pid: u32, cause: String },
    Account { pid: u32, account: KernelAccount },
    Settled { pid: u32, account: Option<KernelAccount> },
    Counters(Counters),
}

/// An event as the worker gets it from a batch.
#[derive(Debug)]
pub(crate) enum ProbeEvent<'a> {
    Event(Event<'a>),
    /// From here on the kernel captures a process that was added.
    Watched {
        pid: u32,
    },
    /// The kernel does not capture a process that was to be added.
    Refused {
        pid: u32,
        cause: &'a str,
    },
    /// A running account, read after all events before it were taken.
    Account {
        pid: u32,
        account: &'a KernelAccount,
    },
    /// A process that was removed did nothing after this.
    Settled {
        pid: u32,
        account: Option<&'a KernelAccount>,
    },
    /// Counts of the kernel that belong to no process.
    Counters(Counters),
}

/// Events with their payload in one reusable buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    items: Vec<Item>,
    bytes: Vec<u8>,
}

impl Batch {
    fn push(&mut self, event: &Event<'_>) {
        let item = match *event {
            Event::Listening { pid, netns, local, time_ns } => Item::Listening { pid, netns, local, time_ns },
            Event::Exec { pid, time_ns } => Item::Exec { pid, time_ns },
            Event::Opened(opened) => Item::Opened(opened),
            Event::Inode { socket, inode } => Item::Inode { socket, inode },
            Event::Closed(closed) => Item::Closed(closed),
            Event::Data(Data { header, bytes }) => {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(bytes);
                Item::Data { header, bytes: start..self.bytes.len() }
            }
        };
        self.items.push(item);
    }

    fn is_full(&self) -> bool {
        self.items.len() >= BATCH_EVENTS || self.bytes.len() >= BATCH_BYTES
    }

    fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
    }

    /// Everything in it, in order.
    pub(crate) fn events(&self) -> impl Iterator<Item = ProbeEvent<'_>> {
        self.items.iter().map(|item| match item {
            Item::Listening { pid, netns, local, time_ns } => {
                ProbeEvent::Event(Event::Listening { pid: *pid, netns: *netns, local: *local, time_ns: *time_ns })
            }
            Item::Exec { pid, time_ns } => ProbeEvent::Event(Event::Exec { pid: *pid, time_ns: *time_ns }),
            Item::Opened(opened) => ProbeEvent::Event(Event::Opened(*opened)),
            Item::Inode { socket, inode } => ProbeEvent::Event(Event::Inode { socket: *socket, inode: *inode }),
            Item::Closed(closed) => ProbeEvent::Event(Event::Closed(*closed)),
            Item::Data { header, bytes } => {
                let bytes = self.bytes.get(bytes.clone()).unwrap_or_default();
                ProbeEvent::Event(Event::Data(Data { header: *header, bytes }))
            }
            Item::Watched { pid } => ProbeEvent::Watched { pid: *pid },
            Item::Refused { pid, cause } => ProbeEvent::Refused { pid: *pid, cause },
            Item::Account { pid, account } => ProbeEvent::Account { pid: *pid, account },
            Item::Settled { pid, account } => ProbeEvent::Settled { pid: *pid, account: account.as_ref() },
            Item::Counters(counters) => ProbeEvent::Counters(*counters),
        })
    }
}

/// The probe as the reader uses it.
pub(crate) trait Probe {
    fn poll(&mut self, timeout: Duration, take: &mut dyn FnMut(Event<'_>)) -> Result<usize, chainscope_ebpf::Error>;
    fn account(&self, pid: u32) -> Option<KernelAccount>;
    fn counters(&self) -> Counters;
    fn apply(&mut self, command: &Command) -> Result<(), chainscope_ebpf::Error>;
}

impl Probe for NetworkProbe {
    fn poll(&mut self, timeout: Duration, take: &mut dyn FnMut(Event<'_>)) -> Result<usize, chainscope_ebpf::Error> {
        Self::poll(self, timeout, take)
    }

    fn account(&self, pid: u32) -> Option<KernelAccount> {
        Self::account(self, pid)
    }

    fn counters(&self) -> Counters {
        Self::counters(self)
    }

    fn apply(&mut self, command: &Command) -> Result<(), chainscope_ebpf::Error> {
        match command {
            Command::WatchPort { netns, port } => self.watch_port(*netns, *port),
            Command::UnwatchPort { netns, port } => self.unwatch_port(*netns, *port),
            Command::AddProcess { pid, port, listens } => {
                self.add_process(*pid)?;
                self.set_port_filter(*pid, *port)?;
                listens.iter().try_for_each(|(netns, local)| self.add_listener(*netns, *local, *pid))
            }
            Command::SetPort { pid, port } => self.set_port_filter(*pid, *port),
            Command::RemoveProcess { pid } => self.remove_process(*pid),
            Command::ReleaseProcess { pid } => self.release_process(*pid),
            Command::WatchProgram(name) => self.watch_program(name),
            Command::UnwatchProgram(name) => self.unwatch_program(name),
            Command::Decide(socket, verdict) => self.set_verdict(*socket, *verdict),
        }
    }
}

/// The thread's state.
pub(crate) struct Reader<P> {
    probe: P,
    commands: Receiver<Command>,
    out: Outlet,
    /// Processes whose accounts are read.
    pids: BTreeSet<u32>,
    stop: Arc<AtomicBool>,
    heartbeat: Heartbeat,
}

/// The channels of batches: full ones out, empty ones back.
struct Outlet {
    batch: Batch,
    batches: Sender<Batch>,
    spare: Receiver<Batch>,
    /// The interpreter is gone.
    is_shut: bool,
}

impl Outlet {
    fn event(&mut self, event: &Event<'_>) {
        self.batch.push(event);
        if self.batch.is_full() {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.batch.items.is_empty() {
            return;
        }
        let mut next = self.spare.try_recv().unwrap_or_default();
        next.clear();
        // Waits while the interpreter is behind.
        self.is_shut |= self.batches.send(std::mem::replace(&mut self.batch, next)).is_err();
    }
}

/// The process whose capture a command ends.
fn ended_by(command: &Command) -> Option<u32> {
    match command {
        Command::RemoveProcess { pid } | Command::ReleaseProcess { pid } => Some(*pid),
        _ => None,
    }
}

impl<P: Probe> Reader<P> {
    pub(crate) fn new(
        probe: P,
        commands: Receiver<Command>,
        batches: Sender<Batch>,
        spare: Receiver<Batch>,
        stop: Arc<AtomicBool>,
        heartbeat: Heartbeat,
    ) -> Self {
        let out = Outlet { batch: Batch::default(), batches, spare, is_shut: false };
        Self { probe, commands, out, pids: BTreeSet::new(), stop, heartbeat }
    }

    /// Applies the commands that were sent so far: afterwards the kernel watches the ports.
    pub(crate) fn prepare(&mut self) {
        for end in self.apply() {
            self.settle(&end);
        }
    }

    /// Runs until `stop` is set; then takes what the ring still holds and reads the accounts once more.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut accounts_due = Instant::now() + ACCOUNT_INTERVAL;
        while !self.out.is_shut {
            self.heartbeat.beat();
            let is_last = self.stop.load(Ordering::Acquire);
            let removed = self.apply();
            let timeout = if is_last { Duration::ZERO } else { POLL_TIMEOUT };
            let out = &mut self.out;
            self.probe.poll(timeout, &mut |event| out.event(&event))?;
            for end in removed {
                self.settle(&end);
            }
            if is_last || Instant::now() >= accounts_due {
                self.accounts();
                accounts_due = Instant::now() + ACCOUNT_INTERVAL;
            }
            self.out.flush();
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Applies the waiting commands; returns those that end the capture of a process, for when the ring is drained.
    fn apply(&mut self) -> Vec<Command> {
        let mut ends = Vec::new();
        while let Ok(command) = self.commands.try_recv() {
            if let Some(pid) = ended_by(&command) {
                self.pids.remove(&pid);
                ends.push(command);
                continue;
            }
            let result = self.probe.apply(&command);
            if let Err(cause) = &result {
                warn_limited!(?command, %cause, "the kernel part refused");
            }
            let Command::AddProcess { pid, .. } = command else { continue };
            // Released a moment ago, and a target again.
            ends.retain(|end| ended_by(end) != Some(pid));
            self.out.batch.items.push(match result {
                Ok(()) => {
                    self.pids.insert(pid);
                    Item::Watched { pid }
                }
                Err(cause) => Item::Refused { pid, cause: cause.to_string() },
            });
        }
        ends
    }

    fn settle(&mut self, end: &Command) {
        let Some(pid) = ended_by(end) else { return };
        let account = self.probe.account(pid);
        self.out.batch.items.push(Item::Settled { pid, account });
        if let Err(cause) = self.probe.apply(end) {
            warn_limited!(pid, %cause, "the kernel part did not forget a process");
        }
    }

    fn accounts(&mut self) {
        for pid in &self.pids {
            if let Some(account) = self.probe.account(*pid) {
                self.out.batch.items.push(Item::Account { pid: *pid, account });
            }
        }
        self.out.batch.items.push(Item::Counters(self.probe.counters()));
    }
}
