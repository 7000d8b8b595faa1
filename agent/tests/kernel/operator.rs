//! An operator in memory: sends any number of agents the same pods, and records their reports.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Instant,
};

use chainscope_proto::v1::{
    CatalogRequest, CatalogUpdate, HostReport, HostStatus, HostUpdate, ObservedPod, PodReport,
    configuration_server::{Configuration, ConfigurationServer},
    host_report,
};
use chainscope_testing::free_port;
use parking_lot::{Condvar, Mutex};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::common::TIMEOUT;

#[derive(Clone)]
struct Service {
    pods: watch::Receiver<Vec<ObservedPod>>,
    statuses: Arc<(Mutex<Vec<HostStatus>>, Condvar)>,
    generation: Arc<AtomicU64>,
}

pub(crate) struct Operator {
    pub(crate) address: SocketAddr,
    pods: watch::Sender<Vec<ObservedPod>>,
    statuses: Arc<(Mutex<Vec<HostStatus>>, Condvar)>,
    /// Ends the server.
    runtime: Option<Runtime>,
}

impl Operator {
    pub(crate) fn start(pods: Vec<ObservedPod>) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], free_port())), pods)
    }

    pub(crate) fn start_at(address: SocketAddr, pods: Vec<ObservedPod>) -> Self {
        let runtime = Runtime::new().unwrap();
        let (pods, observed) = watch::channel(pods);
        let statuses = Arc::<(Mutex<Vec<HostStatus>>, Condvar)>::default();
        let service = Service { pods: observed, statuses: Arc::clone(&statuses), generation: Arc::default() };
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(ConfigurationServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self { address, pods, statuses, runtime: Some(runtime) }
    }

    pub(crate) fn configure(&self, pods: Vec<ObservedPod>) {
        self.pods.send_replace(pods);
    }

    /// Waits for a report of a pod in which `found` finds something.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, uid: &str, mut found: impl FnMut(&PodReport) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let mut statuses = self.statuses.0.lock();
        loop {
            let last = statuses.last().and_then(|status| status.pods.iter().find(|pod| pod.uid == uid));
            if let Some(found) = last.and_then(&mut found) {
                return found;
            }
            let last = last.cloned();
            if self.statuses.1.wait_until(&mut statuses, deadline).timed_out() {
                panic!("waited in vain for {what}; the last report: {last:#?}");
            }
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Configuration for Service {
    type HostStream = Updates<HostUpdate>;
    type CatalogStream = Updates<CatalogUpdate>;

    async fn host(&self, request: Request<Streaming<HostReport>>) -> Result<Response<Self::HostStream>, Status> {
        let mut reports = request.into_inner();
        let statuses = Arc::clone(&self.statuses);
        tokio::spawn(async move {
            while let Ok(Some(report)) = reports.message().await {
                if let Some(host_report::Report::Status(status)) = report.report {
                    statuses.0.lock().push(status);
                    statuses.1.notify_all();
                }
            }
        });
        let generation = Arc::clone(&self.generation);
        let mut before: Option<Vec<ObservedPod>> = None;
        let updates = tokio_stream::wrappers::WatchStream::new(self.pods.clone()).map(move |pods| {
            let generation = generation.fetch_add(1, Ordering::Relaxed) + 1;
            let gone = |pod: &&ObservedPod| !pods.iter().any(|known| known.uid == pod.uid);
            let removed = before.iter().flatten().filter(gone).map(|pod| pod.uid.clone()).collect();
            let snapshot = before.is_none();
            before = Some(pods.clone());
            Ok(HostUpdate { version: 1, generation, snapshot, pods, removed, more: false })
        });
        Ok(Response::new(Box::pin(updates)))
    }

    async fn catalog(&self, _: Request<CatalogRequest>) -> Result<Response<Self::CatalogStream>, Status> {
        Err(Status::unimplemented("agents only"))
    }
}
