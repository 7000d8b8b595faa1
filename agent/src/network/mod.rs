//! The network pillar: bytes of sockets from the kernel's ring buffer to connections, chunks and messages.
//!
//! ```text
//!   kernel ── ring buffer ──▶ reader ── batches ──▶ worker: holding buffer ─▶ interpreter ──▶ RecordSink
//!      ▲                        ▲  ▲                  │   ▲      │                 │
//!      │ watch, add, release,   │  └── spare batches ─┤   │      └─▶ journal       │
//!      └── verdicts ────────────┴───── Command ───────┘   └── inbox: TargetChange  └─▶ verdicts
//! ```
//!
//! Two threads: the reader takes events from the ring and applies commands, the worker interprets. What the reader hands
//! on, it takes back empty. Identities are read on further threads, because their file systems may never answer.

mod account;
mod figures;
pub(crate) mod fuzzing;
mod holding;
mod interpreter;
mod journal;
mod reader;
mod worker;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use chainscope_ebpf::RingWaker;
use chainscope_ebpf::network::{CaptureMode, ExecEvents, NetworkOptions, NetworkProbe};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use figures::Figures;
use interpreter::Interpreter;
use journal::Waiting;
use reader::{BATCHES, Batch, Reader};
use worker::{Channels, Worker};

use crate::{
    Error,
    blocking::BlockingPool,
    clock::Clock,
    config::Config,
    folder::Folder,
    pillar::{Pillar, PillarStatus, RecordSink},
    targets::{ExecInterest, Inbox, Notice, TargetChange, identity::IdentityReader, proc::Proc},
    thread::{Heartbeat, join, spawn},
};

/// The pillar before its threads run: targets of the first scan are captured when [`Setup::prepare`] returns.
pub(crate) struct Setup<S> {
    mode: CaptureMode,
    reader: Reader<NetworkProbe>,
    worker: Worker<S>,
    inbox: Sender<TargetChange>,
    batches: Receiver<Batch>,
    spare: Sender<Batch>,
    stop: Arc<AtomicBool>,
    waker: RingWaker,
    figures: Arc<Figures>,
}

impl<S: RecordSink + 'static> Setup<S> {
    /// Loads the probe, and the sessions that the last run left in the journal.
    pub(crate) fn load(
        config: &Config,
        folder: Folder,
        sink: S,
        exec: ExecInterest,
        notices: Sender<Notice>,
    ) -> Result<Self, Error> {
        let boot_id = journal::boot_id();
        let sessions = folder.journal()?.map_or_else(Vec::new, |bytes| journal::read(&bytes, &boot_id));
        if !sessions.is_empty() {
            tracing::info!(sessions = sessions.len(), "the last run left live sessions");
        }
        let waiting = Waiting::new(boot_id, sessions);
        let interpreter = Interpreter::new(sink, Clock::sampled(), config.limits, waiting);
        let probe = NetworkProbe::load(&NetworkOptions {
            proc: config.host_proc.clone(),
            mode: config.capture,
            ring_bytes: config.ring_bytes,
            wake_bytes: config.wake_bytes,
            exec_events: match exec {
                ExecInterest::None => ExecEvents::None,
                ExecInterest::Watched => ExecEvents::Watched,
                ExecInterest::All => ExecEvents::All,
            },
        })?;
        let mode = probe.mode();
        let waker = probe.waker();
        let stop = Arc::new(AtomicBool::new(false));
        #[expect(
            clippy::disallowed_methods,
            reason = "the reader drains it in each round, and may wait for the worker, which sends"
        )]
        let (commands, commanded) = unbounded();
        #[expect(
            clippy::disallowed_methods,
            reason = "one value per change of a target; discovery must not wait for a pillar"
        )]
        let (inbox, changes) = unbounded();
        let (filled, batches) = bounded(BATCHES);
        let (spare, emptied) = bounded(BATCHES);
        let (reading, interpreting) = (Heartbeat::new("network reader"), Heartbeat::new("network interpreter"));
        #[expect(clippy::disallowed_methods, reason = "one value per read that the pool accepted")]
        let (answers, identities) = unbounded();
        let pool = BlockingPool::new("chainscope-identity", "identity");
        let figures = Arc::new(Figures::new(vec![reading.clone(), interpreting.clone(), pool.heartbeat()]));
        let proc = Proc::at(&config.host_proc);
        let reader = Reader::new(probe, commanded, filled, emptied, Arc::clone(&stop), reading);
        let worker = Worker::new(
            interpreter,
            proc.clone(),
            Channels {
                commands,
                wake_reader: {
                    let waker = waker.clone();
                    Box::new(move || waker.wake())
                },
                inbox: changes,
                notices,
                identity_reader: IdentityReader::new(proc, pool, answers),
                identities,
            },
            folder,
            config.cluster.is_some(),
            Arc::clone(&figures),
            interpreting,
        );
        Ok(Self { mode, reader, worker, inbox, batches, spare, stop, waker, figures })
    }

    /// How bytes are taken from the kernel.
    pub(crate) fn mode(&self) -> CaptureMode {
        self.mode
    }

    /// Where changes of targets are put.
    pub(crate) fn inbox(&self) -> Box<dyn Inbox> {
        Box::new(self.inbox.clone())
    }

    /// Applies what is in the inbox down to the kernel.
    pub(crate) fn prepare(&mut self) {
        self.worker.drain_inbox();
        self.reader.prepare();
    }

    /// Starts the threads; `ended` is called when the interpreter's ends.
    pub(crate) fn start(self, ended: impl FnOnce() + Send + 'static) -> Result<NetworkPillar, Error> {
        let Self { reader, worker, batches, spare, stop, waker, figures, .. } = self;
        let reader = spawn("chainscope-ring", move || {
            reader.run().inspect_err(|error| tracing::error!(%error, "capture ended"))
        })?;
        let worker = spawn("chainscope-interpret", move || {
            let result = worker.run(&batches, &spare);
            if let Err(error) = &result {
                tracing::error!(%error, "interpretation ended");
            }
            ended();
            result
        })?;
        Ok(NetworkPillar { stop, waker, reader: Some(reader), worker: Some(worker), figures })
    }
}

/// The running pillar.
pub(crate) struct NetworkPillar {
    stop: Arc<AtomicBool>,
    waker: RingWaker,
    reader: Option<JoinHandle<Result<(), Error>>>,
    worker: Option<JoinHandle<Result<(), Error>>>,
    figures: Arc<Figures>,
}

impl Pillar for NetworkPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::clone(&self.figures) as Arc<dyn PillarStatus>
    }

    fn drain(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        // The worker ends with the reader.
        let reader = join(self.reader.take());
        let worker = join(self.worker.take());
        reader.and(worker)
    }
}

impl fmt::Debug for NetworkPillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkPillar").finish_non_exhaustive()
    }
}
