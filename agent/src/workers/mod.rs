//! Threads of observed processes: a pillar that attaches a probe to each process has a thread for each, which starts and stops as
//! targets change.
//!
//! Reading the files of a process may wait for the file systems of its container, so no other thread waits for it, except its
//! successor for the same process and, for a bounded time, the end of the pillar.

mod figures;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::PidNamespace;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
pub(crate) use figures::{Figures, ProcessCounts};
use parking_lot::Mutex;

use crate::{
    Error,
    targets::{Assignment, Inbox, TargetChange},
    thread::{Heartbeat, spawn},
};

/// Processes that a pillar observes at a time; each has a probe.
const MAX_PROCESSES: usize = 64;
/// How long the threads may take to record what was captured when the pillar ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A process that is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot: process ids are used again.
    pub(crate) start: u64,
    pub(crate) node: Arc<str>,
    pub(crate) label: Arc<str>,
    /// Uid of its pod.
    pub(crate) pod: Option<String>,
}

/// What a thread is started with.
pub(crate) struct Task<O> {
    pub(crate) subject: Subject,
    pub(crate) options: Arc<O>,
    /// Disconnected when the thread is to end.
    pub(crate) stopped: Receiver<()>,
    pub(crate) heartbeat: Heartbeat,
}

/// What a pillar does with a process.
pub(crate) trait Work: Send + 'static {
    /// What is recorded. A change of it starts another thread.
    type Options: PartialEq + Send + Sync + 'static;
    /// Name of the threads, and of their stage in heartbeats.
    const NAMES: (&'static str, &'static str);

    /// What is recorded of a process; `None`: nothing.
    fn options(assignment: &Assignment) -> Option<Arc<Self::Options>>;

    /// The work of a thread.
    fn worker(&self, task: Task<Self::Options>) -> Box<dyn FnOnce() + Send>;

    /// A process cannot be observed.
    fn refuse(&self, subject: &Subject, cause: String);

    /// A process that has no thread has ended.
    fn forget(&self, pid: u32);
}

/// A thread: it stops when `stop` is dropped, and drops the other side of `ended` at its end.
struct Running<O> {
    options: Arc<O>,
    subject: Subject,
    /// Never sent to: dropping it stops the thread.
    stop: Sender<()>,
    ended: Receiver<()>,
}

/// The threads of a pillar, by process id, and the ends of those that were stopped.
pub(crate) struct Workers<O> {
    running: BTreeMap<u32, Running<O>>,
    ending: Vec<Receiver<()>>,
}

impl<O> Default for Workers<O> {
    fn default() -> Self {
        Self { running: BTreeMap::new(), ending: Vec::new() }
    }
}

impl<O> Workers<O> {
    /// Stops the thread of a process. Its end can be waited for.
    fn stop(&mut self, pid: u32) -> Option<Receiver<()>> {
        let Running { stop, ended, .. } = self.running.remove(&pid)?;
        drop(stop);
        self.ending.retain(|ended| !has_ended(ended));
        self.ending.push(ended.clone());
        Some(ended)
    }

    /// Stops all threads, and waits for them.
    pub(crate) fn drain(workers: &Mutex<Self>) {
        let ending = {
            let mut workers = workers.lock();
            let pids: Vec<u32> = workers.running.keys().copied().collect();
            for pid in pids {
                workers.stop(pid);
            }
            std::mem::take(&mut workers.ending)
        };
        // One that waits for a file system of its container is left behind.
        let deadline = Instant::now() + SHUTDOWN_GRACE;
        for ended in ending {
            let _ = ended.recv_deadline(deadline);
        }
    }
}

/// Whether the other side was dropped: nothing is ever sent.
pub(crate) fn has_ended(channel: &Receiver<()>) -> bool {
    matches!(channel.try_recv(), Err(TryRecvError::Disconnected))
}

/// Starts and stops threads as targets change.
pub(crate) struct WorkerInbox<W: Work> {
    work: W,
    host_proc: PathBuf,
    workers: Arc<Mutex<Workers<W::Options>>>,
    /// The observed processes.
    subjects: BTreeMap<u32, (u64, Option<String>)>,
}

impl<W: Work> WorkerInbox<W> {
    pub(crate) fn new(work: W, host_proc: &Path, workers: &Arc<Mutex<Workers<W::Options>>>) -> Self {
        Self { work, host_proc: host_proc.to_owned(), workers: Arc::clone(workers), subjects: BTreeMap::new() }
    }

    /// Observes the process as its assignment says.
    fn set(&self, pid: u32, assignment: &Assignment) -> Result<(), Error> {
        let Some((start, pod)) = self.subjects.get(&pid).cloned() else { return Ok(()) };
        let mut workers = self.workers.lock();
        let Some(options) = W::options(assignment) else {
            if workers.stop(pid).is_none() {
                self.work.forget(pid);
            }
            return Ok(());
        };
        let (node, label) = (Arc::clone(assignment.traced_node()), Arc::clone(&assignment.label));
        let subject = Subject { pid, start, node, label, pod };
        let known = workers.running.get(&pid);
        if known.is_some_and(|known| known.options == options && known.subject == subject) {
            return Ok(());
        }
        let before = workers.stop(pid);
        if let Some(cause) = self.obstacle(&workers) {
            self.work.refuse(&subject, cause);
            return Ok(());
        }
        let (stop, stopped) = bounded(0);
        let (end, ended) = bounded::<()>(0);
        let (thread, stage) = W::NAMES;
        let heartbeat = Heartbeat::of_foreign_calls(stage);
        let task = Task { subject: subject.clone(), options: Arc::clone(&options), stopped, heartbeat };
        let work = self.work.worker(task);
        spawn(thread, move || {
            let _end = end;
            if let Some(before) = before {
                // Nothing is recorded by both, and the counts of the first one are complete.
                let _ = before.recv();
            }
            work();
        })?;
        workers.running.insert(pid, Running { options, subject, stop, ended });
        Ok(())
    }

    /// Why no process can be observed.
    fn obstacle(&self, workers: &Workers<W::Options>) -> Option<String> {
        if workers.running.len() >= MAX_PROCESSES {
            return Some(format!("{MAX_PROCESSES} processes are traced already"));
        }
        let (own, host) = (PidNamespace::of_proc(Path::new("/proc")), PidNamespace::of_proc(&self.host_proc));
        match (own, host) {
            (Ok(own), Ok(host)) if own == host => None,
            // The kernel attaches to a process by its id in the namespace of the caller.
            (Ok(_), Ok(_)) => Some("the agent is not in the host's pid namespace (hostPID)".to_owned()),
            (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
        }
    }

    fn stop(&mut self, pid: u32) {
        self.subjects.remove(&pid);
        if self.workers.lock().stop(pid).is_none() {
            self.work.forget(pid);
        }
    }
}

impl<W: Work> Inbox for WorkerInbox<W> {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        match change {
            TargetChange::Started(target) if !target.has_exited => {
                let pid = target.facts.pid;
                self.subjects.insert(pid, (target.facts.start, target.owner.pod().map(str::to_owned)));
                self.set(pid, &target.assignment)?;
            }
            TargetChange::Changed(pid, assignment) => self.set(*pid, assignment)?,
            TargetChange::Released(pid) | TargetChange::Exited(pid) => self.stop(*pid),
            _ => {}
        }
        Ok(())
    }
}
