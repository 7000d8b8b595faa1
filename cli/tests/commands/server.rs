//! An aggregator in this process that can be stopped and started again, and an agent that delivers to it.

use std::{net::SocketAddr, time::Duration};

use chainscope_aggregator::{Aggregator, Config, NodeConfig, Running};
use chainscope_proto::v1::{
    Batch, Chunk, ChunkState, Hello, Initiator, LogEncoding, LogLevel, LogMessage, MemoryState, Message, Record,
    RecordReply, RecordRequest, SocketAddress, record::Kind, record_reply::Reply, record_request::Request,
};
use chainscope_store::{Store, StoreOptions};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{Receiver, Sender},
    time::timeout,
};

const LIMIT: Duration = Duration::from_secs(60);
/// 2021-07-14T12:02:03.456Z
pub(crate) const TIME: i64 = 1_626_264_123_456_000_000;
/// The node of the server.
pub(crate) const NODE: &str = "9732";

pub(crate) struct Server {
    runtime: Runtime,
    running: Option<Running>,
    config: Config,
    /// Records delivered so far.
    sequence: u64,
    /// Open sessions of the agent.
    sessions: Vec<Session>,
}

/// A session of the agent, which is open as long as this exists.
struct Session {
    requests: Sender<RecordRequest>,
    replies: Receiver<RecordReply>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let store = Store::in_memory(StoreOptions::default()).expect("a store");
        let address = SocketAddr::from(([127, 0, 0, 1], chainscope_testing::free_port()));
        let mut config = Config::new(store, address);
        config.nodes.push(NodeConfig::new(NODE));
        change(&mut config);
        let mut server = Self { runtime, running: None, config, sequence: 0, sessions: Vec::new() };
        server.resume();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.config.http)
    }

    /// Starts it again at the same address, with the same records.
    pub(crate) fn resume(&mut self) {
        self.running = Some(self.runtime.block_on(Aggregator::start(self.config.clone())).expect("it starts"));
    }

    pub(crate) fn stop(&mut self) {
        self.sessions.clear();
        let running = self.running.take().expect("it runs");
        self.runtime.block_on(async { timeout(LIMIT, running.shutdown()).await }).expect("it ends");
    }

    /// Stores records of the node.
    pub(crate) fn feed(&mut self, records: Vec<Record>) {
        drop(self.session(records));
    }

    /// Stores records of the node and the memory of its process; the agent stays connected.
    pub(crate) fn feed_and_stay(&mut self, records: Vec<Record>, memory: MemoryState) {
        let mut session = self.session(records);
        let request = RecordRequest { request: Some(Request::Memory(memory)) };
        self.runtime.block_on(session.requests.send(request)).expect("it receives");
        while !matches!(self.reply(&mut session.replies), Reply::Memory(ack) if ack.sequence == 1) {}
        self.sessions.push(session);
    }

    fn session(&mut self, records: Vec<Record>) -> Session {
        let _runtime = self.runtime.enter();
        let (requests, mut replies) = self.running.as_ref().expect("it runs").connect();
        let hello = Hello {
            least_version: 1,
            greatest_version: 1,
            build: "test".into(),
            agent: "host-1".into(),
            epoch: vec![7; 16],
            realtime_ns: TIME,
            nodes: vec![NODE.into()],
        };
        let first_sequence = self.sequence;
        self.sequence += records.len() as u64;
        for request in [Request::Hello(hello), Request::Batch(Batch { node: NODE.into(), first_sequence, records })] {
            self.runtime.block_on(requests.send(RecordRequest { request: Some(request) })).expect("it receives");
        }
        while !matches!(self.reply(&mut replies), Reply::Ack(ack) if ack.next_sequence == self.sequence) {}
        Session { requests, replies }
    }

    fn reply(&self, replies: &mut Receiver<RecordReply>) -> Reply {
        let reply = self.runtime.block_on(async { timeout(LIMIT, replies.recv()).await });
        reply.expect("in time").expect("an answer").reply.expect("not empty")
    }
}

/// A metadata message, between the node and a peer at this port, with its only chunk.
pub(crate) fn metadata(port: u16, incoming: bool, counter: u64) -> Vec<Record> {
    let plain = vec![0, 255];
    let chunk = Chunk {
        connection: port.into(),
        incoming,
        counter,
        wire: vec![0xaa; 20].into(),
        plain: plain.clone().into(),
        state: ChunkState::Opened.into(),
        net: true,
    };
    let message = Message {
        connection: port.into(),
        incoming,
        protocol: "tezos".into(),
        category: "meta".into(),
        kind: "metadata".into(),
        first_chunk: counter,
        last_chunk: counter,
        length: plain.len() as u64,
        preview: Some("{\"disable_mempool\":false,\"private_node\":true}".into()),
        initiator: Initiator::Local.into(),
        remote: Some(SocketAddress { ip: vec![127, 0, 0, 1], port: port.into() }),
        peer_id: format!("idPeerAt{port}"),
        ..Message::default()
    };
    [Kind::Chunk(chunk), Kind::Message(message)].map(record).into()
}

/// A log message as Octez writes it.
pub(crate) fn logged(second: i64, level: LogLevel, line: &str) -> Record {
    let time_ns = TIME + second * 1_000_000_000;
    let message = LogMessage {
        raw: line.to_owned().into(),
        encoding: LogEncoding::Plain.into(),
        level: level.into(),
        received_ns: time_ns,
        source: "file".into(),
        position: None,
    };
    Record { time_ns, ..record(Kind::LogMessage(message)) }
}

/// A record of the node's process at [`TIME`].
pub(crate) fn record(kind: Kind) -> Record {
    Record { time_ns: TIME, target: "pid 4711".into(), kind: Some(kind) }
}
