//! The event loop: one thread, epoll, non-blocking sockets.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use serde_json::json;

use crate::behaviour::{Factory, Role};
use crate::connection::{Connection, EndReason, Progress};
use crate::log::Level;
use crate::report::Report;
use crate::socket;

/// A command to the node, by a line on standard input or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Open the connections (again).
    Connect,
    /// Release traffic.
    Traffic,
    /// [`Connect`](Self::Connect) if that is held, else [`Traffic`](Self::Traffic).
    Go,
    /// End every connection in order, then exit.
    Stop,
    /// Close every connection at once; go on listening.
    Close,
}

/// Addresses to listen on and connect to, and the condition to exit.
#[derive(Debug, Clone)]
pub struct Plan {
    /// P2P address; every node listens, whether it connects out or not.
    pub listen: Option<SocketAddr>,
    /// The peer to connect to.
    pub peer: Option<SocketAddr>,
    /// Number of connections to open to the peer.
    pub connections: usize,
    /// Connect only on command.
    pub hold_connect: bool,
    /// Finish handshakes, then wait for a command.
    pub hold_traffic: bool,
    /// Stop after this time of traffic.
    pub duration: Option<Duration>,
    /// Exit once this many connections have ended and none is open.
    pub exit_after: Option<usize>,
    /// How long a connection that is refused or not answered is retried.
    pub connect_timeout: Duration,
    /// close(2) runs in another thread, as in Octez.
    pub close_in_thread: bool,
    /// `SO_SNDBUF` of outgoing connections: a small one causes short writes.
    pub send_buffer: Option<usize>,
}

/// A refused connection that is tried again.
struct Retry {
    at: Instant,
    deadline: Instant,
    number: u64,
}

/// The result of a connection's turn.
enum Turn {
    /// It waits for the socket.
    Blocked,
    /// It waits for the socket or that moment.
    Until(Instant),
    /// It used its share of system calls; there is more to do.
    Again,
    /// It ended.
    Ended(EndReason),
}

const LISTENER: u64 = u64::MAX;
const COMMANDS: u64 = u64::MAX - 1;
/// System calls that a connection makes before the others have their turn.
const MAX_CALLS_PER_TURN: usize = 32;
const MAX_READ: usize = 1 << 20;
/// Larger than Octez's 20, with which thousands of half-open connections take long; the kernel caps it at somaxconn.
const BACKLOG: i32 = 4096;
/// Commands that wait for the loop.
const MAX_COMMANDS: usize = 16;
/// Descriptors that wait for the closing thread.
const MAX_CLOSING: usize = 1024;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The loop and its connections.
pub struct Reactor<'a> {
    plan: Plan,
    make: &'a mut Factory<'a>,
    report: Report,
    epoll: OwnedFd,
    wake: OwnedFd,
    commands: Receiver<Command>,
    listener: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    /// In order of [`Retry::at`].
    retries: VecDeque<Retry>,
    closer: Option<SyncSender<OwnedFd>>,
    next_number: u64,
    ended: usize,
    failed: usize,
    released: bool,
    stopping: bool,
    buffer: Vec<u8>,
}

/// Sends commands to the loop and wakes it.
pub struct CommandSender {
    commands: SyncSender<Command>,
    wake: OwnedFd,
}

impl CommandSender {
    /// Sends a command; without effect once the loop has ended.
    pub fn send(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl<'a> Reactor<'a> {
    /// Prepares the loop; [`run`](Self::run) starts it.
    ///
    /// # Errors
    /// If the kernel refuses a file descriptor.
    pub fn new(plan: Plan, report: Report, make: &'a mut Factory<'a>) -> Result<(Self, CommandSender)> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(COMMANDS), EventFlags::IN)?;
        let (commands, receiver) = sync_channel(MAX_COMMANDS);
        let sender = CommandSender { commands, wake: wake.try_clone()? };
        let closer = plan.close_in_thread.then(|| {
            let (sender, receiver) = sync_channel::<OwnedFd>(MAX_CLOSING);
            std::thread::spawn(move || receiver.into_iter().for_each(drop));
            sender
        });
        let released = !plan.hold_traffic;
        let reactor = Self {
            plan,
            make,
            report,
            epoll,
            wake,
            closer,
            released,
            commands: receiver,
            listener: None,
            connections: BTreeMap::new(),
            retries: VecDeque::new(),
            next_number: 0,
            ended: 0,
            failed: 0,
            stopping: false,
            buffer: vec![0; MAX_READ],
        };
        Ok((reactor, sender))
    }

    /// Runs to the end of the plan. Returns the number of connections that ended with an error.
    ///
    /// # Errors
    /// If the node cannot listen, or a connection to the peer cannot be started.
    pub fn run(mut self) -> Result<usize> {
        self.listen()?;
        let mut deadline = self.plan.duration.filter(|_| self.released).map(|d| Instant::now() + d);
        if self.plan.hold_connect {
            self.report.event(&json!({"event": "holding", "what": "connect"}));
        } else {
            self.open()?;
        }
        let mut runnable: Vec<u64> = Vec::new();
        let mut timers: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut events = Vec::with_capacity(1024);
        while !self.is_finished() {
            let now = Instant::now();
            let timeout = if runnable.is_empty() {
                // A reader of the transcript finds all of it while the loop waits.
                self.report.flush();
                let due = timers.values().copied().chain(self.retries.iter().map(|r| r.at)).chain(deadline).min();
                due.map(|due| due.saturating_duration_since(now))
            } else {
                Some(Duration::ZERO)
            };
            let timeout =
                timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => bail!("epoll: {error}"),
            }
            let mut ready = std::mem::take(&mut runnable);
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(&mut ready)?,
                    COMMANDS => {
                        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                    }
                    number => ready.push(number),
                }
            }
            if self.apply_commands()? {
                ready.extend(self.connections.keys());
                deadline = deadline.or(self.plan.duration.filter(|_| self.released).map(|d| Instant::now() + d));
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| d <= now) {
                deadline = None;
                self.stop();
                ready.extend(self.connections.keys());
            }
            while let Some(retry) = self.retries.pop_front_if(|retry| retry.at <= now) {
                self.connect(retry.deadline, retry.number)?;
            }
            ready.extend(timers.iter().filter(|t| *t.1 <= now).map(|t| *t.0));
            ready.sort_unstable();
            ready.dedup();
            for number in ready {
                timers.remove(&number);
                match self.turn(number) {
                    Some(Turn::Again) => runnable.push(number),
                    Some(Turn::Until(moment)) => {
                        timers.insert(number, moment);
                    }
                    Some(Turn::Ended(why)) => self.end(number, why)?,
                    Some(Turn::Blocked) | None => {}
                }
            }
        }
        self.report.event(&json!({"event": "done", "connections": self.ended, "failed": self.failed}));
        self.report.flush();
        Ok(self.failed)
    }

    fn is_finished(&self) -> bool {
        let all_ended = self.plan.exit_after.is_some_and(|n| self.ended >= n) || self.stopping;
        all_ended && self.connections.is_empty() && (self.stopping || self.retries.is_empty())
    }

    fn listen(&mut self) -> Result<()> {
        let Some(address) = self.plan.listen else { return Ok(()) };
        let (fd, local) = socket::listen(address, BACKLOG).with_context(|| format!("cannot listen on {address}"))?;
        epoll::add(&self.epoll, &fd, EventData::new_u64(LISTENER), EventFlags::IN)?;
        self.listener = Some(fd);
        self.report.log(|| Some((Level::Notice, format!("P2P layer listens on {local}"))));
        self.report.log(|| Some((Level::Warn, "too few connections (0)".to_owned())));
        self.report.event(&json!({
            "event": "listening", "address": local.to_string(), "port": local.port(), "pid": std::process::id(),
        }));
        Ok(())
    }

    /// Opens the planned connections to the peer.
    fn open(&mut self) -> Result<()> {
        if self.plan.peer.is_none() {
            return Ok(());
        }
        let deadline = Instant::now() + self.plan.connect_timeout;
        (0..self.plan.connections).try_for_each(|_| {
            let number = self.next_number();
            self.connect(deadline, number)
        })
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn connect(&mut self, deadline: Instant, number: u64) -> Result<()> {
        let Some(peer) = self.plan.peer else { return Ok(()) };
        match socket::connect(peer, self.plan.send_buffer) {
            Ok(fd) => self.add(number, fd, Role::Initiator, Some(deadline)),
            Err(error) => bail!("cannot connect to {peer}: {error}"),
        }
    }

    fn accept(&mut self, ready: &mut Vec<u64>) -> Result<()> {
        for _ in 0..MAX_CALLS_PER_TURN {
            let Some(listener) = &self.listener else { return Ok(()) };
            match socket::accept(listener) {
                Ok(Some(fd)) => {
                    let number = self.next_number();
                    self.add(number, fd, Role::Responder, None)?;
                    ready.push(number);
                }
                Ok(None) => return Ok(()),
                // The peer has closed already, or the process has too many open files: neither ends a node.
                Err(error) => {
                    self.report.event(&json!({"event": "accept failed", "error": error.to_string()}));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, number: u64, fd: OwnedFd, role: Role, connect_deadline: Option<Instant>) -> Result<()> {
        // Edge-triggered: a socket is polled only after `EAGAIN`, so no event is missed.
        epoll::add(
            &self.epoll,
            &fd,
            EventData::new_u64(number),
            EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
        )?;
        let mut behaviour = (self.make)(number, role);
        if self.stopping {
            behaviour.finish();
        }
        if connect_deadline.is_none() {
            self.report_connected(number, role, &fd);
        }
        self.connections.insert(number, Connection::new(fd, role, behaviour, connect_deadline));
        Ok(())
    }

    fn report_connected(&self, number: u64, role: Role, fd: &OwnedFd) {
        if let Ok((local, remote)) = socket::addresses(fd) {
            self.report.log(|| Some((Level::Info, format!("connection with {remote} is open"))));
            self.report.event(&json!({
                "event": "connected", "connection": number, "role": role.name(),
                "local": local.to_string(), "remote": remote.to_string(),
            }));
        }
    }

    /// Applies the commands that have arrived. Returns true if every connection needs a turn.
    fn apply_commands(&mut self) -> Result<bool> {
        let mut changed = false;
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(changed),
            };
            changed = true;
            match command {
                Command::Go if self.plan.hold_connect => {
                    self.plan.hold_connect = false;
                    self.open()?;
                }
                Command::Connect => {
                    self.plan.hold_connect = false;
                    self.open()?;
                }
                Command::Go | Command::Traffic => self.released = true,
                Command::Stop => self.stop(),
                Command::Close => {
                    for number in self.connections.keys().copied().collect::<Vec<_>>() {
                        self.end(number, None)?;
                    }
                }
            }
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.released = true;
        self.retries.clear();
        self.connections.values_mut().for_each(|c| c.behaviour.finish());
    }

    /// Lets a connection read and write until it blocks or has used its share.
    fn turn(&mut self, number: u64) -> Option<Turn> {
        let connection = self.connections.get_mut(&number)?;
        if connection.connect_deadline.is_some() {
            match socket::connect_result(&connection.fd) {
                Err(error) => return Some(Turn::Ended(Some(format!("connect: {error}")))),
                Ok(false) => return Some(Turn::Blocked),
                Ok(true) => connection.connect_deadline = None,
            }
            let (role, fd) = (connection.role, connection.fd.try_clone().ok()?);
            self.report_connected(number, role, &fd);
        }
        let connection = self.connections.get_mut(&number)?;
        connection.write_blocked = false;
        for _ in 0..MAX_CALLS_PER_TURN {
            let read = connection.read(&mut self.buffer);
            let wrote = connection.write(self.released);
            match (read, wrote) {
                (Progress::Ended(why), _) | (_, Progress::Ended(why)) => return Some(Turn::Ended(why)),
                (Progress::Moved, _) | (_, Progress::Moved) => {}
                (_, Progress::Until(moment)) => return Some(Turn::Until(moment)),
                (Progress::Idle | Progress::Until(_), Progress::Idle) => return Some(Turn::Blocked),
            }
        }
        Some(Turn::Again)
    }

    fn end(&mut self, number: u64, why: EndReason) -> Result<()> {
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        epoll::delete(&self.epoll, &connection.fd)?;
        let now = Instant::now();
        if let Some(deadline) = connection.connect_deadline.filter(|deadline| *deadline > now)
            && !self.stopping
        {
            self.retries.push_back(Retry { at: now + RETRY_INTERVAL, deadline, number });
            return Ok(());
        }
        let _ = rustix::net::shutdown(connection.fd.as_fd(), Shutdown::Both);
        self.ended += 1;
        self.failed += usize::from(why.is_some());
        self.report.log(|| {
            let open = self.connections.len();
            Some(match &why {
                Some(why) => (Level::Warn, format!("a connection failed, {open} are open\n{why}")),
                None => (Level::Info, format!("a connection was closed, {open} are open")),
            })
        });
        self.report.event(&json!({
            "event": "closed", "connection": number, "role": connection.role.name(), "error": why,
            "sent": connection.sent.json(), "received": connection.received.json(), "session": connection.behaviour.summary(),
        }));
        match &self.closer {
            Some(closer) => drop(closer.send(connection.fd)),
            None => drop(connection.fd),
        }
        Ok(())
    }
}
