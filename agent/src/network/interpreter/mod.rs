//! From the probe's events to records: one conversation per socket, bounded in number and bytes.
//!
//! ```text
//!   Event ──▶ Session (Conversation) ──▶ outputs ──▶ Record ──▶ stream of the node
//!                    │
//!                    └─▶ Verdict: keep the socket, or leave it alone in the kernel
//! ```
//!
//! No I/O but through the traits [`RecordSink`] and [`Keys`], so that tests feed it events without a kernel.
//!
//! A connection is recorded when it is known to speak the node's protocol, or when it was accepted on the node's P2P
//! port, whatever it carries. Other sockets of the process (RPC, DNS) leave no record, only counted bytes.

mod bounds;
mod identities;
mod observed;
pub(crate) mod records;
mod session;
mod targets;
#[cfg(test)]
pub(super) mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use chainscope_ebpf::network::{Closed, ClosedBy, Data, Event, Opened, SocketId, Verdict};
use chainscope_proto::v1::{Journal, Record};
use chainscope_tezos::{Identity, Keyring, MemoryBudget, Output};
use identities::EndedSession;
use observed::{ConnectionKeys, Observed};
use session::{Context, Session};

use crate::{
    clock::Clock,
    config::{Store, TargetLimits},
    network::account::{GIVEN_UP, UNKNOWN_SOCKET},
    network::journal::{self, Waiting},
    pillar::RecordSink,
    targets::identity::{IdentityAnswer, IdentityEvent, ProcessKeys, Source},
};

/// Identities of one process.
pub(crate) trait Keys: Keyring {
    /// What happened since the last call.
    fn take_events(&mut self) -> Vec<IdentityEvent>;
    /// Begins to read whether there is an identity now.
    fn reload(&mut self) {}
    /// Whether the answer of a read is awaited.
    fn is_reading(&self) -> bool {
        false
    }
    /// Takes the answer of a read; none if sessions have to wait for another one. The error is for sessions whose identity
    /// is not known now.
    fn take_answer(&mut self, _answer: IdentityAnswer) -> Option<Result<(), String>> {
        None
    }
    /// Gives up the wait for a read that takes too long; returns the reason.
    fn expire(&mut self, _now: Instant) -> Option<String> {
        None
    }
    /// The identity with this public key, if it is known.
    fn known(&self, _public_key: &[u8; 32]) -> Option<Arc<Identity>> {
        None
    }
    /// Changes the source of identities.
    fn set_source(&mut self, _source: Source) {}
    /// The peer id of the identity in use, or why there is none.
    fn state(&self) -> Result<&str, &str> {
        Err("")
    }
}

impl Keys for ProcessKeys {
    fn take_events(&mut self) -> Vec<IdentityEvent> {
        Self::take_events(self)
    }

    fn reload(&mut self) {
        Self::reload(self);
    }

    fn is_reading(&self) -> bool {
        Self::is_reading(self)
    }

    fn take_answer(&mut self, answer: IdentityAnswer) -> Option<Result<(), String>> {
        Self::take_answer(self, answer)
    }

    fn expire(&mut self, now: Instant) -> Option<String> {
        Self::expire(self, now)
    }

    fn known(&self, public_key: &[u8; 32]) -> Option<Arc<Identity>> {
        Self::known(self, public_key)
    }

    fn set_source(&mut self, source: Source) {
        Self::set_source(self, source);
    }

    fn state(&self) -> Result<&str, &str> {
        Self::state(self).as_deref().map_err(String::as_str)
    }
}

/// A process under observation.
pub(crate) struct Target {
    pub(crate) node: Arc<str>,
    /// The process as records show it.
    pub(crate) label: Arc<str>,
    pub(crate) pid: u32,
    pub(crate) p2p_port: Option<u16>,
    pub(crate) store: Store,
    pub(crate) keys: Box<dyn Keys + Send>,
}

/// The interpreter of all targets.
pub(crate) struct Interpreter<S> {
    sink: S,
    pub(crate) clock: Clock,
    limits: TargetLimits,
    /// Memory of the sessions of all targets.
    memory: MemoryBudget,
    targets: BTreeMap<u32, Observed>,
    sessions: HashMap<SocketId, Session>,
    /// Sessions whose connection ended while they wait for their identity.
    ended: Vec<EndedSession>,
    keys: BTreeMap<Arc<str>, ConnectionKeys>,
    waiting: Waiting,
    /// Bytes of unknown sockets: their opening has not arrived yet because the ring was full.
    unknown_sockets: HashMap<SocketId, u64>,
    verdicts: Vec<(SocketId, Verdict)>,
    /// Outputs of the conversation of one event: empty between events, kept for its allocation.
    outputs: Vec<Output>,
    /// The handshake of a session ended since the last [`Self::take_new_session`].
    has_new_session: bool,
}

/// Most unknown sockets that are counted one by one.
const MAX_UNKNOWN_SOCKETS: usize = 4096;

/// Capacity for outputs that is kept between events.
const MAX_KEPT_OUTPUTS: usize = 64;

impl<S: RecordSink> Interpreter<S> {
    pub(crate) fn new(sink: S, clock: Clock, limits: TargetLimits, waiting: Waiting) -> Self {
        Self {
            sink,
            clock,
            limits,
            memory: MemoryBudget::new(limits.all_session_bytes),
            targets: BTreeMap::new(),
            sessions: HashMap::new(),
            ended: Vec::new(),
            keys: BTreeMap::new(),
            waiting,
            unknown_sockets: HashMap::new(),
            verdicts: Vec::new(),
            outputs: Vec::new(),
            has_new_session: false,
        }
    }

    pub(crate) fn is_target(&self, pid: u32) -> bool {
        self.targets.contains_key(&pid)
    }

    /// Verdicts for the kernel since the last call.
    pub(crate) fn take_verdicts(&mut self) -> Vec<(SocketId, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    /// Whether a session began since the last call that the journal does not have yet.
    pub(crate) fn take_new_session(&mut self) -> bool {
        std::mem::take(&mut self.has_new_session)
    }

    /// Takes an event about a socket; the others are not the interpreter's.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Opened(opened) => self.opened(opened),
            Event::Inode { socket, inode } => {
                if let Some(session) = self.sessions.get_mut(socket) {
                    session.set_inode(*inode);
                }
            }
            Event::Data(data) => self.data(data),
            Event::Closed(closed) => self.closed(closed),
            _ => {}
        }
    }

    fn opened(&mut self, opened: &Opened) {
        let Some(observed) = self.targets.get_mut(&opened.pid) else {
            self.unknown_sockets.remove(&opened.socket);
            self.verdicts.push((opened.socket, Verdict::LeaveAlone));
            return;
        };
        if self.sessions.contains_key(&opened.socket) {
            return;
        }
        if let Some(bytes) = self.unknown_sockets.remove(&opened.socket) {
            observed.totals.bytes_taken += bytes;
            *observed.totals.bytes_dropped.entry(UNKNOWN_SOCKET).or_default() += bytes;
        }
        let time = self.clock.real(opened.time_ns);
        let node = Arc::clone(&observed.target.node);
        let is_late = opened.sent_offset > 0 || opened.received_offset > 0;
        let resumed = is_late.then(|| self.waiting.take(&node, opened)).flatten();
        let mut session = match resumed.and_then(|saved| Session::resumed(opened, &saved, &observed.memory)) {
            Some(session) => session,
            None => {
                let wanted = u64::try_from(time).unwrap_or(0);
                let key = self.keys.entry(Arc::clone(&node)).or_default().give(wanted);
                Session::new(opened, key, time, observed.target.p2p_port, &observed.memory)
            }
        };
        observed.totals.connections += 1;
        observed.totals.connections_open += 1;
        observed.sockets.insert(opened.socket);
        observed.undecided.push_back(opened.socket);
        observed.recount(&mut session);
        self.sessions.insert(opened.socket, session);
        self.bound_undecided(opened.pid);
    }

    fn data(&mut self, data: &Data<'_>) {
        let Some(session) = self.sessions.get_mut(&data.header.socket) else {
            if self.unknown_sockets.len() < MAX_UNKNOWN_SOCKETS
                || self.unknown_sockets.contains_key(&data.header.socket)
            {
                *self.unknown_sockets.entry(data.header.socket).or_default() += data.bytes.len() as u64;
            }
            return;
        };
        let Some(observed) = self.targets.get_mut(&session.pid) else { return };
        observed.totals.bytes_taken += data.bytes.len() as u64;
        if session.is_given_up() {
            *observed.totals.bytes_dropped.entry(GIVEN_UP).or_default() += data.bytes.len() as u64;
            return;
        }
        let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
        let was_settled = session.is_settled();
        session.data(data, &mut self.outputs, &mut context);
        self.outputs.shrink_to(MAX_KEPT_OUTPUTS);
        self.has_new_session |= !was_settled && session.is_settled();
        let pid = session.pid;
        self.settle(pid, data.header.socket);
        self.emit_identity_events(pid);
    }

    fn closed(&mut self, closed: &Closed) {
        self.unknown_sockets.remove(&closed.socket);
        let Some(mut session) = self.sessions.remove(&closed.socket) else { return };
        let pid = session.pid;
        if let Some(observed) = self.targets.get_mut(&pid) {
            observed.sockets.remove(&closed.socket);
            let by = match closed.by {
                ClosedBy::Local => "local",
                ClosedBy::Remote => "remote",
                ClosedBy::Reset => "reset",
                ClosedBy::Unknown => "unknown",
            };
            let time = self.clock.real(closed.time_ns);
            let ends = Some((closed.sent_offset, closed.received_offset));
            if session.awaited_identity().is_some() {
                observed.uncount(&mut session);
                return self.end_later(EndedSession { session, ends, by, time });
            }
            let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
            session.finish(ends, by, time, &mut context);
            observed.end(&mut session);
        }
        self.emit_identity_events(pid);
    }

    /// Ends the observation of all targets when the agent ends. Sessions that can be resumed from the journal stay open
    /// in the records.
    pub(crate) fn stop(&mut self) -> Journal {
        let journal = self.journal();
        let kept: HashSet<(String, u64)> =
            journal.sessions.iter().map(|session| (session.node.clone(), session.connection)).collect();
        let time = self.clock.now();
        while let Some(ended) = self.ended.pop() {
            self.finish_ended(ended);
        }
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut sessions: Vec<Session> = std::mem::take(&mut self.sessions).into_values().collect();
        sessions.sort_unstable_by_key(|session| session.key);
        for mut session in sessions {
            let Some(observed) = self.targets.get_mut(&session.pid) else { continue };
            let is_kept = kept.contains(&(observed.target.node.to_string(), session.key));
            if !is_kept {
                let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
                session.finish(None, "capture ended", time, &mut context);
            }
            // Pending bytes stay pending.
            observed.end(&mut session);
        }
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        for pid in pids {
            self.send_account(pid);
        }
        self.targets.clear();
        journal
    }

    /// Sessions that could be resumed after a restart, and those of the last run that were not seen yet.
    pub(crate) fn journal(&self) -> Journal {
        #[expect(clippy::disallowed_methods, reason = "`assemble` sorts")]
        let live = self.sessions.values().filter_map(|session| {
            let observed = self.targets.get(&session.pid)?;
            session.journalled(&observed.target.node)
        });
        journal::assemble(live, &self.waiting)
    }

    /// Drops the waiting sessions of a namespace whose sockets are not among `inodes`: their connections ended while no
    /// agent ran.
    pub(crate) fn drop_vanished(&mut self, netns: u32, inodes: &HashSet<u64>) {
        let time = self.clock.now();
        for session in self.waiting.drop_vanished(netns, inodes) {
            let record = records::closed(time, "", session.connection, "unknown", 0, 0);
            self.push(&session.node, record);
        }
    }

    /// Namespaces in which sessions of the last run wait for their sockets.
    pub(crate) fn waiting_namespaces(&self) -> Vec<u32> {
        self.waiting.namespaces()
    }

    /// Sends a record that is not about one session.
    pub(crate) fn push(&mut self, node: &str, record: Record) {
        if !self.sink.push(node, record) {
            chainscope_hygiene::warn_limited!(node, "records are dropped: the aggregator is too slow or away");
        }
    }

    /// Nodes under observation.
    pub(crate) fn nodes(&self) -> Vec<Arc<str>> {
        let mut nodes: Vec<Arc<str>> =
            self.targets.values().map(|observed| Arc::clone(&observed.target.node)).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// What a session needs of the interpreter for one event.
fn context<'a, S: RecordSink>(
    sink: &'a mut S,
    observed: &'a mut Observed,
    clock: &'a Clock,
    verdicts: &'a mut Vec<(SocketId, Verdict)>,
) -> Context<'a, S> {
    Context { sink, target: &mut observed.target, totals: &mut observed.totals, clock, verdicts }
}
