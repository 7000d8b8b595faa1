//! The latency pillar: how long functions of observed processes take, as records.
//!
//! ```text
//!   inbox ── start, stop ──▶ timer of a process: attaches ──▶ blocks, transactions ──▶ RecordSink
//!                                     ╰── counts ──▶ Figures: metrics, reports
//! ```
//!
//! A run is one recording of one process. Its first block describes it, its last one says when it ended. `ended spans = spans in
//! recorded blocks + spans counted as not kept`, which a later block of the function says.

mod figures;
mod requests;
mod timer;

use std::{fmt, path::Path, sync::Arc};

use chainscope_spec::Latency;
use figures::Figures;
use parking_lot::Mutex;
use timer::Timer;

use crate::{
    Error,
    pillar::{Pillar, PillarStatus, RecordSink},
    targets::{Assignment, Inbox},
    workers::{Subject, Task, Work, WorkerInbox, Workers},
};

/// The running latency pillar.
pub(crate) struct LatencyPillar {
    figures: Arc<Figures>,
    timers: Arc<Mutex<Workers<Latency>>>,
}

impl LatencyPillar {
    /// Starts nothing: timers start with their processes. `host` is the name of this host in runs.
    pub(crate) fn start<S: RecordSink + Clone + 'static>(
        host_proc: &Path,
        host: &str,
        sink: S,
    ) -> (Self, Box<dyn Inbox>) {
        let figures = Arc::new(Figures::default());
        let timers = Arc::<Mutex<Workers<Latency>>>::default();
        let timing = Timing { sink, host: host.to_owned(), figures: Arc::clone(&figures) };
        let inbox = WorkerInbox::new(timing, host_proc, &timers);
        (Self { figures, timers }, Box::new(inbox))
    }
}

impl Pillar for LatencyPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::clone(&self.figures) as Arc<dyn PillarStatus>
    }

    fn drain(&mut self) -> Result<(), Error> {
        Workers::drain(&self.timers);
        Ok(())
    }
}

impl fmt::Debug for LatencyPillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyPillar").finish_non_exhaustive()
    }
}

/// Starts timers.
struct Timing<S> {
    sink: S,
    host: String,
    figures: Arc<Figures>,
}

impl<S: RecordSink + Clone + 'static> Work for Timing<S> {
    type Options = Latency;
    const NAMES: (&'static str, &'static str) = ("chainscope-time", "latency");

    fn options(assignment: &Assignment) -> Option<Arc<Latency>> {
        assignment.observe.trace.as_ref()?.latency.clone().map(Arc::new)
    }

    fn worker(&self, task: Task<Latency>) -> Box<dyn FnOnce() + Send> {
        let timer = Timer::new(task, self.host.clone(), self.sink.clone(), Arc::clone(&self.figures));
        Box::new(move || timer.run())
    }

    fn refuse(&self, subject: &Subject, cause: String) {
        self.figures.start(subject, None);
        self.figures.fail(subject, cause);
    }

    fn forget(&self, pid: u32) {
        self.figures.forget(pid);
    }
}
