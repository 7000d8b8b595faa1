//! Starting, watching and stopping an agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use chainscope_ebpf::network::{CaptureMode, NetworkOptions, NetworkProbe};
use crossbeam_channel as channel;
use tokio::sync::{oneshot, watch};

use crate::{
    Config, Error,
    check::{require_fit, require_fit_for_pods},
    delivery::uplink::{self, Link},
    delivery::{RecordStreams, StreamStatus},
    folder::Folder,
    memory::{Board, Memory},
    metrics::Monitor,
    network::reader::{BATCHES, Reader},
    operator::{self, Client, Reach, Report},
    targets::proc::Proc,
    worker::{Cluster, Worker},
};

/// Starts agents.
#[derive(Debug)]
pub struct Agent;

/// An agent that runs: three threads from the kernel's ring to the aggregator, and two that profile memory.
///
/// Dropping it stops the agent without waiting for acknowledgements.
#[derive(Debug)]
pub struct Running {
    mode: CaptureMode,
    streams: RecordStreams,
    folder: Folder,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<Result<(), Error>>>,
    worker: Option<JoinHandle<Result<(), Error>>>,
    memory: Memory,
    uplink: Option<JoinHandle<()>>,
    /// Ends the uplink's thread whatever it has.
    cut: Option<oneshot::Sender<()>>,
    /// True once the uplink's thread has ended by itself.
    delivered: watch::Receiver<bool>,
    ended: watch::Receiver<bool>,
    /// Ends the thread that talks to the operator.
    operator: Option<Thread>,
    monitor: Monitor,
}

/// A thread with an async runtime, and what ends it.
type Thread = (oneshot::Sender<()>, JoinHandle<()>);

/// An agent, for people.
#[derive(Debug, Clone)]
pub struct Status {
    /// How bytes are taken from the kernel.
    pub mode: CaptureMode,
    /// The threads run.
    pub is_running: bool,
    /// One stream a node.
    pub streams: Vec<StreamStatus>,
    /// Why no memory is profiled although it should be.
    pub memory_error: Option<String>,
}

impl Agent {
    /// Loads the kernel part and starts to observe: when this returns, nodes that run are captured, and one that begins to
    /// listen is captured from its first byte. Records go to `link`.
    ///
    /// # Errors
    /// One clear sentence: what of the configuration cannot work, what the kernel lacks, which right or file is missing.
    pub fn start(config: Config, link: impl Into<Link>) -> Result<Running, Error> {
        config.check()?;
        match &config.cluster {
            Some(_) => require_fit_for_pods(&config.host_proc)?,
            None => require_fit()?,
        }
        let folder = Folder::open(&config.data_dir)?;
        let names = config.nodes.iter().map(|node| node.name.as_str());
        let streams = RecordStreams::open(&folder, config.queue_bytes, config.spool_bytes, std::iter::empty())?;
        let (commands, orders) = channel::unbounded();
        let reach = Reach::default();
        let (client, cluster) = match &config.cluster {
            Some(operator) => {
                let kept = operator::read_kept(&folder)?;
                if let Some(map) = &kept {
                    tracing::info!(pods = map.pods.len(), "the last configuration was kept");
                    reach.set_configured();
                }
                let map = kept.unwrap_or_default();
                let (maps, taken) = channel::unbounded();
                let (reports, reported) = watch::channel(Report::default());
                let cluster = Cluster { maps: taken, reports, kept: Arc::new(map.clone()) };
                (Some(Client::new(operator, Some(folder.clone()), map, maps, reported, reach.clone())), Some(cluster))
            }
            None => (None, None),
        };
        let (memory, profile) = Memory::start(&Proc::at(&config.host_proc))?;
        let mut worker = Worker::new(&config, folder.clone(), streams.clone(), commands, profile, cluster)?;
        // After the worker told every stream of the last run what it may have missed.
        for name in names {
            streams.open_stream(name)?;
        }
        let probe = NetworkProbe::load(&NetworkOptions {
            mode: config.capture,
            ring_bytes: config.ring_bytes,
            wake_bytes: config.wake_bytes,
            exec_events: worker.exec_events(),
        })?;
        let mode = probe.mode();
        tracing::info!(%mode, nodes = config.nodes.len(), "capturing");

        let stop = Arc::new(AtomicBool::new(false));
        let (batches, taken) = channel::bounded(BATCHES);
        let (spare, used) = channel::bounded(BATCHES);
        let (alive, ended) = watch::channel(false);
        let mut reader = Reader::new(probe, orders, batches, used, Arc::clone(&stop));
        // Ports first: what begins to listen from here on is seen by the kernel, what listens already by the look around.
        worker.watch();
        reader.prepare();
        worker.scan()?;
        reader.prepare();
        let reader = spawn("chainscope-ring", move || {
            let result = reader.run();
            if let Err(error) = &result {
                tracing::error!(%error, "capture ended");
            }
            result
        })?;
        let closing = streams.clone();
        let monitor = Monitor::new(
            streams.clone(),
            worker.figures(),
            memory.board.clone(),
            reach,
            config.cluster.is_some(),
            ended.clone(),
        );
        let worker = spawn("chainscope-interpret", move || {
            let result = worker.run(&taken, &spare);
            if let Err(error) = &result {
                tracing::error!(%error, "interpretation ended");
            }
            closing.close();
            let _ = alive.send(true);
            result
        })?;
        let (cut, delivered, uplink) = start_uplink(&streams, &memory.board, link.into(), config.host)?;
        let operator = client.map(start_operator).transpose()?;
        Ok(Running {
            mode,
            streams,
            folder,
            stop,
            reader: Some(reader),
            worker: Some(worker),
            memory,
            uplink: Some(uplink),
            cut: Some(cut),
            delivered,
            ended,
            operator,
            monitor,
        })
    }
}

/// Talks to the operator until it is cut.
pub(crate) fn start_operator(client: Client) -> Result<Thread, Error> {
    let name = "chainscope-operator";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Thread { name, source })?;
    let (cut, is_cut) = oneshot::channel();
    let thread = spawn(name, move || {
        runtime.block_on(async {
            tokio::select! {
                () = client.run() => {}
                _ = is_cut => {}
            }
        });
    })?;
    Ok((cut, thread))
}

/// Ends a thread that [`start_operator`] began.
pub(crate) fn end_operator(operator: &mut Option<Thread>) {
    if let Some((cut, thread)) = operator.take() {
        // It never ends by itself; should it have panicked, there is nothing left to end.
        let _ = cut.send(());
        let _ = thread.join();
    }
}

type UplinkThread = (oneshot::Sender<()>, watch::Receiver<bool>, JoinHandle<()>);

fn start_uplink(streams: &RecordStreams, board: &Board, link: Link, host: String) -> Result<UplinkThread, Error> {
    let name = "chainscope-uplink";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Thread { name, source })?;
    let (cut, is_cut) = oneshot::channel();
    let (done, delivered) = watch::channel(false);
    let (streams, board) = (streams.clone(), board.clone());
    let thread = spawn(name, move || {
        runtime.block_on(async {
            tokio::select! {
                () = uplink::run(streams, board, link, host) => {}
                _ = is_cut => {}
            }
        });
        let _ = done.send(true);
    })?;
    Ok((cut, delivered, thread))
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|source| Error::Thread { name, source })
}

impl Running {
    /// How the agent is.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            mode: self.mode,
            is_running: !*self.ended.borrow(),
            streams: self.streams.status(),
            memory_error: self.memory.board.error(),
        }
    }

    /// What probes and metrics are told.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Waits until the agent ends by itself, which it does on an error only: [`Self::shutdown`] says which.
    pub async fn ended(&self) {
        // An error means that the thread is gone.
        let _ = self.ended.clone().wait_for(|is_over| *is_over).await;
    }

    /// Takes what the ring still holds, interprets it, writes the journal, and waits at most `patience` for the
    /// aggregator's acknowledgements. Blocks; not to be called on an async worker.
    ///
    /// # Errors
    /// Why the agent had ended before, or why the journal could not be written.
    pub fn shutdown(mut self, patience: Duration) -> Result<(), Error> {
        end_operator(&mut self.operator);
        self.stop.store(true, Ordering::Release);
        let reader = join(self.reader.take());
        let worker = join(self.worker.take());
        self.memory.join();
        self.streams.close();
        self.await_delivery(patience);
        let settled = match self.streams.oldest_volatile_ns() {
            Some(oldest) => {
                let pending: usize = self.streams.status().iter().map(|stream| stream.pending_records).sum();
                tracing::warn!(pending, "records were not acknowledged; the next run reports a loss from there on");
                oldest
            }
            None => crate::clock::realtime_ns(),
        };
        let noted = self.folder.set_settled_ns(settled);
        reader.and(worker).and(noted)
    }

    fn await_delivery(&mut self, patience: Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        if let Ok(runtime) = runtime {
            let delivered = self.delivered.wait_for(|is_done| *is_done);
            runtime.block_on(async {
                // Late or gone: both are seen by what is left in the streams.
                let _ = tokio::time::timeout(patience, delivered).await;
            });
        }
        self.cut_uplink();
    }

    fn cut_uplink(&mut self) {
        if let Some(cut) = self.cut.take() {
            // It may have ended already.
            let _ = cut.send(());
        }
        if let Some(uplink) = self.uplink.take() {
            let _ = uplink.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_operator(&mut self.operator);
        self.stop.store(true, Ordering::Release);
        // The worker ends with the reader, the uplink with the cut. Errors were logged where they happened.
        let _ = join(self.reader.take());
        let _ = join(self.worker.take());
        self.memory.join();
        self.cut_uplink();
    }
}

fn join(thread: Option<JoinHandle<Result<(), Error>>>) -> Result<(), Error> {
    match thread.map(JoinHandle::join) {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}
