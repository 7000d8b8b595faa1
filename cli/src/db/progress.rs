//! Progress on standard error of what may take long.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::terminal;

/// Interval between two lines.
const INTERVAL: Duration = Duration::from_secs(2);

/// How far a job is, in words.
#[derive(Default)]
pub(super) struct Progress(Mutex<String>);

impl Progress {
    pub(super) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Does a job, and says so: at its start, and every few seconds until it is done.
pub(super) fn report<T>(what: &str, job: impl FnOnce(&Progress) -> T) -> T {
    terminal::note(&format!("chainscope: {what}"));
    let (progress, start) = (Progress::default(), Instant::now());
    // Dropped, not sent on, when the job ends, also by a panic.
    let (running, ended) = sync_channel::<()>(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let ended = ended;
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let (seconds, state) = (start.elapsed().as_secs(), progress.get());
                let comma = if state.is_empty() { "" } else { ", " };
                terminal::note(&format!("chainscope: {what}: {seconds} s{comma}{state}"));
            }
        });
        let _running = running;
        job(&progress)
    })
}
