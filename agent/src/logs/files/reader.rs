//! Schedules the sources: each is polled on a thread of the pool, and none waits for another.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use crossbeam_channel::{Receiver, Sender, select, unbounded};
use parking_lot::Mutex;

use super::{
    follow::Progress,
    location::LogLocation,
    positions::Positions,
    source::{Source, SourceOptions},
};
use crate::{
    blocking::BlockingPool,
    logs::{
        emit::LogSink,
        figures::{Figures, SourceCounts},
    },
    thread::Heartbeat,
};

/// Interval of polls of a source without new lines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of attempts while the record stream has no space.
const FULL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of attempts to read a file that cannot be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which positions are written.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a container that has exited is read after its last line.
const DRAIN_GRACE: Duration = Duration::from_secs(2);
/// How long the end of the pillar waits for polls that are under way.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A source to follow.
#[derive(Debug, Clone)]
pub(crate) struct SourceSpec {
    pub(crate) node: Arc<str>,
    pub(crate) location: LogLocation,
    pub(crate) options: SourceOptions,
}

/// Commands to the reader.
#[derive(Debug)]
pub(crate) enum Command {
    /// Follow a source, as long as the process runs if there is one; or follow it with other options.
    Follow {
        pid: Option<u32>,
        source: SourceSpec,
    },
    /// The log of the process is not recorded any more.
    Released(u32),
    /// The process exited: what it has written is read to the end.
    Exited(u32),
    Stop,
}

/// Node and location.
type SourceKey = (Arc<str>, LogLocation);

type PollResult = (SourceKey, Polled);

/// The thread's state.
pub(crate) struct Reader<S> {
    sink: S,
    positions: Arc<Positions>,
    figures: Arc<Figures>,
    pool: BlockingPool,
    commands: Receiver<Command>,
    poll_results: (Sender<PollResult>, Receiver<PollResult>),
    slots: BTreeMap<SourceKey, Slot<S>>,
    saved: Instant,
    heartbeat: Heartbeat,
}

struct Slot<S> {
    source: Arc<Mutex<Source<S>>>,
    /// Observed processes that write to it.
    pids: BTreeSet<u32>,
    state: State,
    /// Shared with the source: a change holds for what is read from then on.
    options: Arc<Mutex<SourceOptions>>,
    due: Instant,
    is_polling: bool,
    is_waiting: bool,
    has_failed: bool,
    /// When a line was read last.
    active: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Followed,
    /// Its processes have exited: it is read to the end.
    Draining,
    /// It has been read to the end, and waits for space.
    Drained,
    /// It is not to be recorded any more.
    Released,
}

/// Result of a call.
enum Polled {
    Lines(Progress, io::Result<()>),
    /// Whether all of the rest was accepted.
    Finished(bool),
}

impl<S: LogSink> Reader<S> {
    pub(crate) fn new(
        sink: S,
        positions: Positions,
        figures: Arc<Figures>,
        pool: BlockingPool,
        commands: Receiver<Command>,
        heartbeat: Heartbeat,
    ) -> Self {
        #[expect(clippy::disallowed_methods, reason = "one value per source whose call runs")]
        let poll_results = unbounded();
        let (positions, slots) = (Arc::new(positions), BTreeMap::new());
        Self { sink, positions, figures, pool, commands, poll_results, slots, saved: Instant::now(), heartbeat }
    }

    /// Runs until [`Command::Stop`].
    pub(crate) fn run(mut self) {
        let (commands, polled) = (self.commands.clone(), self.poll_results.1.clone());
        loop {
            self.heartbeat.beat();
            let now = Instant::now();
            self.start_polls(now);
            let due = self.slots.values().filter(|slot| !slot.is_polling).map(|slot| slot.due).min();
            let pause = due.map_or(SAVE_INTERVAL, |due| due.saturating_duration_since(now).min(SAVE_INTERVAL));
            select! {
                recv(commands) -> command => match command {
                    Ok(Command::Stop) | Err(_) => break,
                    Ok(command) => self.apply(command),
                },
                recv(polled) -> polled => if let Ok((key, polled)) = polled {
                    self.polled(&key, polled);
                },
                default(pause) => {}
            }
            if self.saved.elapsed() >= SAVE_INTERVAL {
                self.save();
            }
        }
        self.stop();
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Follow { pid, source } => self.follow(pid, source),
            Command::Released(pid) => self.leave(pid, State::Released),
            Command::Exited(pid) => self.leave(pid, State::Draining),
            Command::Stop => {}
        }
        self.count();
    }

    fn follow(&mut self, pid: Option<u32>, spec: SourceSpec) {
        let SourceSpec { node, location, options } = spec;
        let now = Instant::now();
        let slot = self.slots.entry((Arc::clone(&node), location.clone())).or_insert_with(|| {
            tracing::info!(%node, path = %location.path().display(), "following the log");
            let options = Arc::<Mutex<SourceOptions>>::default();
            let source = Source::new(
                node,
                location,
                Arc::clone(&options),
                self.sink.clone(),
                Arc::clone(&self.positions),
                Arc::clone(&self.figures),
            );
            Slot {
                source: Arc::new(Mutex::new(source)),
                pids: BTreeSet::new(),
                state: State::Followed,
                options,
                due: now,
                is_polling: false,
                is_waiting: false,
                has_failed: false,
                active: now,
            }
        });
        slot.pids.extend(pid);
        *slot.options.lock() = options;
        (slot.state, slot.due) = (State::Followed, now);
    }

    /// A process does not write to its sources any more. Without another process these are drained or released.
    fn leave(&mut self, pid: u32, state: State) {
        let now = Instant::now();
        for slot in self.slots.values_mut() {
            if slot.pids.remove(&pid) && slot.pids.is_empty() {
                (slot.state, slot.active) = (state, now);
            }
        }
        self.slots.retain(|_, slot| slot.state != State::Released || slot.is_polling);
    }

    fn start_polls(&mut self, now: Instant) {
        for (key, slot) in &mut self.slots {
            if slot.is_polling || slot.due > now {
                continue;
            }
            let (source, is_drained) = (Arc::clone(&slot.source), slot.state == State::Drained);
            let poll = move || {
                let mut source = source.lock();
                if is_drained {
                    return Polled::Finished(source.finish());
                }
                let (progress, result) = source.poll(Instant::now());
                Polled::Lines(progress, result)
            };
            let (sender, of) = (self.poll_results.0.clone(), key.clone());
            let deliver = move |polled| {
                // The pillar has ended.
                let _ = sender.send((of, polled));
            };
            let name = format!("{} {}", key.0, key.1.path().display());
            slot.is_polling = self.pool.submit(&name, poll, deliver).is_ok();
            if !slot.is_polling {
                warn_limited!(node = %key.0, "a log is not read: too many files do not answer");
                slot.due = now + RETRY_INTERVAL;
            }
        }
    }

    fn polled(&mut self, key: &SourceKey, polled: Polled) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let now = Instant::now();
        slot.is_polling = false;
        let before = (slot.is_waiting, slot.has_failed);
        let (progress, result) = match polled {
            Polled::Lines(progress, result) => (progress, result),
            Polled::Finished(is_recorded) => {
                // Another process may have begun to write to it meanwhile.
                if is_recorded && slot.state == State::Drained {
                    slot.state = State::Released;
                }
                (if is_recorded { Progress::Idle { was_busy: false } } else { Progress::Full }, Ok(()))
            }
        };
        slot.is_waiting = progress == Progress::Full;
        slot.has_failed = result.is_err();
        let pause = match (&result, progress) {
            (_, Progress::More) => Duration::ZERO,
            (_, Progress::Full) => FULL_INTERVAL,
            (Err(_), _) => RETRY_INTERVAL,
            (Ok(()), Progress::Idle { .. }) => POLL_INTERVAL,
        };
        if let Err(error) = result {
            let path = key.1.path().display().to_string();
            warn_limited!(node = %key.0, path, %error, "a log cannot be read");
        }
        slot.due = now + pause;
        if progress != (Progress::Idle { was_busy: false }) {
            slot.active = now;
        } else if slot.state == State::Draining && now.duration_since(slot.active) >= DRAIN_GRACE {
            (slot.state, slot.due) = (State::Drained, now);
        }
        let is_changed = before != (slot.is_waiting, slot.has_failed);
        if slot.state == State::Released {
            self.slots.remove(key);
            self.count();
        } else if is_changed {
            self.count();
        }
    }

    fn count(&self) {
        let mut sources: BTreeMap<Arc<str>, SourceCounts> = BTreeMap::new();
        for ((node, _), slot) in &self.slots {
            let counts = sources.entry(Arc::clone(node)).or_default();
            counts.followed += 1;
            counts.waiting += i64::from(slot.is_waiting);
            counts.failed += i64::from(slot.has_failed);
        }
        self.figures.set_sources(sources);
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        if let Err(error) = self.positions.save() {
            warn_limited!(%error, "the positions in log files cannot be written");
        }
    }

    /// Waits for the calls under way: what they read continues at the next start.
    fn stop(&mut self) {
        let end = Instant::now() + SHUTDOWN_GRACE;
        while self.slots.values().any(|slot| slot.is_polling) {
            match self.poll_results.1.recv_deadline(end) {
                Ok((key, polled)) => self.polled(&key, polled),
                Err(_) => break,
            }
        }
        self.save();
        self.heartbeat.rest();
    }
}
