//! What the thread does at intervals: identities are read again, the session journal is written, the clock sampled, and counts
//! are published.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Journal;
use prost::Message as _;

use super::{Known, Worker};
use crate::{
    Error,
    figures::LiveTally,
    network::{figures, interpreter::records},
    pillar::RecordSink,
};

/// How often the journal is written, the clock sampled, and the counts published.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// How often sockets are listed while sessions of the last run wait for theirs.
const SOCKETS_INTERVAL: Duration = Duration::from_secs(5);
/// How often a missing identity of a pod is read.
const MISSING_IDENTITY_INTERVAL: Duration = Duration::from_secs(2);
/// How often an identity of a pod that was read is read again if its file changed.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(30);

impl<S: RecordSink> Worker<S> {
    pub(super) fn poll(&mut self) {
        self.polled = Instant::now();
        for pid in self.interpreter.expire_identities(self.polled) {
            self.end_wait(pid);
        }
        self.reload_identities();
        self.retry_refused();
        if self.sockets_listed.is_none_or(|listed| listed.elapsed() >= SOCKETS_INTERVAL) {
            self.drop_vanished_sessions();
        }
        // A new session at once: without its connection messages a restart could not go on with it.
        if self.interpreter.take_new_session() || self.noted.elapsed() >= NOTE_INTERVAL {
            self.note();
            self.publish();
        }
        self.send_verdicts();
    }

    fn reload_identities(&mut self) {
        if !self.reports_identities || self.missing_identities_read.elapsed() < MISSING_IDENTITY_INTERVAL {
            return;
        }
        let all = self.identities_read.elapsed() >= IDENTITY_INTERVAL;
        self.interpreter.reload_identities(all);
        self.missing_identities_read = Instant::now();
        if all {
            self.identities_read = self.missing_identities_read;
        }
    }

    /// Ends the sessions of the last run whose sockets are gone.
    fn drop_vanished_sessions(&mut self) {
        for netns in self.interpreter.waiting_namespaces() {
            let of_namespace = |(_, known): &(&u32, &Known)| known.netns == netns;
            let Some(pid) = self.targets.iter().find(of_namespace).map(|(pid, _)| *pid) else { continue };
            let inodes: HashSet<u64> = self.proc.sockets(pid).iter().map(|socket| socket.inode).collect();
            if !inodes.is_empty() {
                self.interpreter.drop_vanished(netns, &inodes);
            }
        }
        self.sockets_listed = Some(Instant::now());
    }

    /// Samples the clock and writes down what a restart would need.
    pub(super) fn note(&mut self) {
        self.noted = Instant::now();
        if let Some(jump) = self.interpreter.clock.resample() {
            warn_limited!(jump_ms = jump / 1_000_000, "the clock of this host was set");
            let time = self.interpreter.clock.now();
            for node in self.interpreter.nodes() {
                let detail = format!("by {} ms", jump / 1_000_000);
                self.interpreter.push(&node, records::target_event(time, "", "clock jumped", 0, detail));
            }
        }
        let journal = self.interpreter.journal();
        // A full disk costs what a restart would need, not the recording.
        if let Err(error) = self.write_journal(journal) {
            warn_limited!(%error, "the session journal cannot be written");
        }
    }

    pub(super) fn write_journal(&mut self, journal: Journal) -> Result<(), Error> {
        if journal != self.written {
            self.folder.set_journal(&journal.encode_to_vec())?;
            self.written = journal;
        }
        Ok(())
    }

    pub(super) fn live(&self, pid: u32) -> Option<LiveTally> {
        let (known, tally) = (self.targets.get(&pid)?, self.interpreter.tally(pid)?);
        Some(LiveTally { node: Arc::clone(&known.node), pod: known.pod.clone(), tally })
    }

    /// Publishes the counts for metrics and reports.
    pub(super) fn publish(&self) {
        let live: BTreeMap<u32, LiveTally> =
            self.targets.keys().filter_map(|pid| Some((*pid, self.live(*pid)?))).collect();
        let held = figures::HoldingFigures {
            processes: self.holding.processes(),
            bytes: self.holding.bytes(),
            discarded: self.holding.discarded(),
        };
        self.figures.update(live, held);
    }
}
