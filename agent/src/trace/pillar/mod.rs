//! The tracepoints pillar: events of the static tracepoints of observed processes, as records.
//!
//! ```text
//!   inbox ── start, stop ──▶ tracer of a process: attaches ──▶ events ──▶ rules ──▶ RecordSink
//!                                     ╰── counts, by tracepoint ──▶ Figures: metrics, reports; losses as records
//! ```
//!
//! Each process has a probe with a ring of its own, which bounds what it can make the agent hold, and a thread of its own:
//! reading its files may wait for the file systems of its container. A process whose tracepoints cannot be attached is tried
//! again, less and less often, as long as it runs: it may load a library that has them.
//!
//! `hits = recorded + filtered + dropped`, by tracepoint and reason, plus what is on its way.

mod figures;
mod rules;
mod tracer;

use std::{fmt, path::Path, sync::Arc};

use chainscope_spec::Trace;
use figures::Figures;
use parking_lot::Mutex;
use tracer::Tracer;

use crate::{
    Error,
    pillar::{Pillar, PillarStatus, RecordSink},
    targets::{Assignment, Inbox},
    workers::{Subject, Task, Work, WorkerInbox, Workers},
};

/// The running tracepoints pillar.
pub(crate) struct TracePillar {
    figures: Arc<Figures>,
    tracers: Arc<Mutex<Workers<Trace>>>,
}

impl TracePillar {
    /// Starts nothing: tracers start with their processes.
    pub(crate) fn start<S: RecordSink + Clone + 'static>(host_proc: &Path, sink: S) -> (Self, Box<dyn Inbox>) {
        let figures = Arc::new(Figures::default());
        let tracers = Arc::<Mutex<Workers<Trace>>>::default();
        let inbox = WorkerInbox::new(Tracing { sink, figures: Arc::clone(&figures) }, host_proc, &tracers);
        (Self { figures, tracers }, Box::new(inbox))
    }
}

impl Pillar for TracePillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::clone(&self.figures) as Arc<dyn PillarStatus>
    }

    fn drain(&mut self) -> Result<(), Error> {
        Workers::drain(&self.tracers);
        Ok(())
    }
}

impl fmt::Debug for TracePillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracePillar").finish_non_exhaustive()
    }
}

/// Starts tracers.
struct Tracing<S> {
    sink: S,
    figures: Arc<Figures>,
}

impl<S: RecordSink + Clone + 'static> Work for Tracing<S> {
    type Options = Trace;
    const NAMES: (&'static str, &'static str) = ("chainscope-trace", "tracepoints");

    fn options(assignment: &Assignment) -> Option<Arc<Trace>> {
        let trace = assignment.observe.trace.as_ref().filter(|trace| !trace.rules.is_empty())?;
        // A change of the functions that are timed is none of the tracepoints.
        Some(if trace.latency.is_some() {
            Arc::new(Trace { latency: None, ..Trace::clone(trace) })
        } else {
            Arc::clone(trace)
        })
    }

    fn worker(&self, task: Task<Trace>) -> Box<dyn FnOnce() + Send> {
        let tracer = Tracer::new(task, self.sink.clone(), Arc::clone(&self.figures));
        Box::new(move || tracer.run())
    }

    fn refuse(&self, subject: &Subject, cause: String) {
        self.figures.start(subject, None);
        self.figures.fail(subject, cause);
    }

    fn forget(&self, pid: u32) {
        self.figures.forget(pid);
    }
}
