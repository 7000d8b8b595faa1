//! Threads for calls that may never return: reads of files and memory of other processes, requests to daemons.
//!
//! Each call has a key, such as the node or container that it reads. Calls of one key run one after the other, so that
//! those that do not return occupy one thread, and delay only calls of the same key.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use crate::thread::{Heartbeat, spawn};

/// Maximum number of threads: also the number of keys whose calls do not return.
const MAX_THREADS: usize = 128;
/// Maximum number of calls of one key that wait.
const MAX_WAITING: usize = 64;
/// Time after which a thread without calls ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the call; the result passes its value on.
type Call = Box<dyn FnOnce() -> Delivery + Send>;
type Delivery = Box<dyn FnOnce() + Send>;
/// A call with its key.
type Keyed = (String, Call);

/// Too many calls do not return.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BlockingPool {
    name: &'static str,
    pool: Arc<Mutex<Pool>>,
    calls: (Sender<Keyed>, Receiver<Keyed>),
    /// Its age is that of the oldest call that has not returned.
    heartbeat: Heartbeat,
}

#[derive(Default)]
struct Pool {
    threads: usize,
    /// Threads that wait for a call and have not been assigned one.
    idle: usize,
    running: BTreeMap<String, Running>,
}

struct Running {
    since: Instant,
    waiting: VecDeque<Call>,
}

impl BlockingPool {
    /// `name` is that of its threads, `stage` that of its heartbeat.
    pub(crate) fn new(name: &'static str, stage: &'static str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "one value per idle thread, of which there are few")]
        let calls = unbounded();
        Self { name, pool: Arc::default(), calls, heartbeat: Heartbeat::of_foreign_calls(stage) }
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Runs the call and passes its result to `deliver`, both on a thread of the pool.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        key: &str,
        call: impl FnOnce() -> T + Send + 'static,
        deliver: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), Refused> {
        let call: Call = Box::new(move || {
            let value = call();
            Box::new(move || deliver(value))
        });
        let mut pool = self.pool.lock();
        if let Some(running) = pool.running.get_mut(key) {
            if running.waiting.len() >= MAX_WAITING {
                return Err(Refused);
            }
            running.waiting.push_back(call);
            return Ok(());
        }
        if pool.idle > 0 {
            pool.idle -= 1;
        } else {
            if pool.threads >= MAX_THREADS {
                return Err(Refused);
            }
            let own = self.clone();
            spawn(self.name, move || own.run()).map_err(|_| Refused)?;
            pool.threads += 1;
        }
        pool.running.insert(key.to_owned(), Running { since: Instant::now(), waiting: VecDeque::new() });
        self.show(&pool);
        // A receiver is in `self`.
        let _ = self.calls.0.send((key.to_owned(), call));
        Ok(())
    }

    /// Runs the call and waits for its result, at most `timeout`. Returns none at once if an earlier call of the key has
    /// not returned.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        key: &str,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.pool.lock().running.contains_key(key) {
            return None;
        }
        let (sender, result) = bounded(1);
        let deliver = move |value| {
            // The caller does not wait any more.
            let _ = sender.send(value);
        };
        self.submit(key, call, deliver).ok()?;
        result.recv_timeout(timeout).ok()
    }

    /// A thread of the pool.
    fn run(&self) {
        loop {
            let Ok((key, mut call)) = self.calls.1.recv_timeout(IDLE_TIMEOUT) else {
                let mut pool = self.pool.lock();
                if pool.idle > 0 {
                    pool.idle -= 1;
                    pool.threads -= 1;
                    return;
                }
                continue;
            };
            loop {
                // The panic hook has printed a panic; the caller gets no result.
                let delivery = catch_unwind(AssertUnwindSafe(call));
                let next = self.returned(&key);
                if let Ok(deliver) = delivery {
                    deliver();
                }
                match next {
                    Some(next) => call = next,
                    None => break,
                }
            }
        }
    }

    /// The call of the key that runs has returned. Returns the next one; without one the thread is idle.
    fn returned(&self, key: &str) -> Option<Call> {
        let mut pool = self.pool.lock();
        let running = pool.running.get_mut(key)?;
        let next = running.waiting.pop_front();
        match next {
            Some(_) => running.since = Instant::now(),
            None => {
                pool.running.remove(key);
                pool.idle += 1;
            }
        }
        self.show(&pool);
        next
    }

    fn show(&self, pool: &Pool) {
        self.heartbeat.set(pool.running.values().map(|running| running.since).min());
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_call_that_does_not_return_delays_only_its_key() {
        let pool = BlockingPool::new("test", "test");
        let (release, released) = bounded::<()>(0);
        assert_eq!(pool.call("stuck", Duration::ZERO, move || released.recv().is_err()), None);
        let (sender, delivered) = bounded(16);
        let deliver = |number: u32| {
            let sender = sender.clone();
            pool.submit("stuck", move || number, move |number| sender.send(number).unwrap()).unwrap();
        };
        (0..3).for_each(deliver);
        for number in 0..100 {
            assert_eq!(pool.call("other", LONG, move || number), Some(number));
            assert_eq!(pool.call("stuck", LONG, || ()), None, "at once");
        }
        assert!(delivered.is_empty());
        assert!(pool.heartbeat.age() > Duration::ZERO);
        assert_eq!(pool.pool.lock().threads, 2);
        drop(release);
        assert_eq!((0..3).map(|_| delivered.recv_timeout(LONG).unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
        // The key is free before the result is delivered.
        let (sender, last) = bounded(1);
        pool.submit("stuck", || (), move |()| sender.send(()).unwrap()).unwrap();
        last.recv_timeout(LONG).unwrap();
        assert_eq!(pool.call("stuck", LONG, || 7), Some(7));
    }

    #[test]
    fn threads_and_waiting_calls_are_bounded_and_a_panic_frees_its_key() {
        let pool = BlockingPool::new("test", "test");
        assert_eq!(pool.call("panic", LONG, || -> u32 { panic!("a test") }), None);
        let again = chainscope_testing::wait::until("the key to be free", || pool.call("panic", LONG, || 1));
        assert_eq!(again, 1);
        let (_release, released) = bounded::<()>(0);
        let block = |key: &str| {
            let released = released.clone();
            pool.submit(key, move || released.recv().is_err(), |_| ())
        };
        for key in 0..MAX_THREADS {
            block(&key.to_string()).unwrap();
        }
        assert_eq!(block("one more"), Err(Refused));
        for _ in 0..MAX_WAITING {
            block("0").unwrap();
        }
        assert_eq!(block("0"), Err(Refused));
    }
}
