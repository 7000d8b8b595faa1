//! The memory profiler: which code holds the resident memory of observed processes.
//!
//! ```text
//!   worker ── watch, forget ──▶ watcher ◀── kernel: events, and once a second what is held
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
#[cfg(test)]
mod tests;
mod tree;
mod watcher;

use std::thread::JoinHandle;

pub(crate) use board::Board;
use chainscope_ebpf::memory::{MemoryOptions, MemoryProbe};
use crossbeam_channel as channel;
pub(crate) use figures::{Figures, KINDS, NodeFigures, RESIDENT};
pub(crate) use watcher::Command;
use watcher::Watcher;

use crate::{Error, agent::spawn, targets::proc::Proc};

/// The profiler's threads, which end with the last sender of commands.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) board: Board,
    threads: Vec<JoinHandle<()>>,
}

impl Memory {
    /// Starts it; the kernel's part is loaded when there is something to watch.
    pub(crate) fn start(proc: &Proc) -> Result<(Self, channel::Sender<Command>), Error> {
        let board = Board::default();
        let (commands, taken) = channel::unbounded();
        // One reading is being named, one waits.
        let (news, told) = channel::bounded(1);
        let load = Box::new(|| MemoryProbe::load(&MemoryOptions::default()));
        let watcher = Watcher::new(load, proc.clone(), board.clone(), taken, news);
        let watching = spawn("chainscope-memory", move || watcher.run())?;
        let (filled, names) = (board.clone(), proc.clone());
        let naming = spawn("chainscope-symbols", move || {
            // Also after a panic: the uplink waits for it.
            let closing = Closing(filled);
            naming::run(&told, &closing.0, names);
        })?;
        Ok((Self { board, threads: vec![watching, naming] }, commands))
    }

    /// Waits for the threads. All senders of commands must be gone.
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic was printed where it happened, and costs the profiles, not the records.
            let _ = thread.join();
        }
    }
}

/// Closes the board with the thread that fills it.
struct Closing(Board);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
