//! Wakes readers that wait for something new.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    generation: u64,
    callbacks: Vec<(u64, Callback)>,
    next_callback: u64,
}

/// A counter that grows with everything new, its waiters and callbacks.
#[derive(Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    moved: Condvar,
}

/// Keeps a callback registered; dropping it ends the calls.
#[must_use = "dropping the subscription ends it"]
pub struct Subscription {
    watch: Weak<Watch>,
    number: u64,
}

impl Watch {
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Blocks until the generation is not `seen` or the time is up.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state.lock();
        while state.generation == seen {
            match deadline {
                Some(deadline) if self.moved.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
                None => self.moved.wait(&mut state),
            }
        }
        state.generation
    }

    pub(crate) fn subscribe(self: &Arc<Self>, callback: Callback) -> Subscription {
        let mut state = self.state.lock();
        let number = state.next_callback;
        state.next_callback += 1;
        state.callbacks.push((number, callback));
        Subscription { watch: Arc::downgrade(self), number }
    }

    /// Something new is readable. No lock is held while the callbacks run.
    pub(crate) fn notify(&self) {
        let callbacks: Vec<Callback> = {
            let mut state = self.state.lock();
            state.generation += 1;
            state.callbacks.iter().map(|(_, callback)| callback.clone()).collect()
        };
        self.moved.notify_all();
        callbacks.iter().for_each(|callback| callback());
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.upgrade() {
            watch.state.lock().callbacks.retain(|(number, _)| *number != self.number);
        }
    }
}
