//! An aggregator with its own database, an agent that delivers to it, and a plain HTTP client.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod fake;
pub(crate) mod latency;
pub(crate) mod logs;
pub(crate) mod trace;

use std::{
    io::{BufRead as _, BufReader, Read},
    net::SocketAddr,
    time::Duration,
};

use chainscope_aggregator::{Aggregator, Config, NodeConfig, Running};
use chainscope_proto::v1::{
    Batch, Chunk, ChunkState, ConnectionEvent, ConnectionIdentified, ConnectionOpened, Hello, Initiator, MemoryAck,
    MemoryState, Message, Record, RecordReply, RecordRequest, SocketAddress, Welcome, connection_event, record::Kind,
    record_reply::Reply, record_request::Request,
};
use chainscope_store::{Store, StoreOptions};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    sync::mpsc::{Receiver, Sender},
};

/// Time limit of waits in tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// 2021-07-14T12:02:03.456789Z
pub(crate) const TIME: i64 = 1_626_264_123_456_789_000;

/// Key of the connection that [`message`] belongs to.
pub(crate) const CONNECTION: u64 = 1_617_005_682_953_928_051;

pub(crate) struct Server {
    pub(crate) runtime: Runtime,
    pub(crate) running: Option<Running>,
    pub(crate) store: Store,
    pub(crate) dir: TempDir,
}

impl Server {
    /// A server with one node "9732".
    pub(crate) fn start() -> Self {
        Self::with(|config| config.nodes.push(NodeConfig::new("9732")))
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        Self::on(dir, store, change)
    }

    pub(crate) fn on(dir: TempDir, store: Store, change: impl FnOnce(&mut Config)) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut config = Config::new(store.clone(), "127.0.0.1:0".parse().unwrap());
        change(&mut config);
        let running = runtime.block_on(Aggregator::start(config)).unwrap();
        Self { runtime, running: Some(running), store, dir }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.running().http_addr()
    }

    /// Shuts down, closes the database, and starts again on it.
    pub(crate) fn restart(mut self) -> Self {
        self.shutdown();
        let Self { runtime, store, dir, .. } = self;
        drop((runtime, store));
        let store = open(&dir);
        Self::on(dir, store, |config| config.nodes.push(NodeConfig::new("9732")))
    }

    /// An in-process agent before its hello.
    pub(crate) fn raw_agent(&self) -> Agent<'_> {
        let (requests, replies) = {
            let _inside = self.runtime.enter();
            self.running().connect()
        };
        Agent { runtime: &self.runtime, requests: Some(requests), replies }
    }

    /// An in-process agent after its welcome.
    pub(crate) fn agent(&self, nodes: &[&str]) -> Agent<'_> {
        let mut agent = self.raw_agent();
        agent.send(Request::Hello(hello(nodes)));
        let welcome = agent.welcome();
        assert_eq!(welcome.version, 1);
        agent
    }

    /// Stores records of a node, from sequence 0 on.
    pub(crate) fn feed(&self, node: &str, records: Vec<Record>) {
        let end = records.len() as u64;
        let mut agent = self.agent(&[node]);
        agent.batch(node, 0, records);
        agent.wait_for(node, end);
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        get(self.http(), "GET", path, &[])
    }

    /// Sends a GET request with a token.
    pub(crate) fn get_as(&self, token: &str, path: &str) -> Answer {
        get(self.http(), "GET", path, &[("authorization", &format!("Bearer {token}"))])
    }

    /// The JSON of a successful response to this token.
    pub(crate) fn json_as(&self, token: &str, path: &str) -> Value {
        let answer = self.get_as(token, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The `detail` of a refusal to this token.
    pub(crate) fn refusal(&self, token: &str, path: &str, status: u16) -> String {
        let answer = self.get_as(token, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        problem["detail"].as_str().unwrap().to_owned()
    }

    /// The JSON of a successful response.
    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Ids of a list's rows.
    pub(crate) fn ids(&self, path: &str) -> Vec<u64> {
        self.json(path).as_array().unwrap().iter().map(|row| row["id"].as_u64().unwrap()).collect()
    }

    /// The `detail` of a refused request.
    pub(crate) fn problem(&self, path: &str, status: u16) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(problem["status"], status, "{path}");
        problem
    }

    /// Opens a stream of events.
    pub(crate) fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let body = client().get(format!("http://{}{path}", self.http()));
        let body = headers.iter().fold(body, |request, (name, value)| request.header(*name, *value));
        let answer = body.call().unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut events = Events { lines: BufReader::new(Box::new(answer.into_body().into_reader())) };
        assert_eq!(events.block().as_deref(), Some(": open"));
        events
    }

    pub(crate) fn shutdown(&mut self) {
        let running = self.running.take().unwrap();
        self.runtime
            .block_on(async { tokio::time::timeout(LIMIT, running.shutdown()).await })
            .expect("it does not end");
    }
}

pub(crate) fn open(dir: &TempDir) -> Store {
    let options = StoreOptions { ballast_bytes: 0, ..StoreOptions::default() };
    Store::open(dir.path(), options).unwrap()
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The values of a header that may come several times.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }
}

fn client() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(LIMIT))
        .build()
        .new_agent()
}

/// Sends any request; the path is not normalised.
pub(crate) fn get(http: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let host = if headers.starts_with("host: ") { String::new() } else { format!("host: {http}\r\n") };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}connection: close\r\n{headers}\r\n").unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let end = text.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(text[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let bytes = if is_chunked { unchunk(&text[end + 4..]) } else { text[end + 4..].to_vec() };
    // A body that is not UTF-8 is compared as bytes.
    Answer { status, headers, body: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

/// Decodes a chunked body, which must be complete.
fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("the body was broken off");
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let start = line + 2;
        body.extend_from_slice(&rest[start..start + length]);
        if length == 0 {
            return body;
        }
        rest = &rest[start + length + 2..];
    }
}

pub(crate) struct Events {
    lines: BufReader<Box<dyn Read>>,
}

impl Events {
    /// The next event or comment; none at the end.
    pub(crate) fn block(&mut self) -> Option<String> {
        let mut block = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                assert!(block.is_empty(), "the stream ended within an event");
                return None;
            }
            if line == "\n" {
                return Some(block.trim_end().to_owned());
            }
            block.push_str(&line);
        }
    }

    /// Id and row of the next event, comments skipped.
    pub(crate) fn next(&mut self) -> Option<(u64, Value)> {
        loop {
            let block = self.block()?;
            if block.starts_with(':') {
                continue;
            }
            let (id, data) = block.split_once('\n').unwrap();
            let id = id.strip_prefix("id: ").unwrap().parse().unwrap();
            return Some((id, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()));
        }
    }

    pub(crate) fn ids(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.next().expect("an event").0).collect()
    }
}

pub(crate) struct Agent<'a> {
    runtime: &'a Runtime,
    requests: Option<Sender<RecordRequest>>,
    replies: Receiver<RecordReply>,
}

impl Agent<'_> {
    pub(crate) fn send(&self, request: Request) {
        let requests = self.requests.as_ref().unwrap();
        self.runtime.block_on(requests.send(RecordRequest { request: Some(request) })).unwrap();
    }

    /// Sends the memory state of a process in parts and returns the reply to the last one.
    pub(crate) fn memory(&mut self, parts: impl IntoIterator<Item = MemoryState>) -> MemoryAck {
        for part in parts {
            self.send(Request::Memory(part));
        }
        match self.reply() {
            Some(Reply::Memory(ack)) => ack,
            other => panic!("no acknowledgement of a state: {other:?}"),
        }
    }

    pub(crate) fn batch(&self, node: &str, first_sequence: u64, records: Vec<Record>) {
        self.send(Request::Batch(Batch { node: node.into(), first_sequence, records }));
    }

    /// The next reply; none if the session ended.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let reply = self.runtime.block_on(async { tokio::time::timeout(LIMIT, self.replies.recv()).await });
        reply.expect("no reply").map(|reply| reply.reply.unwrap())
    }

    pub(crate) fn welcome(&mut self) -> Welcome {
        match self.reply() {
            Some(Reply::Welcome(welcome)) => welcome,
            other => panic!("no welcome: {other:?}"),
        }
    }

    /// Waits until the stream of the node is acknowledged up to the sequence.
    pub(crate) fn wait_for(&mut self, node: &str, next_sequence: u64) {
        loop {
            match self.reply() {
                Some(Reply::Ack(ack)) if ack.node == node && ack.next_sequence >= next_sequence => {
                    assert_eq!(ack.next_sequence, next_sequence);
                    return;
                }
                Some(Reply::Ack(_)) => {}
                other => panic!("no acknowledgement: {other:?}"),
            }
        }
    }

    /// Closes the sending side.
    pub(crate) fn end(&mut self) {
        self.requests.take();
    }
}

pub(crate) fn hello(nodes: &[&str]) -> Hello {
    Hello {
        least_version: 1,
        greatest_version: 1,
        build: "test".into(),
        agent: "host-1".into(),
        epoch: vec![7; 16],
        realtime_ns: TIME,
        nodes: nodes.iter().map(|&node| node.into()).collect(),
    }
}

pub(crate) fn record(time_ns: i64, kind: Kind) -> Record {
    Record { time_ns, target: "pid 4711".into(), kind: Some(kind) }
}

pub(crate) fn address(text: &str) -> SocketAddress {
    let socket: SocketAddr = text.parse().unwrap();
    let ip = match socket.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    SocketAddress { ip, port: socket.port().into() }
}

/// A message between peers, without chunks.
pub(crate) fn message(kind: &str) -> Message {
    let category = match kind {
        "connection_message" => "connection",
        "metadata" => "meta",
        "ack_message" => "ack",
        _ => "p2p",
    };
    Message {
        connection: CONNECTION,
        incoming: false,
        protocol: "tezos".into(),
        category: category.into(),
        kind: kind.into(),
        initiator: Initiator::Local.into(),
        remote: Some(address("127.0.0.1:29733")),
        ..Message::default()
    }
}

/// A message of these plain bytes, and its chunks of at most `size` plain bytes from counter `first` on.
pub(crate) fn with_chunks(message: Message, plain: &[u8], first: u64, size: usize) -> Vec<Record> {
    let is_clear = message.category == "connection";
    let mut records = Vec::new();
    let mut counter = first;
    for piece in plain.chunks(size) {
        let mut wire = Vec::new();
        let length = piece.len() + if is_clear { 0 } else { 16 };
        wire.extend_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        if is_clear {
            wire.extend_from_slice(piece);
        } else {
            wire.extend_from_slice(&[0xaa; 16]);
            wire.extend(piece.iter().map(|byte| byte ^ 0x55));
        }
        let state = if is_clear { ChunkState::Clear } else { ChunkState::Opened };
        records.push(record(
            TIME,
            Kind::Chunk(Chunk {
                connection: message.connection,
                incoming: message.incoming,
                counter,
                wire: wire.into(),
                plain: piece.to_vec().into(),
                state: state.into(),
                net: true,
            }),
        ));
        counter += 1;
    }
    let message = Message {
        first_chunk: first,
        last_chunk: counter.saturating_sub(1).max(first),
        length: plain.len() as u64,
        sha256: Sha256::digest(plain).to_vec().into(),
        ..message
    };
    records.push(record(TIME, Kind::Message(message)));
    records
}

pub(crate) fn opened(connection: u64, initiator: Initiator, remote: &str) -> Record {
    event(
        connection,
        connection_event::Event::Opened(ConnectionOpened {
            initiator: initiator.into(),
            remote: Some(address(remote)),
            local: Some(address("10.0.0.1:40000")),
        }),
    )
}

pub(crate) fn identified(connection: u64, peer_id: &str) -> Record {
    event(
        connection,
        connection_event::Event::Identified(ConnectionIdentified {
            peer_id: peer_id.into(),
            protocol: "tezos".into(),
            network: "TEZOS_MAINNET".into(),
            initiator: 0,
        }),
    )
}

pub(crate) fn event(connection: u64, event: connection_event::Event) -> Record {
    record(TIME, Kind::Connection(ConnectionEvent { connection, event: Some(event) }))
}
