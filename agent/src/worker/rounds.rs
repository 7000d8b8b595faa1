//! What the worker does once in a while: looks for ends of processes, new ones and identities, writes the journal.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Journal;
use prost::Message as _;

use super::{EXITED, Worker};
use crate::{Error, network::interpreter::records, network::reader::Command};

/// How often ends of processes are looked for.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the journal is written, the clock sampled, and it is said how it goes.
pub(super) const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How often every process is looked at while a node has none, and otherwise.
const SCAN_EVERY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// How often a missing identity of a pod is looked for, and one that is there is looked at.
const IDENTITIES_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

impl Worker {
    pub(super) fn look(&mut self) -> Result<(), Error> {
        self.looked = Instant::now();
        for ended in self.roster.ended() {
            tracing::info!(pid = ended.pid, observed = ended.was_observed, "the process ended");
            self.wind_up(Command::RemoveProcess { pid: ended.pid }, EXITED);
        }
        for change in self.roster.overdue(self.looked) {
            self.apply(Some(change), "found")?;
        }
        let pause = if self.roster.is_incomplete() { SCAN_EVERY.0 } else { SCAN_EVERY.1 };
        if self.scanned.elapsed() >= pause {
            self.watch();
            self.scan()?;
        }
        self.look_for_identities();
        // A new session at once: without its connection messages a restart could not go on with it.
        if self.interpreter.take_new_session() || self.noted.elapsed() >= NOTE_EVERY {
            self.note();
        }
        self.tell();
        self.pass_verdicts();
        Ok(())
    }

    /// Of pods: their identities are reported, whether or not a session needs one.
    fn look_for_identities(&mut self) {
        if self.cluster.is_none() || self.identities.0.elapsed() < IDENTITIES_EVERY.0 {
            return;
        }
        let all = self.identities.1.elapsed() >= IDENTITIES_EVERY.1;
        self.interpreter.look_for_identities(all);
        self.identities.0 = Instant::now();
        if all {
            self.identities.1 = self.identities.0;
        }
    }

    /// Brings the ports and programs that the kernel watches up to date: a named namespace may have appeared.
    pub(crate) fn watch(&mut self) {
        let ports = self.roster.watched_ports();
        for (netns, port) in ports.difference(&self.ports) {
            self.send(Command::WatchPort { netns: *netns, port: *port });
        }
        for (netns, port) in self.ports.difference(&ports) {
            self.send(Command::UnwatchPort { netns: *netns, port: *port });
        }
        let programs = self.roster.watched_programs();
        for name in programs.difference(&self.programs) {
            self.send(Command::WatchProgram(name.clone()));
        }
        for name in self.programs.difference(&programs) {
            self.send(Command::UnwatchProgram(name.clone()));
        }
        (self.ports, self.programs) = (ports, programs);
    }

    pub(crate) fn scan(&mut self) -> Result<(), Error> {
        for change in self.roster.scan() {
            self.apply(Some(change), "found")?;
        }
        // Sessions of the last run whose sockets are gone.
        for netns in self.interpreter.waiting_namespaces() {
            if let Some(pid) = self.roster.process_in(netns) {
                let inodes: HashSet<u64> = self.proc.sockets(pid).iter().map(|socket| socket.inode).collect();
                if !inodes.is_empty() {
                    self.interpreter.drop_vanished(netns, &inodes);
                }
            }
        }
        self.scanned = Instant::now();
        Ok(())
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
        let now = self.interpreter.clock.now();
        if journal != self.written {
            self.folder.set_journal(&journal.encode_to_vec())?;
            self.written = journal;
        }
        if self.interpreter.take_activity() || self.streams.oldest_volatile_ns().is_some() {
            self.folder.set_settled_ns(self.streams.oldest_volatile_ns().map_or(now, |oldest| oldest.min(now)))?;
        }
        Ok(())
    }
}
