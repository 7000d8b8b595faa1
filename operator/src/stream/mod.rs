//! The config stream: agents are told what to observe on their host, the aggregator which nodes there are, and the
//! agents' word on how it goes is passed to reconcile.
//!
//! ```text
//!  Desired (watch) ──▶ session ──▶ delta: what this client was sent → what is desired now ──▶ HostUpdate, CatalogUpdate
//!                        ▲  │
//!           gate: token ─┘  └──▶ intake: own pods only ──▶ reports ──▶ Reports (watch)
//! ```
//!
//! A host's stream is made from `Desired::hosts[host]`, and `host` comes from the reviewed token: there is no message by
//! which an agent could ask for another's.

mod claims;
mod delta;
mod intake;
mod metrics;
mod reports;
mod review;
mod session;

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use chainscope_hygiene::EscapedTruncated;
use chainscope_proto::v1::{
    CatalogNode, CatalogRequest, CatalogUpdate, HostHello, HostReport, HostUpdate, ObservedPod,
    configuration_server::{Configuration, ConfigurationServer},
    host_report, observed_pod,
};
use chainscope_tls::Acceptor;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
pub use metrics::Metrics;
pub use review::{AUDIENCE, Accounts, ApiReviewer, Review, ReviewError, Reviewer};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use self::{
    delta::Part,
    reports::{Opened, Registry},
    review::Gate,
    session::{Audience, Ends, not_serving, run},
};
use crate::desired::{Desired, Reports};

/// Versions of the config stream that this build speaks, least and greatest.
pub const VERSIONS: (u32, u32) = (1, 1);

/// Bytes of a client's message at most.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Bytes of an identity at most; Octez' has a few hundred.
const IDENTITY_BYTES: usize = 64 << 10;
/// Time until the first message of a stream.
const HELLO: Duration = Duration::from_secs(10);
/// Streams of one connection.
const STREAMS: u32 = 8;
/// How often an idle connection is tried, and how long the answer may take.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What the service lives on.
pub struct Config {
    /// Who may call.
    pub accounts: Accounts,
    /// Tells whose token it is.
    pub reviewer: Arc<dyn Reviewer>,
    /// What to tell.
    pub desired: watch::Receiver<Arc<Desired>>,
    /// Whether this replica leads **and** `desired` is complete: a snapshot that came too early would end recordings.
    pub serving: watch::Receiver<bool>,
    /// Counters.
    pub metrics: Metrics,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// The gRPC service, ready to be served.
pub struct Service {
    gate: Gate,
    registry: Arc<Registry>,
    desired: watch::Receiver<Arc<Desired>>,
    serving: watch::Receiver<bool>,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Service {
    /// Makes the service, and what the agents will say to it.
    #[must_use]
    pub fn new(config: Config) -> (Self, watch::Receiver<Arc<Reports>>) {
        let Config { accounts, reviewer, desired, serving, metrics, stop } = config;
        let (registry, reports) = Registry::new();
        let gate = Gate::new(&accounts, reviewer, metrics.clone());
        (Self { gate, registry, desired, serving, metrics, stop }, reports)
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// What the library says of its settings.
    pub async fn serve(self, listener: TcpListener, acceptor: Acceptor) -> Result<(), tonic::transport::Error> {
        let (registry, serving, stop) = (Arc::clone(&self.registry), self.serving.clone(), self.stop.clone());
        let service = ConfigurationServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let server = Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(HEARTBEAT))
            .http2_keepalive_timeout(Some(HEARTBEAT))
            .http2_max_header_list_size(32 << 10)
            .add_service(service)
            .serve_with_incoming_shutdown(chainscope_tls::incoming(listener, acceptor), stop.cancelled_owned());
        let publisher = async {
            registry.publish(serving).await;
            std::future::pending().await
        };
        tokio::select! {
            ended = server => ended,
            () = publisher => Ok(()),
        }
    }

    fn ends(&self, expires: std::time::SystemTime, superseded: CancellationToken) -> Ends {
        let (serving, stop, metrics) = (self.serving.clone(), self.stop.clone(), self.metrics.clone());
        Ends { expires, serving, stop, superseded, metrics }
    }

    fn check_serving(&self) -> Result<(), Status> {
        if *self.serving.borrow() {
            return Ok(());
        }
        self.metrics.refused("not the leader");
        Err(not_serving())
    }
}

/// What a call returns: the updates, and in the end why there are no more.
type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Configuration for Service {
    type HostStream = Updates<HostUpdate>;
    type CatalogStream = Updates<CatalogUpdate>;

    async fn host(&self, request: Request<Streaming<HostReport>>) -> Result<Response<Self::HostStream>, Status> {
        self.check_serving()?;
        let agent = self.gate.agent(request.metadata()).await?;
        let mut reports = request.into_inner();
        let (registry, desired, metrics) = (Arc::clone(&self.registry), self.desired.clone(), self.metrics.clone());
        let ends = self.ends(agent.expires, CancellationToken::new());
        Ok(Response::new(updates(move |out| async move {
            let (version, build) = match hello(&mut reports).await {
                Ok(hello) => hello,
                Err(status) => {
                    metrics.refused("no common version");
                    return status;
                }
            };
            let opened = registry.open(&agent.host);
            let ends = Ends { superseded: opened.superseded(), ..ends };
            let (host, pod) = (agent.host, agent.pod);
            tracing::info!(%host, %pod, build = %EscapedTruncated(&build), "an agent is here");
            let mut audience = Host { host, version, opened, metrics };
            let metrics = audience.metrics.clone();
            let status = run(&mut audience, desired, reports, ends.first(), out, &metrics).await;
            tracing::info!(host = %audience.host, %pod, reason = %EscapedTruncated(status.message()), "an agent's stream ended");
            status
        })))
    }

    async fn catalog(&self, request: Request<CatalogRequest>) -> Result<Response<Self::CatalogStream>, Status> {
        self.check_serving()?;
        let expires = self.gate.aggregator(request.metadata()).await?;
        let CatalogRequest { least_version, greatest_version, build } = request.into_inner();
        let version = negotiate(VERSIONS, (least_version, greatest_version), "aggregator")
            .inspect_err(|_| self.metrics.refused("no common version"))?;
        tracing::info!(build = %EscapedTruncated(&build), "an aggregator is here");
        let (desired, metrics) = (self.desired.clone(), self.metrics.clone());
        let ends = self.ends(expires, CancellationToken::new());
        Ok(Response::new(updates(move |out| async move {
            let status = run(&mut Catalog { version }, desired, stream::pending(), ends.first(), out, &metrics).await;
            tracing::info!(reason = %EscapedTruncated(status.message()), "an aggregator's stream ended");
            status
        })))
    }
}

/// Runs a stream in a task of its own. One part waits at most: the rest is still a difference.
fn updates<T, F>(serve: impl FnOnce(mpsc::Sender<T>) -> F) -> Updates<T>
where
    T: Send + 'static,
    F: Future<Output = Status> + Send + 'static,
{
    let (out, updates) = mpsc::channel(1);
    let (end, ended) = oneshot::channel();
    let serving = serve(out);
    tokio::spawn(async move {
        let status = serving.await;
        let _ = end.send(status);
    });
    let last = ended.map(|status| Err(status.unwrap_or_else(|_| Status::internal("the stream broke off"))));
    Box::pin(ReceiverStream::new(updates).map(Ok).chain(stream::once(last)))
}

async fn hello(reports: &mut Streaming<HostReport>) -> Result<(u32, String), Status> {
    let first = timeout(HELLO, reports.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello came in 10 seconds"))??
        .and_then(|report| report.report);
    let Some(host_report::Report::Hello(HostHello { least_version, greatest_version, build })) = first else {
        return Err(Status::invalid_argument("the first message of the stream is no hello"));
    };
    Ok((negotiate(VERSIONS, (least_version, greatest_version), "agent")?, build))
}

/// The greatest version that both sides speak.
fn negotiate(ours: (u32, u32), theirs: (u32, u32), who: &str) -> Result<u32, Status> {
    let version = ours.1.min(theirs.1);
    if theirs.0 <= theirs.1 && version >= ours.0.max(theirs.0) {
        return Ok(version);
    }
    let older = if theirs.1 < ours.0 { who } else { "operator" };
    Err(Status::failed_precondition(format!(
        "the operator speaks versions {} to {} of the config stream, the {who} {} to {}: upgrade the {older}",
        ours.0, ours.1, theirs.0, theirs.1
    )))
}

/// An agent, told about the pods of its host.
struct Host {
    host: String,
    version: u32,
    opened: Opened,
    metrics: Metrics,
}

impl Audience for Host {
    type Item = ObservedPod;
    type Update = HostUpdate;
    type Report = HostReport;
    const NAME: &'static str = "agent";

    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<ObservedPod>>> {
        desired.hosts.get(&self.host).map(AsRef::as_ref)
    }

    fn update(&self, part: Part<ObservedPod>) -> HostUpdate {
        let Part { generation, snapshot, more, changed, removed } = part;
        let pods = changed.iter().map(|pod| sendable(pod)).collect();
        HostUpdate { version: self.version, generation, snapshot, pods, removed, more }
    }

    fn heard(&mut self, report: HostReport, desired: &Desired) -> Result<(), Status> {
        match report.report {
            Some(host_report::Report::Status(status)) => {
                let (status, ignored) = intake::checked(status, desired.hosts.get(&self.host).map(AsRef::as_ref));
                self.metrics.status(ignored);
                self.opened.heard(status);
                Ok(())
            }
            Some(host_report::Report::Hello(_)) => Err(Status::invalid_argument("a second hello")),
            // Of a newer agent.
            None => Ok(()),
        }
    }
}

/// A pod as it is sent: an identity that is none must not fill the frame.
fn sendable(pod: &ObservedPod) -> ObservedPod {
    match &pod.identity {
        Some(observed_pod::Identity::IdentityJson(json)) if json.len() > IDENTITY_BYTES => {
            let missing = observed_pod::Identity::IdentityMissing("the identity is longer than 64 KiB".to_owned());
            let pod = ObservedPod { identity: None, ..pod.clone() };
            ObservedPod { identity: Some(missing), ..pod }
        }
        _ => pod.clone(),
    }
}

/// The aggregator, told about all nodes and no identity.
struct Catalog {
    version: u32,
}

impl Audience for Catalog {
    type Item = CatalogNode;
    type Update = CatalogUpdate;
    type Report = ();
    const NAME: &'static str = "aggregator";

    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<CatalogNode>>> {
        Some(&desired.catalog)
    }

    fn update(&self, part: Part<CatalogNode>) -> CatalogUpdate {
        let Part { generation, snapshot, more, changed, removed } = part;
        let nodes = changed.iter().map(|node| node.as_ref().clone()).collect();
        CatalogUpdate { version: self.version, generation, snapshot, nodes, removed, more }
    }

    fn heard(&mut self, (): (), _: &Desired) -> Result<(), Status> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
