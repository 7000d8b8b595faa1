//! The event loop: one thread, epoll, non-blocking sockets; every system call is tried first and waited for only after `EAGAIN`.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use serde_json::{Value, json};

use super::report::{Report, Tally};
use super::socket;

/// Which side of the TCP connection this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It connected.
    Initiator,
    /// It accepted.
    Responder,
}

impl Role {
    /// As events spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Responder => "responder",
        }
    }
}

/// What a connection wants to do next.
pub enum Next {
    /// One write(2) of these bytes, continued if it is short.
    Write(Vec<u8>),
    /// Nothing before that moment, unless bytes arrive.
    At(Instant),
    /// Nothing until bytes arrive, or traffic is released.
    Wait,
    /// Nothing more to say: shut down for writing, read to the end, close.
    Done,
    /// shutdown(2) of both directions and close(2), as Octez ends a connection.
    Close,
}

/// One connection's side of the conversation.
pub trait Behaviour {
    /// Asked whenever the last write is complete. `released` is false while traffic is held back.
    fn next(&mut self, now: Instant, released: bool) -> Next;
    /// How many bytes the next read(2) asks for; 0: it does not want to read now.
    fn read_size(&mut self) -> usize;
    /// Bytes that one read(2) returned.
    ///
    /// # Errors
    /// Why the connection must be dropped.
    fn received(&mut self, bytes: &[u8]) -> Result<(), String>;
    /// The peer will send no more. True: so will this side.
    ///
    /// # Errors
    /// If the end came too early.
    fn end_of_stream(&mut self) -> Result<bool, String> {
        Ok(true)
    }
    /// Asked to come to an end soon.
    fn finish(&mut self) {}
    /// More about this connection for its "closed" event.
    fn summary(&self) -> Value {
        Value::Null
    }
}

/// Makes the behaviour of a new connection.
pub type Maker<'a> = dyn FnMut(u64, Role) -> Box<dyn Behaviour> + 'a;

/// What the node is asked to do, by a line on standard input or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Open the connections (again).
    Connect,
    /// Let traffic flow.
    Traffic,
    /// Whichever of these two is still held.
    Go,
    /// End every connection in order, then exit.
    Stop,
    /// Close every connection at once; go on listening.
    Close,
}

/// How the node lives.
#[derive(Debug, Clone)]
pub struct Plan {
    /// P2P address; every node listens, whether it connects out or not.
    pub listen: Option<SocketAddr>,
    /// Whom to connect to.
    pub peer: Option<SocketAddr>,
    /// How many connections to open to the peer.
    pub connections: usize,
    /// Connect only when told.
    pub hold_connect: bool,
    /// Finish handshakes, then wait to be told.
    pub hold_traffic: bool,
    /// Stop by itself after this long.
    pub duration: Option<Duration>,
    /// Exit once this many connections are over and none is open.
    pub exit_after: Option<usize>,
    /// How long a refused connection is tried again.
    pub patience: Duration,
    /// close(2) runs in another thread, as in Octez.
    pub close_elsewhere: bool,
    /// `SO_SNDBUF` of outgoing connections: small ones make short writes.
    pub send_buffer: Option<usize>,
}

struct Connection {
    fd: OwnedFd,
    role: Role,
    behaviour: Box<dyn Behaviour>,
    // While it connects: when a refusal is final.
    connecting: Option<Instant>,
    out: Vec<u8>,
    written: usize,
    done_writing: bool,
    blocked: bool,
    sent: Tally,
    received: Tally,
}

/// Why a connection is over; `None`: as it should.
type Over = Option<String>;

/// What a turn of a connection came to.
enum Turn {
    /// It waits for the socket.
    Blocked,
    /// It waits for that moment as well.
    Until(Instant),
    /// It used its share; there is more to do.
    Again,
    Over(Over),
}

const LISTENER: u64 = u64::MAX;
const COMMANDS: u64 = u64::MAX - 1;
/// System calls a connection may make before others have their turn.
const SHARE: usize = 32;
const LARGEST_READ: usize = 1 << 20;

/// The loop and its connections.
pub struct Reactor<'a> {
    plan: Plan,
    make: &'a mut Maker<'a>,
    report: Report,
    epoll: OwnedFd,
    wake: OwnedFd,
    commands: Receiver<Command>,
    listener: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    // Refused ones: when to try again, when to give up, and their number.
    retries: VecDeque<(Instant, Instant, u64)>,
    closer: Option<Sender<OwnedFd>>,
    next_number: u64,
    over: usize,
    failed: usize,
    released: bool,
    stopping: bool,
    buffer: Vec<u8>,
}

/// The sending end for commands: gives one and wakes the loop.
pub struct Commander {
    commands: Sender<Command>,
    wake: OwnedFd,
}

impl Commander {
    /// Gives a command. A loop that has ended does not mind.
    pub fn give(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl<'a> Reactor<'a> {
    /// Prepares the loop; [`run`](Self::run) starts it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(plan: Plan, report: Report, make: &'a mut Maker<'a>) -> Result<(Self, Commander)> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(COMMANDS), EventFlags::IN)?;
        let (commands, receiver) = channel();
        let commander = Commander { commands, wake: wake.try_clone()? };
        let closer = plan.close_elsewhere.then(|| {
            let (sender, receiver) = channel::<OwnedFd>();
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
            over: 0,
            failed: 0,
            stopping: false,
            buffer: vec![0; LARGEST_READ],
        };
        Ok((reactor, commander))
    }

    /// Runs to the end of the plan. The number of connections that did not end as they should.
    ///
    /// # Errors
    /// If the node cannot listen, or a peer that must be there is not.
    pub fn run(mut self) -> Result<usize> {
        if let Some(address) = self.plan.listen {
            // A node's backlog of 20 would make a flood of half-open connections slow; the kernel caps this at somaxconn.
            let (fd, local) = socket::listen(address, 4096).with_context(|| format!("cannot listen on {address}"))?;
            epoll::add(&self.epoll, &fd, EventData::new_u64(LISTENER), EventFlags::IN)?;
            self.listener = Some(fd);
            self.report.event(&json!({"event": "listening", "address": local.to_string(), "port": local.port(), "pid": std::process::id()}));
        }
        let mut deadline = self.plan.duration.filter(|_| self.released).map(|d| Instant::now() + d);
        if self.plan.hold_connect {
            self.report.event(&json!({"event": "holding", "what": "connect"}));
        } else {
            self.open()?;
        }
        let mut runnable: Vec<u64> = Vec::new();
        let mut timers: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut events = Vec::with_capacity(1024);
        loop {
            let ended = self.plan.exit_after.is_some_and(|n| self.over >= n) || self.stopping;
            if ended && self.connections.is_empty() && (self.stopping || self.retries.is_empty()) {
                break;
            }
            let now = Instant::now();
            let timeout = if runnable.is_empty() {
                // Who reads the transcript meanwhile finds all of it.
                self.report.flush();
                let due = timers.values().copied().chain(self.retries.iter().map(|r| r.0)).chain(deadline).min();
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
            if self.obey()? {
                ready.extend(self.connections.keys());
                deadline = deadline.or(self.plan.duration.filter(|_| self.released).map(|d| Instant::now() + d));
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| d <= now) {
                deadline = None;
                self.stop();
                ready.extend(self.connections.keys());
            }
            while self.retries.front().is_some_and(|r| r.0 <= now) {
                if let Some((_, give_up, number)) = self.retries.pop_front() {
                    self.connect(give_up, number)?;
                }
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
                    Some(Turn::Over(why)) => self.end(number, why)?,
                    Some(Turn::Blocked) | None => {}
                }
            }
        }
        self.report.event(&json!({"event": "done", "connections": self.over, "failed": self.failed}));
        self.report.flush();
        Ok(self.failed)
    }

    fn open(&mut self) -> Result<()> {
        if self.plan.peer.is_none() {
            return Ok(());
        }
        let give_up = Instant::now() + self.plan.patience;
        (0..self.plan.connections).try_for_each(|_| {
            let number = self.number();
            self.connect(give_up, number)
        })
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn connect(&mut self, give_up: Instant, number: u64) -> Result<()> {
        let Some(peer) = self.plan.peer else { return Ok(()) };
        match socket::connect(peer, self.plan.send_buffer) {
            Ok(fd) => self.add(number, fd, Role::Initiator, Some(give_up)),
            Err(error) => bail!("cannot connect to {peer}: {error}"),
        }
    }

    fn accept(&mut self, ready: &mut Vec<u64>) -> Result<()> {
        for _ in 0..SHARE {
            let Some(listener) = &self.listener else { return Ok(()) };
            match socket::accept(listener) {
                Ok(Some(fd)) => {
                    let number = self.number();
                    self.add(number, fd, Role::Responder, None)?;
                    ready.push(number);
                }
                Ok(None) => return Ok(()),
                // The peer was quicker, or there are too many: neither ends a node.
                Err(error) => {
                    self.report.event(&json!({"event": "accept failed", "error": error.to_string()}));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, number: u64, fd: OwnedFd, role: Role, connecting: Option<Instant>) -> Result<()> {
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
        if connecting.is_none() {
            self.tell_connected(number, role, &fd);
        }
        let connection = Connection {
            fd,
            role,
            behaviour,
            connecting,
            out: Vec::new(),
            written: 0,
            done_writing: false,
            blocked: false,
            sent: Tally::default(),
            received: Tally::default(),
        };
        self.connections.insert(number, connection);
        Ok(())
    }

    fn tell_connected(&self, number: u64, role: Role, fd: &OwnedFd) {
        if let Ok((local, remote)) = socket::ends(fd) {
            self.report.event(&json!({
                "event": "connected", "connection": number, "role": role.name(),
                "local": local.to_string(), "remote": remote.to_string(),
            }));
        }
    }

    /// Does what was commanded; true if connections must look again.
    fn obey(&mut self) -> Result<bool> {
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

    fn turn(&mut self, number: u64) -> Option<Turn> {
        let connection = self.connections.get_mut(&number)?;
        if connection.connecting.is_some() {
            match socket::outcome(&connection.fd) {
                Err(error) => return Some(Turn::Over(Some(format!("connect: {error}")))),
                // Not writable yet: the peer's name is not known.
                Ok(()) if socket::ends(&connection.fd).is_err() => return Some(Turn::Blocked),
                Ok(()) => connection.connecting = None,
            }
            let (role, fd) = (connection.role, connection.fd.try_clone().ok()?);
            self.tell_connected(number, role, &fd);
        }
        let connection = self.connections.get_mut(&number)?;
        connection.blocked = false;
        for _ in 0..SHARE {
            let read = connection.read(&mut self.buffer);
            let wrote = connection.write(self.released);
            match (read, wrote) {
                (Step::Over(why), _) | (_, Step::Over(why)) => return Some(Turn::Over(why)),
                (Step::Moved, _) | (_, Step::Moved) => {}
                (_, Step::Until(moment)) => return Some(Turn::Until(moment)),
                (Step::Idle | Step::Until(_), Step::Idle) => return Some(Turn::Blocked),
            }
        }
        Some(Turn::Again)
    }

    fn end(&mut self, number: u64, why: Over) -> Result<()> {
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        epoll::delete(&self.epoll, &connection.fd)?;
        let now = Instant::now();
        if let Some(give_up) = connection.connecting.filter(|end| *end > now)
            && !self.stopping
        {
            self.retries.push_back((now + Duration::from_millis(20), give_up, number));
            return Ok(());
        }
        let _ = rustix::net::shutdown(connection.fd.as_fd(), Shutdown::Both);
        self.over += 1;
        self.failed += usize::from(why.is_some());
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

/// What one attempt to read or write came to.
enum Step {
    Moved,
    Idle,
    Until(Instant),
    Over(Over),
}

impl Connection {
    fn read(&mut self, buffer: &mut [u8]) -> Step {
        let size = self.behaviour.read_size().min(buffer.len());
        if size == 0 {
            return Step::Idle;
        }
        let Some(space) = buffer.get_mut(..size) else { return Step::Idle };
        match rustix::io::read(&self.fd, &mut *space) {
            Ok(0) => match self.behaviour.end_of_stream() {
                Ok(true) => Step::Over(None),
                Ok(false) if self.done_writing => Step::Over(None),
                Ok(false) => Step::Idle,
                Err(why) => Step::Over(Some(why)),
            },
            Ok(length) => {
                let bytes = space.get(..length).unwrap_or_default();
                self.received.add(bytes);
                match self.behaviour.received(bytes) {
                    Ok(()) => Step::Moved,
                    Err(why) => Step::Over(Some(why)),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.received.again += 1;
                Step::Idle
            }
            Err(error) => Step::Over(Some(format!("read: {error}"))),
        }
    }

    fn write(&mut self, released: bool) -> Step {
        if self.done_writing || self.blocked {
            return Step::Idle;
        }
        if self.written == self.out.len() {
            match self.behaviour.next(Instant::now(), released) {
                Next::Write(bytes) => {
                    self.out = bytes;
                    self.written = 0;
                }
                Next::Wait => return Step::Idle,
                Next::At(moment) => return Step::Until(moment),
                Next::Close => return Step::Over(None),
                Next::Done => {
                    self.done_writing = true;
                    return match rustix::net::shutdown(&self.fd, Shutdown::Write) {
                        Ok(()) | Err(Errno::NOTCONN) => Step::Moved,
                        Err(error) => Step::Over(Some(format!("shutdown: {error}"))),
                    };
                }
            }
        }
        let rest = self.out.get(self.written..).unwrap_or_default();
        match rustix::io::write(&self.fd, rest) {
            Ok(length) => {
                self.sent.add(rest.get(..length).unwrap_or(rest));
                self.sent.short += u64::from(length < rest.len());
                self.written += length;
                Step::Moved
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.sent.again += 1;
                self.blocked = true;
                Step::Idle
            }
            Err(error) => Step::Over(Some(format!("write: {error}"))),
        }
    }
}
