//! The agents that deliver records, for `/v2/stats` and `/nodes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_proto::v1::Hello;
use parking_lot::Mutex;

use crate::clock::now_ns;

/// Maximum number of agents that are remembered; the one without a session that was seen first is removed.
const MAX_AGENTS: usize = 1000;

/// State of one agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct AgentInfo {
    pub(crate) build: String,
    pub(crate) version: u32,
    /// Epoch of its latest session.
    pub(crate) epoch: Vec<u8>,
    /// Open sessions.
    pub(crate) sessions: u64,
    /// How far this aggregator's clock was ahead of the agent's at the hello, network latency included.
    pub(crate) skew_ns: i64,
    pub(crate) last_ns: i64,
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Nodes whose records it has delivered.
    pub(crate) nodes: BTreeSet<String>,
}

/// The agents that have connected since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    known: Arc<Mutex<BTreeMap<String, AgentInfo>>>,
}

impl Agents {
    /// A session started.
    pub(super) fn connect(&self, hello: &Hello, version: u32, received_ns: i64) -> SessionGuard {
        let mut known = self.known.lock();
        if known.len() >= MAX_AGENTS && !known.contains_key(&hello.agent) {
            let oldest = known.iter().filter(|(_, info)| info.sessions == 0).min_by_key(|(_, info)| info.last_ns);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                known.remove(&name);
            }
        }
        let info = known.entry(hello.agent.clone()).or_default();
        info.build.clone_from(&hello.build);
        info.version = version;
        info.epoch.clone_from(&hello.epoch);
        info.sessions += 1;
        info.skew_ns = received_ns.saturating_sub(hello.realtime_ns);
        info.last_ns = received_ns;
        SessionGuard { agents: self.clone(), agent: hello.agent.clone() }
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> BTreeMap<String, AgentInfo> {
        self.known.lock().clone()
    }
}

/// Counts an open session until it is dropped.
#[derive(Debug)]
pub(super) struct SessionGuard {
    agents: Agents,
    agent: String,
}

impl SessionGuard {
    /// A batch was received.
    pub(super) fn count(&self, records: usize, bytes: usize) {
        self.change(|info| {
            info.batches += 1;
            info.records += records as u64;
            info.bytes += bytes as u64;
            info.last_ns = now_ns();
        });
    }

    /// Records of the node were stored.
    pub(super) fn acknowledged(&self, node: &str) {
        self.change(|info| {
            if !info.nodes.contains(node) {
                info.nodes.insert(node.to_owned());
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut AgentInfo)) {
        if let Some(info) = self.agents.known.lock().get_mut(&self.agent) {
            change(info);
        }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.change(|info| info.sessions = info.sessions.saturating_sub(1));
    }
}
