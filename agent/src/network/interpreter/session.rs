//! One socket: its conversation and how its outputs become records.

use std::{net::SocketAddr, sync::Arc};

use chainscope_ebpf::network::{self as ebpf, Data, Opened, SocketId, Verdict};
use chainscope_proto::v1::{self, ConnectionState, JournalSession, Record, connection_event::Event as ConnectionKind};
use chainscope_tezos::{
    Conversation, Direction, Identity, Limits, MemoryBudget, Output, Piece, Protocol, Role, State, StreamStats,
};

use super::{Target, records};
use crate::{
    clock::Clock,
    config::Store,
    network::account::{CHUNK_DROPPED, QUEUE_FULL, Totals},
    network::journal,
    pillar::RecordSink,
};

/// The parts of the interpreter that a session uses during one event.
pub(super) struct Context<'a, S> {
    pub(super) sink: &'a mut S,
    pub(super) target: &'a mut Target,
    pub(super) totals: &'a mut Totals,
    pub(super) clock: &'a Clock,
    pub(super) verdicts: &'a mut Vec<(SocketId, Verdict)>,
}

impl<S: RecordSink> Context<'_, S> {
    fn push(&mut self, record: Record) -> bool {
        self.totals.last_record_ns = self.totals.last_record_ns.max(record.time_ns);
        self.sink.push(&self.target.node, record)
    }

    fn event(&mut self, time_ns: i64, connection: u64, event: ConnectionKind) {
        let record = records::connection_event(time_ns, &self.target.label, connection, event);
        self.push(record);
    }
}

/// The conversation of a session.
enum Body {
    Live(Box<Conversation>),
    /// Given up: its account as it ended.
    Done(StreamStats),
}

/// Comments kept of a connection that is not announced yet.
const MAX_EARLY: usize = 8;

pub(super) struct Session {
    pub(super) pid: u32,
    /// Key of the connection in the records.
    pub(super) key: u64,
    socket: SocketId,
    started_ns: i64,
    netns: u32,
    inode: u64,
    local: SocketAddr,
    remote: SocketAddr,
    role: Option<Role>,
    /// It was accepted on the port on which the node listens for peers.
    is_on_p2p_port: bool,
    /// Its `opened` record was sent.
    is_announced: bool,
    /// Comments from before that.
    early: Vec<String>,
    protocol: &'static str,
    peer_id: String,
    is_settled: bool,
    /// Bytes with which it is counted among the undecided ones; none if it is not.
    pub(super) counted: Option<u64>,
    body: Body,
    /// Why bytes were last missing, sent and received.
    missing: [Option<&'static str>; 2],
    /// Stream offsets up to which bytes were seen, sent and received.
    ends: [u64; 2],
    /// Counters of the last chunks that were dropped, sent and received.
    dropped: [Option<u64>; 2],
}

fn role_of(role: ebpf::Role) -> Role {
    match role {
        ebpf::Role::Initiator => Role::Initiator,
        ebpf::Role::Responder => Role::Responder,
    }
}

fn direction_of(direction: ebpf::Direction) -> Direction {
    match direction {
        ebpf::Direction::Sent => Direction::Sent,
        ebpf::Direction::Received => Direction::Received,
    }
}

/// Real time of an output; `time` for one that came out at the end of a connection, without a time of its own.
fn real_or(time: i64, monotonic_ns: u64, clock: &Clock) -> i64 {
    if monotonic_ns == 0 { time } else { clock.real(monotonic_ns) }
}

fn index_of(direction: Direction) -> usize {
    match direction {
        Direction::Sent => 0,
        Direction::Received => 1,
    }
}

impl Session {
    pub(super) fn new(
        opened: &Opened,
        key: u64,
        started_ns: i64,
        p2p_port: Option<u16>,
        memory: &MemoryBudget,
    ) -> Self {
        let role = opened.role.map(role_of);
        let conversation = Conversation::new(role, Limits::default())
            .with_start(opened.sent_offset, opened.received_offset)
            .with_memory(memory);
        let is_here = p2p_port == Some(opened.local.port()) && role != Some(Role::Initiator);
        Self::around(opened, key, started_ns, role, is_here, conversation)
    }

    /// A session of the last run whose socket still exists; none if the saved state cannot be resumed.
    pub(super) fn resumed(opened: &Opened, saved: &JournalSession, memory: &MemoryBudget) -> Option<Self> {
        let conversation = journal::resume(saved)?.with_memory(memory);
        let role = Some(if saved.local_is_initiator { Role::Initiator } else { Role::Responder });
        let started = i64::try_from(saved.connection).unwrap_or(i64::MAX);
        let mut session = Self::around(opened, saved.connection, started, role, false, conversation);
        // The last run announced it.
        session.is_announced = true;
        Some(session)
    }

    fn around(
        opened: &Opened,
        key: u64,
        started_ns: i64,
        role: Option<Role>,
        is_on_p2p_port: bool,
        conversation: Conversation,
    ) -> Self {
        Self {
            pid: opened.pid,
            key,
            socket: opened.socket,
            started_ns,
            netns: opened.netns,
            inode: opened.inode,
            local: opened.local,
            remote: opened.remote,
            role,
            is_on_p2p_port,
            is_announced: false,
            early: Vec::new(),
            protocol: Protocol::Tezos.name(),
            peer_id: String::new(),
            is_settled: false,
            counted: None,
            body: Body::Live(Box::new(conversation)),
            missing: [None; 2],
            ends: [opened.sent_offset, opened.received_offset],
            dropped: [None; 2],
        }
    }

    /// Sets what the probe did not know when it reported the socket.
    pub(super) fn set_inode(&mut self, inode: u64) {
        self.inode = inode;
    }

    pub(super) fn account(&self) -> StreamStats {
        match &self.body {
            Body::Live(conversation) => conversation.stats(),
            Body::Done(account) => *account,
        }
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.body, Body::Done(_))
    }

    /// Whether the handshake has ended.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled || self.is_given_up()
    }

    /// `outputs` is empty before and after.
    pub(super) fn data<S: RecordSink>(
        &mut self,
        data: &Data<'_>,
        outputs: &mut Vec<Output>,
        context: &mut Context<'_, S>,
    ) {
        let Body::Live(conversation) = &mut self.body else { return };
        let Data { header, bytes } = *data;
        let direction = direction_of(header.direction);
        let index = index_of(direction);
        if let Some(reason) = header.missing {
            self.missing[index] = Some(reason.name());
        }
        self.ends[index] = self.ends[index].max(header.offset.saturating_add(header.covers));
        let piece = Piece {
            direction,
            offset: header.offset,
            bytes,
            covers: header.covers,
            call_start: header.call_start,
            time_ns: header.time_ns,
        };
        conversation.push(piece, &mut *context.target.keys, &mut |output| outputs.push(output));
        let time = context.clock.real(header.time_ns);
        for output in outputs.drain(..) {
            self.output(output, time, header.socket_call, context);
        }
    }

    /// Public key of the identity that the conversation waits for.
    pub(super) fn awaited_identity(&self) -> Option<[u8; 32]> {
        match &self.body {
            Body::Live(conversation) => conversation.awaited_identity(),
            Body::Done(_) => None,
        }
    }

    /// The identity that the conversation waits for was read, or there is none.
    pub(super) fn set_identity<S: RecordSink>(
        &mut self,
        found: Result<Arc<Identity>, String>,
        time: i64,
        context: &mut Context<'_, S>,
    ) {
        let Body::Live(conversation) = &mut self.body else { return };
        let mut outputs = Vec::new();
        conversation.set_identity(found, &mut |output| outputs.push(output));
        for output in outputs {
            self.output(output, time, false, context);
        }
    }

    /// The connection ended, with the final stream offsets if they are known.
    pub(super) fn finish<S: RecordSink>(
        &mut self,
        ends: Option<(u64, u64)>,
        by: &str,
        time: i64,
        context: &mut Context<'_, S>,
    ) {
        self.finish_conversation(ends, time, context);
        if self.is_on_p2p_port {
            self.announce(context);
        }
        if self.is_announced {
            let (sent, received) = ends.unwrap_or((self.ends[0], self.ends[1]));
            let record = records::closed(time, &context.target.label, self.key, by, sent, received);
            context.push(record);
        }
    }

    /// Stops following the conversation and frees what it holds.
    pub(super) fn give_up<S: RecordSink>(&mut self, time: i64, context: &mut Context<'_, S>) {
        if self.is_on_p2p_port || self.is_announced {
            self.comment("given up: too many open handshakes".to_owned(), time, context);
        }
        self.finish_conversation(None, time, context);
        self.body = Body::Done(self.account());
    }

    fn finish_conversation<S: RecordSink>(
        &mut self,
        ends: Option<(u64, u64)>,
        time: i64,
        context: &mut Context<'_, S>,
    ) {
        let Body::Live(conversation) = &mut self.body else { return };
        let mut outputs = Vec::new();
        let (sent, received) = (ends.map(|ends| ends.0), ends.map(|ends| ends.1));
        conversation.finish(sent, received, &mut |output| outputs.push(output));
        for output in outputs {
            self.output(output, time, false, context);
        }
    }

    fn output<S: RecordSink>(&mut self, output: Output, time: i64, is_net: bool, context: &mut Context<'_, S>) {
        match output {
            Output::NotTezos { reason } => {
                self.is_settled = true;
                context.verdicts.push((self.socket, Verdict::LeaveAlone));
                if self.is_on_p2p_port || self.is_announced {
                    self.comment(reason, time, context);
                }
            }
            Output::Recognised => {
                context.verdicts.push((self.socket, Verdict::Keep));
                self.announce(context);
            }
            Output::Identified(identified) => {
                self.announce(context);
                self.role = identified.role.or(self.role);
                self.peer_id.clone_from(&identified.peer_id);
                self.protocol = identified.protocol.name();
                let identified = v1::ConnectionIdentified {
                    peer_id: identified.peer_id,
                    protocol: self.protocol.to_owned(),
                    network: identified.chain_name,
                    initiator: records::initiator(self.role).into(),
                };
                context.event(time, self.key, ConnectionKind::Identified(identified));
            }
            Output::Comment(comment) => self.comment(comment, time, context),
            Output::State { state, reason, remedy } => {
                self.announce(context);
                let state = match state {
                    State::Handshake => ConnectionState::Handshake,
                    State::Decoding => ConnectionState::Decoding,
                    State::Undecryptable => ConnectionState::Undecryptable,
                    State::Raw => ConnectionState::Raw,
                };
                self.is_settled |= state != ConnectionState::Handshake;
                let changed = v1::ConnectionStateChanged { state: state.into(), reason, remedy };
                context.event(time, self.key, ConnectionKind::StateChanged(changed));
            }
            Output::Chunk(chunk) => {
                self.announce(context);
                let is_plain_only = context.target.store == Store::Plain;
                let time = real_or(time, chunk.time_ns, context.clock);
                let (index, counter, length) = (index_of(chunk.direction), chunk.counter, chunk.wire.len() as u64);
                let record = records::chunk(time, &context.target.label, self.key, chunk, is_plain_only, is_net);
                if !context.push(record) {
                    context.totals.chunks_dropped += 1;
                    context.totals.chunk_bytes_dropped += length;
                    self.dropped[index] = Some(counter);
                }
            }
            Output::Message(message) => {
                self.announce(context);
                // A message comes right after its last chunk. It cannot be shown without all of its chunks.
                if self.dropped[index_of(message.direction)].is_some_and(|last| last >= message.first_chunk) {
                    *context.totals.messages_dropped.entry(CHUNK_DROPPED).or_default() += 1;
                    return;
                }
                let time = real_or(time, message.time_ns, context.clock);
                let of = records::Of {
                    connection: self.key,
                    protocol: self.protocol,
                    role: self.role,
                    remote: self.remote,
                    peer_id: &self.peer_id,
                };
                let record = records::message(time, &context.target.label, &of, message);
                if context.push(record) {
                    context.totals.messages_sent += 1;
                } else {
                    *context.totals.messages_dropped.entry(QUEUE_FULL).or_default() += 1;
                }
            }
            Output::Gap(gap) => {
                self.announce(context);
                let reason = self.missing[index_of(gap.direction)].unwrap_or("not captured");
                context.event(time, self.key, ConnectionKind::Gap(records::gap(gap, reason)));
            }
        }
    }

    fn comment<S: RecordSink>(&mut self, comment: String, time: i64, context: &mut Context<'_, S>) {
        if self.is_on_p2p_port {
            self.announce(context);
        }
        if self.is_announced {
            context.event(time, self.key, ConnectionKind::Comment(comment));
        } else if self.early.len() < MAX_EARLY {
            self.early.push(comment);
        }
    }

    /// Sends the `opened` record, once.
    fn announce<S: RecordSink>(&mut self, context: &mut Context<'_, S>) {
        if std::mem::replace(&mut self.is_announced, true) {
            return;
        }
        let opened = v1::ConnectionOpened {
            initiator: records::initiator(self.role).into(),
            remote: Some(records::address(self.remote)),
            local: Some(records::address(self.local)),
        };
        context.event(self.started_ns, self.key, ConnectionKind::Opened(opened));
        for comment in std::mem::take(&mut self.early) {
            context.event(self.started_ns, self.key, ConnectionKind::Comment(comment));
        }
    }

    /// The journal's entry; none before the keys are known, or if the socket's inode is unknown.
    pub(super) fn journalled(&self, node: &str) -> Option<JournalSession> {
        let Body::Live(conversation) = &self.body else { return None };
        if self.inode == 0 {
            return None;
        }
        let socket = journal::Socket { netns: self.netns, inode: self.inode, local: self.local, remote: self.remote };
        Some(journal::session(&socket, node, self.key, &conversation.saved()?))
    }
}
