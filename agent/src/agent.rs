//! Starting, observing and stopping an agent: the wiring of discovery, pillars, delivery and the client of the operator.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
    time::Duration,
};

use chainscope_ebpf::{PidNamespace, network::CaptureMode};
use crossbeam_channel::{self as channel, Receiver, Sender};
use tokio::sync::watch;

use crate::{
    Config, Error,
    check::{require_supported, require_supported_for_pods},
    clock::realtime_ns,
    delivery::uplink::{self, Link},
    delivery::{RecordStreams, StreamStatus},
    folder::Folder,
    latency::pillar::LatencyPillar,
    logs::LogsPillar,
    memory::MemoryPillar,
    memory_limit::memory_limit,
    metrics::{Monitor, Sources},
    network,
    operator::{self, Client, Reach, Report},
    pillar::Pillar,
    restart,
    status::{ActiveSink, StatusReporter},
    targets::{Inbox, Machine, Notice, Plan, TargetChange, discovery::Discovery, pod_map::PodMap, proc::Proc},
    thread::{AsyncThread, Heartbeat, join, spawn},
    trace::pillar::TracePillar,
};

/// Starts agents.
#[derive(Debug)]
pub struct Agent;

/// A running agent.
///
/// Dropping it stops the agent without waiting for acknowledgements.
#[derive(Debug)]
pub struct Running {
    mode: CaptureMode,
    streams: RecordStreams,
    folder: Folder,
    pillars: Vec<Box<dyn Pillar>>,
    notices: Sender<Notice>,
    discovery: Option<JoinHandle<Result<(), Error>>>,
    /// The status thread runs until the sender is dropped.
    status: Option<(Sender<()>, JoinHandle<()>)>,
    uplink: AsyncThread,
    /// True once a thread that the agent needs has ended.
    ended: watch::Receiver<bool>,
    operator: Option<AsyncThread>,
    monitor: Monitor,
}

/// Summary of a running agent.
#[derive(Debug, Clone)]
pub struct Status {
    /// The capture mode.
    pub mode: CaptureMode,
    /// The threads run.
    pub is_running: bool,
    /// One record stream for each node.
    pub streams: Vec<StreamStatus>,
    /// Why a pillar observes nothing although it should: of the first such one.
    pub error: Option<String>,
}

impl Agent {
    /// Loads the kernel part and starts to observe: when this returns, nodes that run are captured, and one that begins to
    /// listen is captured from its first byte. Records go to `link`.
    ///
    /// # Errors
    /// The invalid part of the configuration, the missing kernel feature, permission or file.
    pub fn start(mut config: Config, link: impl Into<Link>) -> Result<Running, Error> {
        config.check()?;
        let limit = memory_limit();
        tracing::info!(bytes = limit, "memory limit");
        config.fit(limit);
        match &config.cluster {
            Some(_) => require_supported_for_pods(&config.host_proc)?,
            None => require_supported(&config.host_proc)?,
        }
        if let Ok(namespace) = PidNamespace::of_proc(&config.host_proc) {
            tracing::info!(proc = %config.host_proc.display(), %namespace, "process ids");
        }
        let folder = Folder::open(&config.data_dir)?;
        let streams = RecordStreams::open(&folder, config.queue_bytes, config.spool_bytes, std::iter::empty())?;
        let reach = Reach::default();
        let configuration = Configuration::load(&config, &folder, &reach)?;
        let nodes = configuration.plan.nodes();
        streams.expect(&nodes);
        restart::report_loss(&folder, &streams, configuration.is_known.then_some(&nodes))?;
        // After the losses of the time without an agent are recorded in every stream of the last run.
        for node in &config.nodes {
            streams.open_stream(&node.name)?;
        }

        let sink = ActiveSink { streams: streams.clone(), active: Arc::new(AtomicBool::new(false)) };
        #[expect(clippy::disallowed_methods, reason = "senders drop notices beyond `MAX_NOTICES`")]
        let (notices, noticed) = channel::unbounded();
        let proc = Proc::at(&config.host_proc);
        let machine = Machine::new(proc.clone());
        let exec = configuration.plan.exec_interest();
        let (memory, memory_inbox) = MemoryPillar::start(&proc)?;
        let (logs, logs_inbox) = LogsPillar::start(&config, &folder, sink.clone())?;
        let (trace, trace_inbox) = TracePillar::start(&config.host_proc, sink.clone());
        let (latency, latency_inbox) = LatencyPillar::start(&config.host_proc, &config.host, sink.clone());
        let mut network = network::Setup::load(&config, folder.clone(), sink.clone(), exec, notices.clone())?;
        let mode = network.mode();
        tracing::info!(%mode, nodes = config.nodes.len(), "capturing");

        let opener = StreamInbox(streams.clone());
        let inboxes: Vec<Box<dyn Inbox>> =
            vec![Box::new(opener), network.inbox(), memory_inbox, logs_inbox, trace_inbox, latency_inbox];
        let mut heartbeats = vec![machine.heartbeat()];
        let mut discovery = Discovery::new(machine, configuration.plan, inboxes, noticed, configuration.maps);
        // Ports first: a process that begins to listen from here on is seen by the kernel, one that listens already by the
        // scan.
        discovery.update_watch_list()?;
        network.prepare();
        discovery.scan()?;
        network.prepare();

        let (end, ended) = watch::channel(false);
        let end = Arc::new(end);
        let on_end = |end: &Arc<watch::Sender<bool>>| {
            let end = Arc::clone(end);
            move || {
                end.send_replace(true);
            }
        };
        let profiles = memory.store().clone();
        let pillars: Vec<Box<dyn Pillar>> = vec![
            Box::new(network.start(on_end(&end))?),
            Box::new(memory),
            Box::new(logs),
            Box::new(trace),
            Box::new(latency),
        ];
        let (view, beat) = (discovery.view(), discovery.heartbeat());
        let discovery_ended = on_end(&end);
        let discovery = spawn("chainscope-discovery", move || {
            let result = discovery.run();
            if let Err(error) = &result {
                tracing::error!(%error, "discovery ended");
                discovery_ended();
            }
            result
        })?;

        let pillar_statuses: Vec<_> = pillars.iter().map(|pillar| pillar.status()).collect();
        let figures = Arc::default();
        let heartbeat = Heartbeat::new("status");
        heartbeats.extend([beat, heartbeat.clone()]);
        heartbeats.extend(streams.heartbeat());
        let reporter = StatusReporter {
            view,
            pillars: pillar_statuses.clone(),
            sink,
            folder: folder.clone(),
            reports: configuration.reports,
            figures: Arc::clone(&figures),
            limit_bytes: config.spool_bytes.unwrap_or(config.queue_bytes as u64),
            heartbeat,
        };
        let (stop_status, status_stopped) = channel::bounded(0);
        let status = spawn("chainscope-status", move || reporter.run(&status_stopped))?;
        let (link, host, sent) = (link.into(), config.host, streams.clone());
        let uplink =
            AsyncThread::spawn("chainscope-uplink", "uplink", move || uplink::run(sent, profiles, link, host))?;
        let client = configuration.client;
        let operator = client
            .map(|client| AsyncThread::spawn("chainscope-operator", "operator client", move || client.run()))
            .transpose()?;
        heartbeats.push(uplink.heartbeat());
        heartbeats.extend(operator.as_ref().map(AsyncThread::heartbeat));
        let monitor = Monitor::new(Sources {
            streams: streams.clone(),
            pillars: pillar_statuses,
            heartbeats,
            figures,
            reach: config.cluster.is_some().then_some(reach),
            ended: ended.clone(),
        });
        Ok(Running {
            mode,
            streams,
            folder,
            pillars,
            notices,
            discovery: Some(discovery),
            status: Some((stop_status, status)),
            uplink,
            ended,
            operator,
            monitor,
        })
    }
}

/// Where the observed nodes come from.
struct Configuration {
    plan: Plan,
    /// False where the operator's configuration of the last run was not kept.
    is_known: bool,
    client: Option<Client>,
    maps: Option<Receiver<(u64, Arc<PodMap>)>>,
    reports: Option<watch::Sender<Report>>,
}

impl Configuration {
    fn load(config: &Config, folder: &Folder, reach: &Reach) -> Result<Self, Error> {
        let Some(cluster) = &config.cluster else {
            let plan = Plan::entries(&config.nodes);
            return Ok(Self { plan, is_known: true, client: None, maps: None, reports: None });
        };
        let kept = operator::read_kept(folder)?;
        if let Some(map) = &kept {
            tracing::info!(pods = map.pods.len(), "the last configuration was kept");
            reach.set_configured();
        }
        let map = kept.unwrap_or_default();
        #[expect(
            clippy::disallowed_methods,
            reason = "one map per change by the operator, which must not wait for discovery"
        )]
        let (maps, taken) = channel::unbounded();
        let (reports, reported) = watch::channel(Report::default());
        let plan = Plan::pods(cluster.watch.clone(), Arc::new(map.clone()));
        let is_known = map.generation != 0;
        let client = Client::new(cluster, Some(folder.clone()), map, maps, reported, reach.clone());
        Ok(Self { plan, is_known, client: Some(client), maps: Some(taken), reports: Some(reports) })
    }
}

/// Opens the record stream of a node before any pillar observes it.
struct StreamInbox(RecordStreams);

impl Inbox for StreamInbox {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        match change {
            TargetChange::Started(target) => {
                self.0.open_stream(&target.assignment.node)?;
                self.0.open_stream(target.assignment.traced_node())
            }
            // The node of its tracepoints may be another one.
            TargetChange::Changed(_, assignment) => self.0.open_stream(assignment.traced_node()),
            _ => Ok(()),
        }
    }
}

impl Running {
    /// The state of the agent.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            mode: self.mode,
            is_running: !*self.ended.borrow(),
            streams: self.streams.status(),
            error: self.pillars.iter().find_map(|pillar| pillar.status().error()),
        }
    }

    /// Health and metrics of this agent.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Waits until the agent ends by itself, which it does on an error only: [`Self::shutdown`] returns it.
    pub async fn ended(&self) {
        // An error means that the thread has ended.
        let _ = self.ended.clone().wait_for(|has_ended| *has_ended).await;
    }

    /// Drains and interprets the ring buffer, writes the journal, and waits at most `timeout` for the
    /// aggregator's acknowledgements. Blocks; not to be called on an async worker.
    ///
    /// # Errors
    /// Why the agent had ended before, or why the journal could not be written.
    pub fn shutdown(mut self, timeout: Duration) -> Result<(), Error> {
        let stopped = self.stop();
        self.streams.close();
        self.uplink.wait(timeout);
        self.uplink.end();
        let settled = match self.streams.oldest_volatile_ns() {
            Some(oldest) => {
                let pending: usize = self.streams.status().iter().map(|stream| stream.pending_records).sum();
                tracing::warn!(pending, "records were not acknowledged; the next run reports a loss from there on");
                oldest
            }
            None => realtime_ns(),
        };
        stopped.and(self.folder.set_settled_ns(settled))
    }

    /// Ends all threads except the uplink's, in the order of the data path.
    fn stop(&mut self) -> Result<(), Error> {
        if let Some(mut operator) = self.operator.take() {
            operator.end();
        }
        // Discovery still answers while captured events are interpreted.
        // Every pillar is drained, even after an error of another; the first error is returned.
        let results: Vec<Result<(), Error>> = self.pillars.iter_mut().map(|pillar| pillar.drain()).collect();
        let drained: Result<(), Error> = results.into_iter().collect();
        let _ = self.notices.send(Notice::Stop);
        let discovery = join(self.discovery.take());
        // Discovery held the inboxes.
        self.pillars.iter_mut().for_each(|pillar| pillar.join());
        if let Some((stop, status)) = self.status.take() {
            drop(stop);
            // A panic was printed by its thread; it affects reports, not records.
            let _ = status.join();
        }
        drained.and(discovery)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors were logged where they happened.
        let _ = self.stop();
        self.uplink.end();
    }
}
