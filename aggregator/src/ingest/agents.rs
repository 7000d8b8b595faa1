//! Who delivers records: what is known of each agent, for `/v2/stats` and `/nodes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_proto::v1::Hello;
use parking_lot::Mutex;

use crate::clock::now_ns;

/// Agents that are remembered; the one that was quiet longest is forgotten first.
const MOST: usize = 1000;

/// What is known of an agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct AgentInfo {
    pub(crate) build: String,
    pub(crate) version: u32,
    /// Of its latest session.
    pub(crate) epoch: Vec<u8>,
    /// Sessions that are open.
    pub(crate) sessions: u64,
    /// By how much this aggregator's clock was ahead of the agent's at the hello. What the hello took to travel is part
    /// of it.
    pub(crate) skew_ns: i64,
    pub(crate) last_ns: i64,
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Nodes that it sent records of.
    pub(crate) nodes: BTreeSet<String>,
}

/// All agents that were heard of since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    known: Arc<Mutex<BTreeMap<String, AgentInfo>>>,
}

impl Agents {
    /// A session began.
    pub(super) fn connect(&self, hello: &Hello, version: u32, received_ns: i64) -> Connected {
        let mut known = self.known.lock();
        if known.len() >= MOST && !known.contains_key(&hello.agent) {
            let quiet = known.iter().filter(|(_, info)| info.sessions == 0).min_by_key(|(_, info)| info.last_ns);
            if let Some(name) = quiet.map(|(name, _)| name.clone()) {
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
        Connected { agents: self.clone(), agent: hello.agent.clone() }
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> BTreeMap<String, AgentInfo> {
        self.known.lock().clone()
    }
}

/// An open session; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    agents: Agents,
    agent: String,
}

impl Connected {
    /// A batch came.
    pub(super) fn count(&self, records: usize, bytes: usize) {
        self.change(|info| {
            info.batches += 1;
            info.records += records as u64;
            info.bytes += bytes as u64;
            info.last_ns = now_ns();
        });
    }

    /// Records of the node are stored up to there.
    pub(super) fn acknowledged(&self, node: &str, _next_sequence: u64) {
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

impl Drop for Connected {
    fn drop(&mut self) {
        self.change(|info| info.sessions = info.sessions.saturating_sub(1));
    }
}
