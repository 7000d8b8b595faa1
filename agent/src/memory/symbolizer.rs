//! The thread that finds names, which may take seconds: the kernel is polled by another.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{
    board::{Board, Update},
    tree::name_all,
    watcher::News,
};
use crate::{
    clock::Clock,
    symbols::{MappedFile, Symbols},
    targets::proc::Proc,
};

/// How long symbols are kept in memory after the last name was asked for.
const REST_AFTER: Duration = Duration::from_secs(60);

/// Runs until the watcher ends; then all profiles end.
pub(super) fn run(news: &Receiver<News>, board: &Board, proc: Proc) {
    let mut symbols = Symbols::new(proc);
    let mut clock = Clock::sampled();
    let mut asked = Instant::now();
    loop {
        let news = match news.recv_timeout(REST_AFTER) {
            Ok(news) => news,
            Err(RecvTimeoutError::Timeout) => {
                symbols.rest();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        clock.resample();
        let mut update = Update { began: news.began, ended: news.ended, renamed: news.renamed, ..Update::default() };
        symbols.set_processes(&news.live);
        if let Some(mut reading) = news.reading {
            for module in std::mem::take(&mut reading.modules) {
                let mapped =
                    MappedFile { path: module.path, inode: module.inode, pid: module.pid, is_deleted: module.deleted };
                symbols.see(module.id.0, mapped);
            }
            let nodes = std::mem::take(&mut reading.nodes);
            if !nodes.is_empty() {
                asked = Instant::now();
                update.calls = name_all(&nodes, &mut symbols);
            }
            update.reading = Some(reading);
        }
        news.gone.iter().for_each(|pid| symbols.leave(*pid));
        if asked.elapsed() >= REST_AFTER {
            symbols.rest();
        }
        update.copied_bytes = symbols.bytes();
        board.update(update, &clock);
    }
    board.end_all("agent stopped", &clock);
}
