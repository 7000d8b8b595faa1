//! An agent on this machine's real sockets, the processes that it observes, and the records that it delivers.
//!
//! `CHAINSCOPE_CAPTURE=sock` or `syscall` sets the capture mode; default: the best mode of the kernel.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod collector;
pub(crate) mod session;
pub(crate) mod test_process;

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

use chainscope_agent::{Agent, CaptureMode, Config, NodeConfig, Running};

use self::{
    collector::{Collector, Delivered},
    session::{identity, messages, play, steps},
    test_process::TestProcess,
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn capture() -> Option<CaptureMode> {
    match std::env::var("CHAINSCOPE_CAPTURE").as_deref() {
        Ok("sock") => Some(CaptureMode::Sock),
        Ok("syscall") => Some(CaptureMode::Syscall),
        Ok(other) => panic!("CHAINSCOPE_CAPTURE: {other}"),
        Err(_) => None,
    }
}

pub(crate) struct Stage {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) identity: PathBuf,
    pub(crate) collector: Collector,
}

impl Stage {
    pub(crate) fn new() -> Self {
        // The log of the agent is shown when a test fails.
        let _ = tracing_subscriber::fmt().with_test_writer().with_env_filter("info").try_init();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        std::fs::write(&path, identity()).unwrap();
        Self { identity: path, collector: Collector::default(), dir }
    }

    pub(crate) fn node(&self) -> NodeConfig {
        NodeConfig { name: "node".to_owned(), identity: Some(self.identity.clone()), ..NodeConfig::default() }
    }

    pub(crate) fn on_port(&self, port: u16) -> NodeConfig {
        NodeConfig { p2p_port: Some(port), ..self.node() }
    }

    pub(crate) fn start(&self, node: NodeConfig) -> Running {
        let config =
            Config { capture: capture(), ring_bytes: 8 << 20, ..Config::new(self.dir.path().join("data"), vec![node]) };
        Agent::start(config, self.collector.link()).unwrap()
    }

    pub(crate) fn found(&self, pid: u32) {
        self.collector.wait("the target", |delivered| {
            let events = delivered.target_events("node");
            events
                .iter()
                .any(|event| event.pid == pid && matches!(event.event.as_str(), "found" | "started"))
                .then_some(())
        });
    }

    /// Waits for this number of complete sessions of the node.
    pub(crate) fn whole_sessions(&self, node: &str, count: usize) {
        self.collector.wait("whole sessions", |delivered| (sessions(delivered, node) == count).then_some(()));
    }
}

/// Connections with exactly the messages of the session.
pub(crate) fn sessions(delivered: &Delivered, node: &str) -> usize {
    let all = delivered.messages(node);
    let mut keys: Vec<u64> = all.iter().map(|message| message.0).collect();
    keys.dedup();
    keys.into_iter().filter(|key| of_connection(delivered, node, *key) == messages()).count()
}

pub(crate) fn of_connection(delivered: &Delivered, node: &str, key: u64) -> Vec<(bool, u64, Vec<u8>)> {
    let of = delivered.messages(node).into_iter().filter(|message| message.0 == key);
    of.map(|(_, incoming, first, digest)| (incoming, first, digest)).collect()
}

/// Plays the session over a connection of the node to this process.
pub(crate) fn session_out(node: &mut TestProcess) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = node.connect(listener.local_addr().unwrap().port());
    let mut peer = listener.accept().unwrap().0;
    play(node, connection, &mut peer, &steps());
}

/// Plays the session over a connection of this process to the node.
pub(crate) fn session_in(node: &mut TestProcess, port: u16) {
    let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = node.accept(1);
    play(node, connection, &mut peer, &steps());
}

pub(crate) fn check_account(delivered: &Delivered) {
    let account = delivered.account("node").unwrap();
    let dropped: u64 = account.bytes_dropped.iter().map(|reason| reason.count).sum();
    assert_eq!(
        account.bytes_seen,
        account.bytes_captured + account.bytes_left_alone + dropped + account.bytes_in_ring,
        "{account:?}"
    );
    assert_eq!((dropped, account.bytes_in_ring), (0, 0), "{account:?}");
}
