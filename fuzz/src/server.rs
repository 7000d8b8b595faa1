//! An aggregator with a store in memory, which targets send to. It is replaced now and then, so that its state stays small.
use std::{
    net::Ipv4Addr,
    sync::{LazyLock, Mutex},
};

use chainscope_aggregator::{Aggregator, Config, Running};
use chainscope_proto::v1::{Hello, RecordReply, RecordRequest, record_request::Request};
use chainscope_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

/// Name of the agent that sends.
pub const AGENT: &str = "fuzz";

/// Number of executions that a server is used for.
const USES: u64 = 256;

/// Paths of the API that answer queries.
pub const PATHS: &[&str] = &[
    "/nodes",
    "/v2/p2p",
    "/v2/p2p/stream",
    "/v3/messages",
    "/v3/connections",
    "/v3/chunks",
    "/v2/stats",
    "/v1/tree",
    "/v1/flamegraph",
    "/v1/pprof",
    "/v1/snapshots",
    "/v1/targets",
    "/v1/pid",
    "/v2/log",
    "/v2/log/stream",
    "/v3/logs",
    "/v2/trace",
    "/v2/trace/stream",
    "/v2/trace/relay",
    "/v2/latency/runs",
    "/v2/latency/report",
    "/v2/latency/compare",
    "/v2/latency/compare/report",
    "/v2/latency/transactions",
];

static SERVER: LazyLock<Mutex<Server>> = LazyLock::new(|| Mutex::new(Server::start()));

/// A running aggregator.
pub struct Server {
    runtime: Runtime,
    running: Option<Running>,
    /// Its store.
    pub store: Store,
    client: ureq::Agent,
    uses: u64,
    epochs: u64,
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let store = Store::in_memory(StoreOptions::default()).expect("a store");
        let config = Config::new(store.clone(), (Ipv4Addr::LOCALHOST, 0).into());
        let running = Some(runtime.block_on(Aggregator::start(config)).expect("an aggregator"));
        let client = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut server = Self { runtime, running, store, client, uses: 0, epochs: 0 };
        let epoch = server.new_epoch();
        let requests = [vec![hello(&epoch)], crate::recorded()].concat();
        let replies = server.session(requests);
        assert!(replies.len() > 1, "{replies:?}");
        server
    }

    /// Uses the server.
    pub fn with(usage: impl FnOnce(&mut Self)) {
        let mut server = SERVER.lock().expect("no panic before");
        if server.uses == USES {
            if let Some(running) = server.running.take() {
                server.runtime.block_on(running.shutdown());
            }
            *server = Self::start();
        }
        server.uses += 1;
        usage(&mut server);
    }

    /// An epoch that no session had before.
    pub fn new_epoch(&mut self) -> Vec<u8> {
        self.epochs += 1;
        [self.epochs, 0].map(u64::to_be_bytes).concat()
    }

    /// Sends requests as one session and returns the replies.
    pub fn session(&self, requests: Vec<RecordRequest>) -> Vec<RecordReply> {
        let Some(running) = &self.running else { return Vec::new() };
        self.runtime.block_on(async {
            let (sender, mut receiver) = running.connect();
            let sending = async move {
                for request in requests {
                    if sender.send(request).await.is_err() {
                        return;
                    }
                }
            };
            let receiving = async {
                let mut replies = Vec::new();
                while let Some(reply) = receiver.recv().await {
                    replies.push(reply);
                }
                replies
            };
            tokio::join!(sending, receiving).1
        })
    }

    /// Status and body of a response. A live stream has no end: its body is not read, and its connection closed.
    pub fn get(&self, target: &str) -> (u16, String) {
        let Some(running) = &self.running else { return (0, String::new()) };
        let url = format!("http://{}{target}", running.http_addr());
        loop {
            match self.try_get(&url) {
                // By the alarm with which libFuzzer limits the time of an input.
                Err(ureq::Error::Io(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
                response => return response.expect("a response"),
            }
        }
    }

    fn try_get(&self, url: &str) -> Result<(u16, String), ureq::Error> {
        let mut response = self.client.get(url).call()?;
        let status = response.status().as_u16();
        if response.body().mime_type() == Some("text/event-stream") {
            return Ok((status, String::new()));
        }
        let body = response.body_mut().read_to_vec()?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// The first request of a session.
pub fn hello(epoch: &[u8]) -> RecordRequest {
    let hello = Hello {
        least_version: 1,
        greatest_version: 1,
        agent: AGENT.to_owned(),
        epoch: epoch.to_vec(),
        ..Hello::default()
    };
    RecordRequest { request: Some(Request::Hello(hello)) }
}
