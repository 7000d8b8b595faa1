//! The network probe: the maps of what is watched, and the reader of the ring.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuHashMap, PerCpuValues};

use super::abi::{Account, CGROUP_SLOTS, Globals, ListenKey, Listener, OverflowNotice, PortKey, ProgramName};
use super::account::{Counters, KernelAccount};
use super::event::{Event, SocketId, Verdict};
use super::options::{CaptureMode, NetworkOptions};
use super::programs::{Object, forget_sockets};
use super::record;
use crate::error::Error;
use crate::load::{mmap_array, take_map};
use crate::mmap_array::MmapArray;
use crate::reader::RingReader;
use crate::ring::RingWaker;

/// `BPF_NOEXIST`: do not overwrite an element.
const BPF_NOEXIST: u64 = 1;

/// Records what watched processes send and receive. Dropping it detaches and frees everything.
///
/// # Minimum kernel version
///
/// 5.17, or an older one with `bpf_loop` backported; 6.3 for [`CaptureMode::Sock`].
pub struct NetworkProbe {
    mode: CaptureMode,
    reader: RingReader,
    processes: PerCpuHashMap<MapData, u32, Account>,
    /// Slots of the cgroups of processes that the programs watch by themselves.
    unconfirmed: HashMap<MapData, u32, u32>,
    cgroup_slots: MmapArray<u64>,
    watched_ports: HashMap<MapData, PortKey, u8>,
    watched_programs: HashMap<MapData, ProgramName, u8>,
    socket_counts: HashMap<MapData, u32, u32>,
    listeners: HashMap<MapData, ListenKey, Listener>,
    port_filters: HashMap<MapData, u32, u16>,
    verdicts: HashMap<MapData, u64, u8>,
    overflow_notices: HashMap<MapData, u64, OverflowNotice>,
    globals: Array<MapData, Globals>,
    overflow_seen: u64,
    /// Owns the programs and their attachments.
    bpf: Ebpf,
}

impl fmt::Debug for NetworkProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkProbe").field("mode", &self.mode).field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl NetworkProbe {
    /// Loads and attaches the programs, which takes about 100 ms. No process is watched yet.
    ///
    /// # Errors
    /// No BTF, a kernel without `bpf_loop`, missing capabilities, no memory, an invalid ring size.
    pub fn load(options: &NetworkOptions) -> Result<Self, Error> {
        let mut object = Object::load(options)?;
        let bpf = &mut object.bpf;
        let reader = RingReader::new(bpf, options.ring_bytes, options.wake_bytes)?;
        Ok(Self {
            mode: object.mode,
            reader,
            processes: take_map(bpf, "processes")?,
            unconfirmed: take_map(bpf, "unconfirmed")?,
            cgroup_slots: mmap_array(bpf, "cgroup_slots", CGROUP_SLOTS)?,
            watched_ports: take_map(bpf, "watched_ports")?,
            watched_programs: take_map(bpf, "watched_programs")?,
            socket_counts: take_map(bpf, "socket_counts")?,
            listeners: take_map(bpf, "listeners")?,
            port_filters: take_map(bpf, "port_filters")?,
            verdicts: take_map(bpf, "verdicts")?,
            overflow_notices: take_map(bpf, "overflow_notices")?,
            globals: take_map(bpf, ".bss")?,
            overflow_seen: 0,
            bpf: object.attach()?,
        })
    }

    /// The capture mode in use.
    #[must_use]
    pub fn mode(&self) -> CaptureMode {
        self.mode
    }

    /// Watches a port: a process that begins to listen on it becomes a watched process, in the kernel, and
    /// [`Event::Listening`] is reported. Connections that it accepts on other ports are not captured until
    /// [`set_port_filter`](Self::set_port_filter) allows them. `netns` is the inode of a network namespace, `None` any.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn watch_port(&mut self, netns: Option<u32>, port: u16) -> Result<(), Error> {
        stored("ports", self.watched_ports.insert(PortKey::new(netns, port), 1, 0))
    }

    /// Ends [`watch_port`](Self::watch_port). Processes that are already watched remain watched.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn unwatch_port(&mut self, netns: Option<u32>, port: u16) -> Result<(), Error> {
        removed("ports", self.watched_ports.remove(&PortKey::new(netns, port)))
    }

    /// Watches a program name: a process that executes a program of this name becomes a watched process, in the kernel,
    /// before the first instruction of the program, and [`Event::Exec`] is reported. The name is compared to the file name
    /// of the executed file and of `argv[0]`, truncated to 15 bytes: the caller has to check the process for a match of the
    /// whole name.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn watch_program(&mut self, name: &str) -> Result<(), Error> {
        stored("programs", self.watched_programs.insert(ProgramName::new(name), 1, 0))
    }

    /// Ends [`watch_program`](Self::watch_program). Processes that are already watched remain watched.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn unwatch_program(&mut self, name: &str) -> Result<(), Error> {
        removed("programs", self.watched_programs.remove(&ProgramName::new(name)))
    }

    /// Watches a process (thread group): new connections, and existing ones from their next read or write on. Has no effect
    /// on a process that is already watched, but for one: processes that are watched for their port or name occupy one of
    /// 256 entries for all and of 32 for each cgroup until they are added or removed.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn add_process(&mut self, pid: u32) -> Result<(), Error> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| Error::Ring(error))?;
        let zero = PerCpuValues::try_from(vec![Account::default(); cpus]).map_err(Error::Ring)?;
        match self.processes.insert(pid, zero, BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if is(&error.io_error, rustix::io::Errno::EXIST) => self.confirm(pid),
            other => stored("processes", other),
        }
    }

    /// Frees the entry of a process that the programs watch by themselves.
    fn confirm(&mut self, pid: u32) -> Result<(), Error> {
        let Ok(slot) = self.unconfirmed.get(&pid, 0) else { return Ok(()) };
        removed("unconfirmed processes", self.unconfirmed.remove(&pid))?;
        if let Some(count) = self.cgroup_slots.atomic(slot, 0) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stops watching a process and removes its account. Connections that were reported still get an [`Event::Closed`].
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn remove_process(&mut self, pid: u32) -> Result<(), Error> {
        self.forget_process(pid)?;
        removed("socket counts", self.socket_counts.remove(&pid))
    }

    fn forget_process(&mut self, pid: u32) -> Result<(), Error> {
        removed("processes", self.processes.remove(&pid))?;
        self.confirm(pid)?;
        removed("filters", self.port_filters.remove(&pid))
    }

    /// Stops watching a process and removes the state of its connections, without an [`Event::Closed`]. If the process is
    /// watched again, connections that still exist are opened again, from their current offsets. The listening sockets of
    /// the process stay known.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn release_process(&mut self, pid: u32) -> Result<(), Error> {
        // The account first: without it the programs do not change the states any more.
        self.forget_process(pid)?;
        if self.socket_counts.get(&pid, 0).is_ok_and(|count| count > 0) {
            forget_sockets(&mut self.bpf, pid)?;
        }
        removed("socket counts", self.socket_counts.remove(&pid))
    }

    /// Adds an existing listening socket of a watched process: connections accepted there belong to the process, with the
    /// role of a responder. `local` is the address that it is bound to: `0.0.0.0` for every IPv4 address, `::` for every
    /// address.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn add_listener(&mut self, netns: u32, local: SocketAddr, pid: u32) -> Result<(), Error> {
        stored("listeners", self.listeners.insert(ListenKey::new(netns, local), Listener { pid, count: 1 }, 0))
    }

    /// Ends [`add_listener`](Self::add_listener). The programs do so themselves when the socket closes.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn remove_listener(&mut self, netns: u32, local: SocketAddr) -> Result<(), Error> {
        removed("listeners", self.listeners.remove(&ListenKey::new(netns, local)))
    }

    /// Restricts a process to connections that it accepts on `port` (and on watched ports) or initiates itself; connections
    /// accepted on other ports are not captured and not reported. Applies to connections that are established later.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn set_port_filter(&mut self, pid: u32, port: Option<u16>) -> Result<(), Error> {
        match port {
            Some(port) => stored("filters", self.port_filters.insert(pid, port, 0)),
            None => removed("filters", self.port_filters.remove(&pid)),
        }
    }

    /// Sets the verdict on a connection, at most once. It takes effect at the next read or write.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn set_verdict(&mut self, socket: SocketId, verdict: Verdict) -> Result<(), Error> {
        let number = match verdict {
            Verdict::Keep => 1,
            Verdict::LeaveAlone => 2,
        };
        stored("verdicts", self.verdicts.insert(socket.0, number, 0))
    }

    /// Ends the current or the next wait of [`NetworkProbe::poll`], from another thread.
    #[must_use]
    pub fn waker(&self) -> RingWaker {
        self.reader.waker()
    }

    /// Passes pending events to `f` and returns their number. If there are none, waits for them for at most `timeout`.
    ///
    /// The rate of deliveries is limited: events are collected for 10 ms, or until the backlog of the ring is large. The first one
    /// after a while without any is passed on at once. A [`RingWaker`] ends the wait.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn poll(&mut self, timeout: Duration, f: &mut dyn FnMut(Event<'_>)) -> Result<usize, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let is_woken = self.reader.wait(deadline)?;
            let events = self.drain(f)?;
            self.reader.note(events);
            if events > 0 || is_woken || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event<'_>)) -> Result<usize, Error> {
        let mut events = 0;
        let mut sound = self.drain_ring(&mut events, f);
        let overflowed = self.globals().overflowed;
        if overflowed != self.overflow_seen {
            self.overflow_seen = overflowed;
            // Events of a socket must precede its closing: drain the ring again before the overflow notices are passed on.
            let overflow = self.take_overflow_notices();
            sound &= self.drain_ring(&mut events, f);
            for stored in overflow {
                for notice in [stored.opened, stored.last] {
                    if let Some(event) = record::notice(&notice) {
                        events += 1;
                        f(event);
                    }
                }
            }
        }
        if sound { Ok(events) } else { Err(Error::Ring(io::Error::other("the length of a record exceeds the ring"))) }
    }

    fn drain_ring(&mut self, events: &mut usize, f: &mut dyn FnMut(Event<'_>)) -> bool {
        self.reader.ring.drain(&mut |bytes| {
            if let Some(event) = record::parse(bytes) {
                *events += 1;
                f(event);
            }
        })
    }

    /// Takes the notices that did not fit in the ring, oldest first.
    fn take_overflow_notices(&mut self) -> Vec<OverflowNotice> {
        let mut keys: Vec<u64> = self.overflow_notices.keys().filter_map(Result::ok).collect();
        keys.sort_unstable();
        let mut taken = Vec::new();
        for key in keys {
            match self.overflow_notices.get(&key, 0) {
                Ok(notice) if notice.last[0] != 0 => {
                    taken.push(notice);
                    // An error means that it has already been removed.
                    let _ = self.overflow_notices.remove(&key);
                }
                // Still being written: retry at the next drain.
                _ => self.overflow_seen = self.overflow_seen.wrapping_sub(1),
            }
        }
        taken
    }

    fn globals(&self) -> Globals {
        self.globals.get(&0, 0).unwrap_or_default()
    }

    /// Counts that belong to no process.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let Globals { lost_notices, refused_processes, .. } = self.globals();
        Counters { lost_notices, refused_processes }
    }

    /// Account of a process; `None` if it is not watched.
    #[must_use]
    pub fn account(&self, pid: u32) -> Option<KernelAccount> {
        let cpus = self.processes.get(&pid, 0).ok()?;
        Some(KernelAccount::sum(&cpus))
    }

    /// Ids of the watched processes, unordered.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.processes.keys().filter_map(Result::ok).collect()
    }
}

fn is(error: &io::Error, errno: rustix::io::Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn stored(table: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
    match result {
        Ok(()) => Ok(()),
        Err(MapError::SyscallError(error)) if is(&error.io_error, rustix::io::Errno::TOOBIG) => {
            Err(Error::TableFull { table })
        }
        Err(error) => Err(Error::from_loader(format!("write to the map of {table}"), &error, 0)),
    }
}

fn removed(table: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
    match result {
        Err(MapError::SyscallError(error)) if is(&error.io_error, rustix::io::Errno::NOENT) => Ok(()),
        Err(MapError::KeyNotFound) => Ok(()),
        other => stored(table, other),
    }
}
