//! The memory profiler: which code holds the resident memory of observed processes.
//!
//! ```text
//!   inbox ── watch, forget  ──▶ watcher ◀── kernel: events, and once a second what is held
//!                                  │ news: a reading at a time
//!                                  ▼
//!                               naming ── symbols: names of new calls
//!                                  │
//!                                  ▼
//!                                board: a profile a process ──▶ uplink: keyframes and deltas ──▶ aggregator
//!                                  ▲                                             │
//!                                  └──────────────── acknowledgements ───────────┘
//! ```
//!
//! State, not facts: nothing of it is in the streams or the spool. What an aggregator did not get is in the next state, so
//! that none of it is ever lost or late by more than a reading. The kernel counts without regard to who reads; children of
//! an observed process are observed too, each with a profile of its own.

mod board;
mod dictionary;
mod figures;
mod naming;
mod parts;
mod probe;
mod profile;
mod status;
#[cfg(test)]
mod tests;
mod tree;
mod watcher;

use std::{collections::BTreeSet, fmt, sync::Arc, thread::JoinHandle};

pub(crate) use board::Board;
use chainscope_ebpf::memory::{MemoryOptions, MemoryProbe};
use crossbeam_channel::{Sender, bounded, unbounded};
use watcher::{Command, Watcher};

use crate::{
    Error,
    pillar::{Pillar, PillarStatus},
    targets::{Assignment, Inbox, TargetChange, proc::Proc},
    thread::spawn,
};

/// The running pillar: its threads end with the last inbox.
pub(crate) struct MemoryPillar {
    board: Board,
    threads: Vec<JoinHandle<()>>,
}

impl MemoryPillar {
    /// Starts the threads; the kernel's part is loaded when there is something to watch.
    pub(crate) fn start(proc: &Proc) -> Result<(Self, Box<dyn Inbox>), Error> {
        let board = Board::default();
        let (commands, taken) = unbounded();
        // One reading is being named, one waits.
        let (news, told) = bounded(1);
        let load = Box::new(|| MemoryProbe::load(&MemoryOptions::default()));
        let watcher = Watcher::new(load, proc.clone(), board.clone(), taken, news);
        let watching = spawn("chainscope-memory", move || watcher.run())?;
        let (filled, names) = (board.clone(), proc.clone());
        let naming = spawn("chainscope-symbols", move || {
            // Also after a panic: the uplink waits for it.
            let closing = Closing(filled);
            naming::run(&told, &closing.0, names);
        })?;
        let inbox = MemoryInbox { commands, watched: BTreeSet::new() };
        Ok((Self { board, threads: vec![watching, naming] }, Box::new(inbox)))
    }

    /// The profiles, for the uplink.
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }
}

impl Pillar for MemoryPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::new(self.board.clone())
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic was printed where it happened, and costs the profiles, not the records.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for MemoryPillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPillar").finish_non_exhaustive()
    }
}

/// Turns changes of targets into commands of the watcher.
struct MemoryInbox {
    commands: Sender<Command>,
    /// Processes that the watcher was told to profile.
    watched: BTreeSet<u32>,
}

impl MemoryInbox {
    fn set(&mut self, pid: u32, assignment: &Assignment) {
        let command = match (assignment.observe.memory, self.watched.contains(&pid)) {
            (true, false) => {
                self.watched.insert(pid);
                let (node, label) = (Arc::clone(&assignment.node), Arc::clone(&assignment.label));
                Command::Watch { pid, node, label }
            }
            (false, true) => {
                self.watched.remove(&pid);
                Command::Forget { pid }
            }
            _ => return,
        };
        // A watcher that ended has reported why.
        let _ = self.commands.send(command);
    }

    /// Ends the profile of a process.
    fn unset(&mut self, pid: u32) {
        if self.watched.remove(&pid) {
            // A watcher that ended has logged the reason.
            let _ = self.commands.send(Command::Forget { pid });
        }
    }
}

impl Inbox for MemoryInbox {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        match change {
            TargetChange::Started(target) if !target.has_exited => {
                // The number of a process whose exit was not noticed yet: the kernel reports that one's end.
                self.watched.remove(&target.facts.pid);
                self.set(target.facts.pid, &target.assignment);
            }
            TargetChange::Changed(pid, assignment) => self.set(*pid, assignment),
            TargetChange::Released(pid) => self.unset(*pid),
            // The kernel reports the exit to the watcher.
            TargetChange::Exited(pid) => {
                self.watched.remove(pid);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Closes the board with the thread that fills it.
struct Closing(Board);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
