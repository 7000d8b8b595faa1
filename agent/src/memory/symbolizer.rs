//! The symbolizer thread. Symbolization may take seconds, so the watcher polls the kernel on another thread.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{
    profile_store::{ProfileStore, SymbolizedUpdate},
    tree::symbolize_all,
    watcher::ProfileUpdate,
};
use crate::{
    clock::Clock,
    symbols::{MappedFile, Symbols},
};

/// Time after the last symbolized call at which copies of symbols are dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs until the watcher ends, then ends all profiles.
pub(super) fn run(updates: &Receiver<ProfileUpdate>, store: &ProfileStore, mut symbols: Symbols) {
    let mut clock = Clock::sampled();
    let mut last_used = Instant::now();
    loop {
        store.heartbeats().symbolizer.rest();
        let received = match updates.recv_timeout(IDLE_TIMEOUT) {
            Ok(received) => {
                store.heartbeats().symbolizer.beat();
                received
            }
            Err(RecvTimeoutError::Timeout) => {
                symbols.drop_copies();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        clock.resample();
        let mut update = SymbolizedUpdate {
            started: received.started,
            ended: received.ended,
            renamed: received.renamed,
            ..SymbolizedUpdate::default()
        };
        symbols.set_processes(&received.running);
        if let Some(mut reading) = received.reading {
            for module in std::mem::take(&mut reading.modules) {
                let mapped =
                    MappedFile { path: module.path, inode: module.inode, pid: module.pid, is_deleted: module.deleted };
                symbols.add_module(module.id.0, mapped);
            }
            let nodes = std::mem::take(&mut reading.nodes);
            if !nodes.is_empty() {
                last_used = Instant::now();
                update.calls = symbolize_all(&nodes, &mut symbols);
            }
            for module in std::mem::take(&mut reading.removed_modules) {
                symbols.remove_module(module.0);
            }
            update.reading = Some(reading);
        }
        received.exited.iter().for_each(|pid| symbols.release_process(*pid));
        if last_used.elapsed() >= IDLE_TIMEOUT {
            symbols.drop_copies();
        }
        update.copied_bytes = symbols.bytes();
        update.late_files = symbols.late();
        store.update(update, &clock);
    }
    store.end_all("agent stopped", &clock);
}
