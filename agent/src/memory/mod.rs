//! Memory profiler: attributes the resident memory of observed processes to call stacks.
//!
//! ```text
//!   inbox ── watch, unwatch ──▶ watcher ◀── kernel: events, and one reading a second
//!                                  │ ProfileUpdate
//!                                  ▼
//!                              symbolizer: function names of new calls
//!                                  │ SymbolizedUpdate
//!                                  ▼
//!                            ProfileStore: one profile per process ──▶ uplink: keyframes and deltas ──▶ aggregator
//!                                  ▲                                              │
//!                                  └──────────────── acknowledgements ────────────┘
//! ```
//!
//! Profiles are state, not records: they are neither in the record streams nor in the spool. A state that did not reach
//! the aggregator is superseded by the next one. The kernel counts pages independently of readers. Children of an
//! observed process are observed too, each with its own profile.

mod dictionary;
mod metrics;
mod probe;
mod profile;
mod profile_store;
mod state_parts;
mod status;
mod symbolizer;
#[cfg(test)]
mod tests;
mod tree;
mod watcher;

use std::{collections::BTreeSet, fmt, sync::Arc, thread::JoinHandle};

use chainscope_ebpf::memory::{ForeignCalls, MemoryOptions, MemoryProbe};
use crossbeam_channel::{Sender, bounded, unbounded};
pub(crate) use profile_store::ProfileStore;
use watcher::{Command, Watcher};

use crate::{
    Error,
    blocking::BlockingPool,
    pillar::{Pillar, PillarStatus},
    symbols::Symbols,
    targets::{Assignment, Inbox, TargetChange, proc::Proc},
    thread::spawn,
};

/// The running memory pillar. Its threads end when the inbox is dropped.
pub(crate) struct MemoryPillar {
    store: ProfileStore,
    threads: Vec<JoinHandle<()>>,
}

impl MemoryPillar {
    /// Starts the threads. The BPF programs are loaded when the first process is watched.
    pub(crate) fn start(proc: &Proc) -> Result<(Self, Box<dyn Inbox>), Error> {
        // Symbols of a file may take seconds: the code of the same process does not wait for them.
        let (code_pool, symbol_pool) = (
            BlockingPool::new("chainscope-code", "memory code"),
            BlockingPool::new("chainscope-elf", "memory symbols"),
        );
        let store = ProfileStore::with_heartbeats(vec![code_pool.heartbeat(), symbol_pool.heartbeat()]);
        #[expect(
            clippy::disallowed_methods,
            reason = "one command per change of a target; discovery must not wait for a pillar"
        )]
        let (commands, received) = unbounded();
        // Capacity of one: one update is being symbolized while another waits.
        let (updates, pending) = bounded(1);
        let calls = calls_on(code_pool);
        let options = MemoryOptions { proc: proc.root().to_owned(), calls, ..MemoryOptions::default() };
        let load = Box::new(move || MemoryProbe::load(&options));
        let watcher = Watcher::new(load, proc.clone(), store.clone(), received, updates);
        let watcher_thread = spawn("chainscope-memory", move || watcher.run())?;
        let (profiles, proc) = (store.clone(), proc.clone());
        let symbolizer = spawn("chainscope-symbols", move || {
            // Closes the store on a panic too, since the uplink waits for it.
            let store = CloseOnDrop(profiles);
            symbolizer::run(&pending, &store.0, Symbols::new(proc, calls_on(symbol_pool)));
        })?;
        let inbox = MemoryInbox { commands, watched: BTreeSet::new() };
        Ok((Self { store, threads: vec![watcher_thread, symbolizer] }, Box::new(inbox)))
    }

    /// Returns the profiles for the uplink.
    pub(crate) fn store(&self) -> &ProfileStore {
        &self.store
    }
}

/// Foreign calls that run on a pool.
fn calls_on(pool: BlockingPool) -> ForeignCalls {
    ForeignCalls::new(move |key, call| pool.submit(key, call, |()| ()).is_ok())
}

impl Pillar for MemoryPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::new(self.store.clone())
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // The panic hook has logged a panic; it costs the profiles, not the records.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for MemoryPillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPillar").finish_non_exhaustive()
    }
}

/// Translates target changes into commands of the watcher.
struct MemoryInbox {
    commands: Sender<Command>,
    /// Processes for which a `Watch` command was sent.
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
                Command::Unwatch { pid }
            }
            _ => return,
        };
        // A watcher that ended has logged the cause.
        let _ = self.commands.send(command);
    }

    /// Ends the profile of a process.
    fn unset(&mut self, pid: u32) {
        if self.watched.remove(&pid) {
            // A watcher that ended has logged the cause.
            let _ = self.commands.send(Command::Unwatch { pid });
        }
    }
}

impl Inbox for MemoryInbox {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        match change {
            TargetChange::Started(target) if !target.has_exited => {
                // The pid may be reused before the exit was noticed; the kernel reports the exit of the previous
                // process.
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

/// Closes the store when the symbolizer thread ends.
struct CloseOnDrop(ProfileStore);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
