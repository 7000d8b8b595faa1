//! What a worker begins with: the sessions and streams that the last run left behind, and whose records are expected.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use chainscope_proto::v1::Journal;
use crossbeam_channel::Sender;

use super::{Cluster, Worker};
use crate::{
    Error,
    clock::Clock,
    config::Config,
    delivery::{RecordStreams, StreamStatus},
    folder::Folder,
    memory,
    network::holding::Holding,
    network::interpreter::{Interpreter, records},
    network::journal::{self, Waiting},
    network::reader::Command,
    operator::{pods::PodMap, report::Ledger},
    targets::{Machine, Plan, Roster, entries::EntryPlan, pods::PodPlan, proc::Proc},
};

impl Worker {
    /// Reads what the last run left behind, and tells of the time since.
    pub(crate) fn new(
        config: &Config,
        folder: Folder,
        streams: RecordStreams,
        commands: Sender<Command>,
        memory: Sender<memory::Command>,
        cluster: Option<Cluster>,
    ) -> Result<Self, Error> {
        let boot_id = journal::boot_id();
        let sessions = folder.journal()?.map_or_else(Vec::new, |bytes| journal::read(&bytes, &boot_id));
        if !sessions.is_empty() {
            tracing::info!(sessions = sessions.len(), "the last run left live sessions");
        }
        let clock = Clock::sampled();
        let nodes = match &cluster {
            Some(cluster) => nodes_of(&cluster.kept),
            None => config.nodes.iter().map(|node| node.name.clone()).collect(),
        };
        streams.expect(&nodes);
        if let Some(from) = folder.settled_ns()? {
            // Where no configuration was kept nobody knows whose streams are out of use.
            let is_any = cluster.as_ref().is_some_and(|cluster| cluster.kept.generation == 0);
            for stream in streams.status().iter().filter(|stream| is_any || missed_something(stream, &nodes)) {
                streams.push(&stream.node, records::unknown_loss("agent restarted", from, clock.now()));
            }
        }
        let plan = match (&config.cluster, &cluster) {
            (Some(config), Some(cluster)) => {
                let mut plan = PodPlan::new(config.watch.clone());
                plan.set(Arc::clone(&cluster.kept));
                Plan::Pods(plan)
            }
            _ => Plan::Entries(EntryPlan::new(&config.nodes)),
        };
        let proc = Proc::at(&config.host_proc);
        let waiting = Waiting::new(boot_id, sessions);
        let now = Instant::now();
        Ok(Self {
            interpreter: Interpreter::new(streams.clone(), clock, config.limits, waiting),
            roster: Roster::new(Machine { proc: proc.clone() }, plan),
            holding: Holding::default(),
            proc,
            commands,
            memory,
            streams,
            nodes,
            folder,
            ports: BTreeSet::new(),
            programs: BTreeSet::new(),
            observed: HashMap::new(),
            ends: HashMap::new(),
            unsaid: HashMap::new(),
            written: Journal::default(),
            looked: now,
            noted: now,
            scanned: now,
            identities: (now, now),
            cluster,
            serial: 0,
            ledger: Ledger::default(),
            figures: Arc::default(),
            limit_bytes: config.spool_bytes.unwrap_or(config.queue_bytes as u64),
        })
    }

    /// Nodes that records are expected of: of the configuration, and of processes whose capture has not ended yet.
    pub(super) fn expected_nodes(&self) -> BTreeSet<String> {
        let mut nodes = match self.roster.plan() {
            Plan::Pods(plan) => nodes_of(plan.map()),
            Plan::Entries(_) => self.nodes.clone(),
        };
        nodes.extend(self.observed.values().map(|observed| observed.node.to_string()));
        nodes
    }
}

fn nodes_of(map: &PodMap) -> BTreeSet<String> {
    map.pods.values().map(|pod| pod.assignment.node.to_string()).collect()
}

/// Whether records of a stream are missing while no agent runs: its node is configured, or it still has records to send.
/// The others are of nodes that were deleted, and a record would make them appear again.
fn missed_something(stream: &StreamStatus, nodes: &BTreeSet<String>) -> bool {
    // One entry can have several processes: the further ones are named NODE@NAMESPACE.
    let entry = stream.node.rsplit_once('@').map_or("", |(entry, _)| entry);
    nodes.contains(&stream.node) || nodes.contains(entry) || stream.pending_records > 0
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{never, unbounded};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        config::NodeConfig,
        operator::{
            Report,
            pods::tests::{pod, snapshot},
        },
    };

    /// Streams with records after an agent restarted, of these.
    fn told(nodes: &[&str], pods: Option<Arc<PodMap>>, streams: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let open = || RecordStreams::open(&folder, 1 << 20, Some(1 << 20), streams.iter().copied()).unwrap();
        let before = open();
        assert!(before.push("pending", records::unknown_loss("test", 1, 2)));
        before.close();
        drop(before);
        folder.set_settled_ns(1).unwrap();
        let named = |name: &&str| NodeConfig { name: (*name).to_owned(), ..NodeConfig::default() };
        let config = Config::new(dir.path().to_owned(), nodes.iter().map(named).collect());
        let cluster = pods.map(|kept| Cluster { maps: never(), reports: watch::channel(Report::default()).0, kept });
        let streams = open();
        Worker::new(&config, folder.clone(), streams.clone(), unbounded().0, unbounded().0, cluster).unwrap();
        streams.close();
        let told = streams.status().into_iter().filter(|stream| stream.pending_records > 0);
        told.map(|stream| format!("{} {}", stream.node, stream.pending_records)).collect()
    }

    #[test]
    fn a_restart_is_no_news_of_nodes_that_are_gone() {
        let streams = ["default/octez", "default/gone", "pending"];
        let kept = |generation| {
            let mut map = PodMap::default();
            map.apply(snapshot(generation, vec![pod("a", 'a')]), true).unwrap();
            Arc::new(map)
        };
        assert_eq!(told(&[], Some(kept(1)), &streams), ["default/octez 1", "pending 2"]);
        let all = ["default/gone 1", "default/octez 1", "pending 2"];
        assert_eq!(told(&[], Some(Arc::default()), &streams), all, "nobody knows which are gone");
        let streams = ["9732", "9732@4026531840", "gone", "gone@4026531840", "pending"];
        assert_eq!(told(&["9732", "new"], None, &streams), ["9732 1", "9732@4026531840 1", "pending 2"]);
    }
}
