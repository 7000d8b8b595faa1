//! The network probe: loads and attaches the programs, keeps the tables of what is watched, reads the ring.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuHashMap, PerCpuValues};
use aya::programs::{BtfTracePoint, Program};
use aya::{Btf, Ebpf, EbpfLoader};

use super::event::{Event, SocketId, Verdict};
use super::maps::{Globals, KernelAccount, ListenKey, Listener, Orphan, ProgramKey, RawAccount, SocketState};
use super::record;
use crate::check;
use crate::error::Error;
use crate::load::in_spite_of_signals;
use crate::ring::Ring;

/// The object that build.rs compiled, aligned as the ELF reader wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_NET_BPF"));

/// How long the kernel may keep a record to itself: it wakes the reader only for much.
const PACE: Duration = Duration::from_millis(10);
/// The same after a while in which nothing happened: looking is most of what an idle reader costs.
const IDLE_PACE: Duration = Duration::from_millis(40);

const BPF_NOEXIST: u64 = 1;

/// Where payloads are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Where the kernel says that a socket moved bytes (`sock:sock_send_length`, `sock:sock_recv_length`). Linux 6.3.
    /// Nothing runs in system calls that have nothing to do with sockets.
    Sock,
    /// Where system calls return (`raw_syscalls:sys_exit`). Linux 5.17, or an older one with `bpf_loop` backported. Bytes
    /// that io_uring, sendfile and splice move show as jumps of the offset.
    Syscall,
}

impl fmt::Display for CaptureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sock => "sock",
            Self::Syscall => "syscall",
        })
    }
}

/// Which executions of programs are told as [`Event::Exec`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecEvents {
    /// None.
    #[default]
    None,
    /// Those that make a process a watched one ([`NetworkProbe::watch_program`]), and those of watched ones.
    Watched,
    /// Every one on the host.
    All,
}

/// How to capture.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// `None`: the best that the kernel has.
    pub mode: Option<CaptureMode>,
    /// Size of the ring; a power of two, at least a page. What arrives while it is full is lost, and counted.
    pub ring_bytes: u32,
    /// Pending bytes at which the kernel wakes the reader. Less makes watched processes slower and loses more.
    pub wake_bytes: u32,
    /// Which executions are told. With [`ExecEvents::None`], [`NetworkProbe::watch_program`] has no effect.
    pub exec_events: ExecEvents,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self { mode: None, ring_bytes: 32 << 20, wake_bytes: 2 << 20, exec_events: ExecEvents::None }
    }
}

/// Records what watched processes send and receive. Everything is detached and freed on drop.
pub struct NetworkProbe {
    mode: CaptureMode,
    ring: Ring,
    wake_bytes: u64,
    drained: Instant,
    pace: Duration,
    processes: PerCpuHashMap<MapData, u32, RawAccount>,
    ports: HashMap<MapData, ListenKey, u8>,
    programs: HashMap<MapData, ProgramKey, u8>,
    sockets: HashMap<MapData, u64, SocketState>,
    listeners: HashMap<MapData, ListenKey, Listener>,
    filters: HashMap<MapData, u32, u16>,
    verdicts: HashMap<MapData, u64, u8>,
    orphans: HashMap<MapData, u64, Orphan>,
    globals: Array<MapData, Globals>,
    orphans_seen: u64,
    /// Holds the programs and their attachments.
    bpf: Ebpf,
}

impl fmt::Debug for NetworkProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkProbe").field("mode", &self.mode).field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl NetworkProbe {
    /// Loads and attaches the programs (some 100 ms). Nothing is watched yet.
    ///
    /// # Errors
    /// One sentence each: no BTF, a kernel without `bpf_loop`, missing capabilities (by name), missing memory.
    pub fn load(options: &NetworkOptions) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        if !options.ring_bytes.is_power_of_two() || (options.ring_bytes as usize) < page {
            return Err(Error::RingSize(options.ring_bytes));
        }
        let release = check::kernel_release();
        let raw = std::fs::read(check::BTF_PATH)
            .map_err(|error| Error::NoBtf { path: check::BTF_PATH, cause: error.to_string() })?;
        let names = check::names_of(&raw);
        check::require_helpers(&release, &names)?;
        let mode = choose_mode(options.mode, &names, &release)?;
        let btf =
            Btf::from_sys_fs().map_err(|error| Error::NoBtf { path: check::BTF_PATH, cause: error.to_string() })?;

        let fail = |action: &str, error: &(dyn std::error::Error + 'static)| {
            Error::from_loader(action.to_owned(), error, options.ring_bytes)
        };
        let mut bpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("wake_bytes", &options.wake_bytes, true)
            .override_global("every_exec", &u32::from(options.exec_events == ExecEvents::All), true)
            .map_max_entries("ring", options.ring_bytes)
            .load(OBJECT)
            .map_err(|error| fail("create the tables of the network probe", &error))?;
        // Before the tables are taken: programs refer to them by descriptor when they are loaded.
        for (program, tracepoint) in programs(mode, options.exec_events) {
            load(&mut bpf, program, tracepoint, &btf).map_err(|error| fail(program, &*error))?;
        }
        let ring = match bpf.take_map("ring") {
            Some(Map::RingBuf(map)) => Ring::new(map.fd().as_fd(), options.ring_bytes).map_err(Error::Ring)?,
            _ => return Err(missing_map("ring")),
        };
        let mut probe = Self {
            mode,
            ring,
            wake_bytes: u64::from(options.wake_bytes),
            drained: Instant::now(),
            pace: PACE,
            processes: take(&mut bpf, "processes")?,
            ports: take(&mut bpf, "ports")?,
            programs: take(&mut bpf, "programs")?,
            sockets: take(&mut bpf, "sockets")?,
            listeners: take(&mut bpf, "listeners")?,
            filters: take(&mut bpf, "filters")?,
            verdicts: take(&mut bpf, "verdicts")?,
            orphans: take(&mut bpf, "orphans")?,
            globals: take(&mut bpf, ".bss")?,
            orphans_seen: 0,
            bpf,
        };
        for (program, _) in programs(mode, options.exec_events) {
            let attached = tracepoint_program(&mut probe.bpf, program).and_then(|found| Ok(found.attach()?));
            attached.map_err(|error| fail(program, &*error))?;
        }
        Ok(probe)
    }

    /// Where payloads are taken.
    #[must_use]
    pub fn mode(&self) -> CaptureMode {
        self.mode
    }

    /// From now on, a process that begins to listen at `port` becomes a watched one in the kernel, at once, and
    /// [`Event::Listening`] follows. Connections that it accepts at other ports are not captured, unless
    /// [`set_port_filter`](Self::set_port_filter) says otherwise. `netns` is the inode of a network namespace, `None` any.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn watch_port(&mut self, netns: Option<u32>, port: u16) -> Result<(), Error> {
        stored("ports", self.ports.insert(ListenKey::new(netns, port), 1, 0))
    }

    /// Ends [`watch_port`](Self::watch_port); processes that are watched stay so.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn unwatch_port(&mut self, netns: Option<u32>, port: u16) -> Result<(), Error> {
        removed("ports", self.ports.remove(&ListenKey::new(netns, port)))
    }

    /// From now on, a process that executes a program of this name becomes a watched one in the kernel, before the
    /// program's first instruction, and [`Event::Exec`] follows. The name is that of the executed file, or the first
    /// argument without its folder; 15 bytes of it count, so that the caller looks at the process once more.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn watch_program(&mut self, name: &str) -> Result<(), Error> {
        stored("programs", self.programs.insert(ProgramKey::new(name), 1, 0))
    }

    /// Ends [`watch_program`](Self::watch_program); processes that are watched stay so.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn unwatch_program(&mut self, name: &str) -> Result<(), Error> {
        removed("programs", self.programs.remove(&ProgramKey::new(name)))
    }

    /// Watches a process (thread group): its connections from now on, and those that it has, from their next read or
    /// write on. Watching a watched one changes nothing.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn add_process(&mut self, pid: u32) -> Result<(), Error> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| Error::Ring(error))?;
        let zero = PerCpuValues::try_from(vec![RawAccount::default(); cpus]).map_err(Error::Ring)?;
        match self.processes.insert(pid, zero, BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if is(&error.io_error, rustix::io::Errno::EXIST) => Ok(()),
            other => stored("processes", other),
        }
    }

    /// Watches a process no more. Its account is gone; connections that are announced still get their [`Event::Closed`].
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn remove_process(&mut self, pid: u32) -> Result<(), Error> {
        removed("processes", self.processes.remove(&pid))?;
        removed("filters", self.filters.remove(&pid))
    }

    /// Watches a process no more and forgets its connections, without an [`Event::Closed`]: if it is watched again,
    /// those that go on are opened again, from where they are then. Its listening sockets stay known.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn release_process(&mut self, pid: u32) -> Result<(), Error> {
        // The account first: without it nothing is written to the states any more.
        self.remove_process(pid)?;
        let is_its = |key: &u64| self.sockets.get(key, 0).is_ok_and(|state| state.pid == pid);
        let keys: Vec<u64> = self.sockets.keys().filter_map(Result::ok).filter(is_its).collect();
        keys.iter().try_for_each(|key| removed("sockets", self.sockets.remove(key)))
    }

    /// Tells of a socket of a watched process that already listens: connections accepted there belong to the process, and
    /// it is their responder.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn add_listener(&mut self, netns: u32, port: u16, pid: u32) -> Result<(), Error> {
        stored("listeners", self.listeners.insert(ListenKey::new(Some(netns), port), Listener { pid, count: 1 }, 0))
    }

    /// Ends [`add_listener`](Self::add_listener). The kernel does so itself when the socket closes.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn remove_listener(&mut self, netns: u32, port: u16) -> Result<(), Error> {
        removed("listeners", self.listeners.remove(&ListenKey::new(Some(netns), port)))
    }

    /// Restricts a process to connections that it accepts at `port` (and at watched ports) or that it opens itself; those
    /// accepted elsewhere are left alone without an [`Event::Opened`]. Holds for connections that begin later.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn set_port_filter(&mut self, pid: u32, port: Option<u16>) -> Result<(), Error> {
        match port {
            Some(port) => stored("filters", self.filters.insert(pid, port, 0)),
            None => removed("filters", self.filters.remove(&pid)),
        }
    }

    /// Says what is to become of a connection; to be said once. The kernel takes note at its next read or write.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn decide(&mut self, socket: SocketId, verdict: Verdict) -> Result<(), Error> {
        let number = match verdict {
            Verdict::Keep => 1,
            Verdict::LeaveAlone => 2,
        };
        stored("verdicts", self.verdicts.insert(socket.0, number, 0))
    }

    /// Gives `f` what has happened, and returns how many events that was. If nothing has, waits for at most `timeout`.
    ///
    /// Calls in a row are paced: the kernel collects for 10 ms (up to 40 ms while nothing happens), or until much is
    /// pending, before anything is delivered.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn poll(&mut self, timeout: Duration, f: &mut dyn FnMut(Event<'_>)) -> Result<usize, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let pace = self.pace.saturating_sub(self.drained.elapsed());
            let wait = pace.min(deadline.saturating_duration_since(Instant::now()));
            if !wait.is_zero() && self.ring.backlog() < self.wake_bytes {
                self.ring.wait(wait).map_err(Error::Ring)?;
            }
            let events = self.drain(f)?;
            self.drained = Instant::now();
            self.pace = if events > 0 { PACE } else { (self.pace + PACE / 4).min(IDLE_PACE) };
            if events > 0 || self.drained >= deadline {
                return Ok(events);
            }
        }
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event<'_>)) -> Result<usize, Error> {
        let mut events = 0;
        let mut sound = self.drain_ring(&mut events, f);
        let orphaned = self.globals().orphaned;
        if orphaned != self.orphans_seen {
            self.orphans_seen = orphaned;
            // What a socket's end is about must be delivered before it: the ring once more, between reading and telling.
            let orphans = self.take_orphans();
            sound &= self.drain_ring(&mut events, f);
            for orphan in orphans {
                for notice in [orphan.opened, orphan.last] {
                    if let Some(event) = record::notice(&notice) {
                        events += 1;
                        f(event);
                    }
                }
            }
        }
        if sound { Ok(events) } else { Err(Error::Ring(io::Error::other("a record's length is beyond the ring"))) }
    }

    fn drain_ring(&mut self, events: &mut usize, f: &mut dyn FnMut(Event<'_>)) -> bool {
        self.ring.drain(&mut |bytes| {
            if let Some(event) = record::parse(bytes) {
                *events += 1;
                f(event);
            }
        })
    }

    /// Notices that did not fit in the ring, oldest first.
    fn take_orphans(&mut self) -> Vec<Orphan> {
        let mut keys: Vec<u64> = self.orphans.keys().filter_map(Result::ok).collect();
        keys.sort_unstable();
        let mut taken = Vec::new();
        for key in keys {
            match self.orphans.get(&key, 0) {
                Ok(orphan) if orphan.last[0] != 0 => {
                    taken.push(orphan);
                    // An error means that it is gone already, which is what was wanted.
                    let _ = self.orphans.remove(&key);
                }
                // Still being written: next time.
                _ => self.orphans_seen = self.orphans_seen.wrapping_sub(1),
            }
        }
        taken
    }

    fn globals(&self) -> Globals {
        self.globals.get(&0, 0).unwrap_or_default()
    }

    /// Openings, endings and other notices that were lost for good: neither the ring nor the table for that case had room.
    #[must_use]
    pub fn lost_notices(&self) -> u64 {
        self.globals().lost
    }

    /// Running totals of a watched process; `None` if it is not one.
    #[must_use]
    pub fn account(&self, pid: u32) -> Option<KernelAccount> {
        let cpus = self.processes.get(&pid, 0).ok()?;
        Some(KernelAccount::sum(&cpus))
    }

    /// The processes that are watched, in no order.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.processes.keys().filter_map(Result::ok).collect()
    }
}

fn tracepoint_program<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, Box<dyn std::error::Error>> {
    match bpf.program_mut(name) {
        Some(Program::BtfTracePoint(found)) => Ok(found),
        _ => Err(format!("no program {name} in the object").into()),
    }
}

fn load(bpf: &mut Ebpf, name: &str, tracepoint: &str, btf: &Btf) -> Result<(), Box<dyn std::error::Error>> {
    let program = tracepoint_program(bpf, name)?;
    Ok(in_spite_of_signals(|| program.load(tracepoint, btf))?)
}

fn choose_mode(forced: Option<CaptureMode>, names: &HashSet<&str>, release: &str) -> Result<CaptureMode, Error> {
    if forced == Some(CaptureMode::Syscall) {
        return Ok(CaptureMode::Syscall);
    }
    match check::SOCK_TRACEPOINTS.into_iter().find(|tracepoint| !check::has_tracepoint(names, tracepoint)) {
        None => Ok(CaptureMode::Sock),
        Some(tracepoint) if forced.is_some() => {
            Err(Error::NoSockTracepoints { release: release.to_owned(), tracepoint })
        }
        Some(_) => Ok(CaptureMode::Syscall),
    }
}

/// Programs of the object and their tracepoints.
fn programs(mode: CaptureMode, exec: ExecEvents) -> Vec<(&'static str, &'static str)> {
    let mut programs = match mode {
        CaptureMode::Sock => vec![("on_send", "sock_send_length"), ("on_receive", "sock_recv_length")],
        CaptureMode::Syscall => {
            vec![("on_exit", "sys_exit"), ("on_fork", "sched_process_fork"), ("on_process_exit", "sched_process_exit")]
        }
    };
    for (tracepoint, program, stand_in) in
        [("inet_sock_set_state", "on_state", "stand_in_state"), ("tcp_destroy_sock", "on_destroy", "stand_in_destroy")]
    {
        programs.extend([(program, tracepoint), (stand_in, tracepoint)]);
    }
    if exec != ExecEvents::None {
        programs.push(("on_exec", "sched_process_exec"));
    }
    programs
}

fn missing_map(name: &str) -> Error {
    Error::Load { action: format!("find the table {name}"), cause: "it is not in the object".to_owned() }
}

fn take<T: TryFrom<Map, Error = MapError>>(bpf: &mut Ebpf, name: &str) -> Result<T, Error> {
    let map = bpf.take_map(name).ok_or_else(|| missing_map(name))?;
    T::try_from(map).map_err(|error| Error::Load { action: format!("use the table {name}"), cause: error.to_string() })
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
        Err(error) => Err(Error::from_loader(format!("write to the table of {table}"), &error, 0)),
    }
}

fn removed(table: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
    match result {
        Err(MapError::SyscallError(error)) if is(&error.io_error, rustix::io::Errno::NOENT) => Ok(()),
        Err(MapError::KeyNotFound) => Ok(()),
        other => stored(table, other),
    }
}
