//! Calls that read files and memory of observed processes. They may never return: a file system in user space does not
//! answer, or a lock of the address space is held.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A call whose result is passed on by itself.
pub type ForeignCall = Box<dyn FnOnce() + Send>;
type Submit = dyn Fn(&str, ForeignCall) -> bool + Send + Sync;
/// Number of calls that are late, by key.
type LateCalls = Arc<Mutex<BTreeMap<String, u32>>>;

/// Runs foreign calls and waits for them with a deadline.
///
/// Each call has a key, such as the control group of the process that it reads. The more keys have calls that are late, the
/// shorter is the deadline of others, and a call of such a key is not waited for. All waits for `n` keys together are
/// therefore of about `ln n` deadlines.
#[derive(Clone)]
pub struct ForeignCalls {
    submit: Arc<Submit>,
    late: LateCalls,
}

/// Result of a foreign call.
#[derive(Debug)]
pub enum Answer<T> {
    /// The call has returned.
    Ready(T),
    /// The call has not returned before the deadline.
    Late(LateAnswer<T>),
    /// The call was not started, or panicked.
    Refused,
}

/// The result of a call that is late.
#[derive(Debug)]
pub struct LateAnswer<T>(Receiver<T>);

impl<T> LateAnswer<T> {
    /// The result; the answer itself if the call has not returned yet.
    pub fn take(self) -> Answer<T> {
        match self.0.try_recv() {
            Ok(value) => Answer::Ready(value),
            Err(TryRecvError::Empty) => Answer::Late(self),
            Err(TryRecvError::Disconnected) => Answer::Refused,
        }
    }
}

impl ForeignCalls {
    /// Calls are run by `submit`, which returns at once: false if a call of this key cannot be started. Calls of one key
    /// should run one after the other.
    pub fn new(submit: impl Fn(&str, ForeignCall) -> bool + Send + Sync + 'static) -> Self {
        Self { submit: Arc::new(submit), late: LateCalls::default() }
    }

    /// Each call is run by a thread of its own.
    #[must_use]
    pub fn threads() -> Self {
        Self::new(|_, call| thread::Builder::new().spawn(call).is_ok())
    }

    /// Starts a call, which is waited for at most `timeout`; `None` if it cannot be started.
    pub fn start<T: Send + 'static>(
        &self,
        key: &str,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Started<T>> {
        let timeout = {
            let late = lock(&self.late);
            let others = u32::try_from(late.len()).unwrap_or(u32::MAX);
            if late.contains_key(key) { Duration::ZERO } else { timeout / others.saturating_add(1) }
        };
        let deadline = Instant::now() + timeout;
        let (sender, result) = sync_channel(1);
        let state = Arc::new(Mutex::new(CallState::default()));
        let returned = Returned { state: Arc::clone(&state), late: Arc::clone(&self.late), key: key.to_owned() };
        let run = move || {
            let returned = returned;
            let value = call();
            drop(returned);
            // Fails if nobody waits for the result any more.
            let _ = sender.send(value);
        };
        let is_started = (self.submit)(key, Box::new(run));
        is_started.then(|| Started { result, state, late: Arc::clone(&self.late), key: key.to_owned(), deadline })
    }

    /// Runs a call and waits for its result, at most `timeout`.
    pub fn call<T: Send + 'static>(
        &self,
        key: &str,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<T> {
        self.start(key, timeout, call).map_or(Answer::Refused, Started::wait)
    }
}

/// A call that was started.
#[derive(Debug)]
pub struct Started<T> {
    result: Receiver<T>,
    state: Arc<Mutex<CallState>>,
    late: LateCalls,
    key: String,
    deadline: Instant,
}

impl<T> Started<T> {
    /// When the call is late.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits for the result until the deadline.
    pub fn wait(self) -> Answer<T> {
        match self.result.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(value) => return Answer::Ready(value),
            Err(RecvTimeoutError::Disconnected) => return Answer::Refused,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut state = lock(&self.state);
        if !state.has_returned {
            state.is_late = true;
            *lock(&self.late).entry(self.key).or_default() += 1;
        }
        drop(state);
        LateAnswer(self.result).take()
    }
}

impl fmt::Debug for ForeignCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignCalls").field("late", &self.late).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct CallState {
    has_returned: bool,
    is_late: bool,
}

/// Marks a call as returned when it is dropped, also by a panic.
struct Returned {
    state: Arc<Mutex<CallState>>,
    late: LateCalls,
    key: String,
}

impl Drop for Returned {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.has_returned = true;
        if state.is_late {
            let mut late = lock(&self.late);
            match late.get_mut(&self.key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(late.remove(&self.key)),
            }
        }
    }
}

/// Locks a mutex, although another thread may have panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_late_call_is_waited_for_once_and_its_result_is_kept() {
        let calls = ForeignCalls::threads();
        let (release, released) = sync_channel::<()>(0);
        let stuck = move || released.recv().is_err();
        let Answer::Late(late) = calls.call("a", Duration::from_millis(10), stuck) else { panic!("it is late") };
        let Answer::Late(late) = late.take() else { panic!("it is still late") };
        let began = Instant::now();
        let (_keep, never) = sync_channel::<()>(0);
        let other = calls.call("a", LONG, move || never.recv().is_err());
        assert!(matches!(other, Answer::Late(_)), "a call of the same key is not waited for");
        assert!(began.elapsed() < LONG);
        assert!(matches!(calls.call("b", LONG, || 7), Answer::Ready(7)));
        assert_eq!(lock(&calls.late).get("a"), Some(&2));
        drop(release);
        let mut next = Some(late);
        let value = chainscope_testing::wait::until("the result", || match next.take()?.take() {
            Answer::Ready(value) => Some(value),
            Answer::Late(late) => {
                next = Some(late);
                None
            }
            Answer::Refused => panic!("it has a result"),
        });
        assert!(value);
        assert_eq!(lock(&calls.late).get("a"), Some(&1));
    }

    #[test]
    fn a_call_that_is_not_started_or_panics_is_refused() {
        assert!(matches!(ForeignCalls::new(|_, _| false).call("a", LONG, || 1), Answer::Refused));
        let answer: Answer<()> = ForeignCalls::threads().call("a", LONG, || panic!("a test"));
        assert!(matches!(answer, Answer::Refused));
    }
}
