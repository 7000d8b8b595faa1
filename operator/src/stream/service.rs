//! The gRPC service of the config stream: authenticates callers, negotiates the version and starts subscriptions.

use std::{future::Future, net::IpAddr, pin::Pin, sync::Arc, time::Duration};

use chainscope_hygiene::EscapedTruncated;
use chainscope_proto::v1::{
    CatalogRequest, CatalogUpdate, HostHello, HostReport, HostUpdate,
    configuration_server::{Configuration, ConfigurationServer},
    host_report,
};
use chainscope_tls::Acceptor;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{
    auth::{Authenticator, ServiceAccounts},
    clients::{CatalogSubscriber, HostSubscriber},
    metrics::Metrics,
    reports::AgentRegistry,
    review::ReviewToken,
    subscription::{Lifetime, not_serving, run},
};
use crate::desired::{Desired, Reports};

/// Supported versions of the config stream, least and greatest.
pub const VERSIONS: (u32, u32) = (1, 1);

/// Maximum size of a client's message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Maximum size of the headers of a request.
const MAX_HEADER_BYTES: u32 = 32 << 10;
/// Timeout of the first message of a stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of streams per connection.
const MAX_STREAMS: u32 = 8;
/// Interval of HTTP/2 keepalive pings, and timeout of their acknowledgement.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Dependencies of the service.
pub struct Config {
    /// The ServiceAccounts that may call.
    pub accounts: ServiceAccounts,
    /// Reviews tokens.
    pub reviewer: Arc<dyn ReviewToken>,
    /// The desired state to publish.
    pub desired: watch::Receiver<Arc<Desired>>,
    /// Whether this replica is the leader **and** `desired` is complete: agents stop observing pods that are absent from
    /// a snapshot.
    pub serving: watch::Receiver<bool>,
    /// Metrics.
    pub metrics: Metrics,
    /// Stops the service and its streams.
    pub stop: CancellationToken,
}

/// The gRPC service.
pub struct Service {
    authenticator: Authenticator,
    registry: Arc<AgentRegistry>,
    desired: watch::Receiver<Arc<Desired>>,
    serving: watch::Receiver<bool>,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Service {
    /// Creates the service, and the receiver of the agents' reports.
    #[must_use]
    pub fn new(config: Config) -> (Self, watch::Receiver<Arc<Reports>>) {
        let Config { accounts, reviewer, desired, serving, metrics, stop } = config;
        let (registry, reports) = AgentRegistry::new();
        let authenticator = Authenticator::new(&accounts, reviewer, metrics.clone());
        (Self { authenticator, registry, desired, serving, metrics, stop }, reports)
    }

    /// Serves until `Config::stop` is cancelled.
    ///
    /// # Errors
    /// If the transport cannot be configured.
    pub async fn serve(self, listener: TcpListener, acceptor: Acceptor) -> Result<(), tonic::transport::Error> {
        let (registry, serving, stop) = (Arc::clone(&self.registry), self.serving.clone(), self.stop.clone());
        let service = ConfigurationServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let server = Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .http2_max_header_list_size(MAX_HEADER_BYTES)
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

    fn lifetime(&self, expires: std::time::SystemTime, superseded: CancellationToken) -> Lifetime {
        let (serving, stop, metrics) = (self.serving.clone(), self.stop.clone(), self.metrics.clone());
        Lifetime { expires, serving, stop, superseded, metrics }
    }

    fn check_serving(&self) -> Result<(), Status> {
        if *self.serving.borrow() {
            return Ok(());
        }
        self.metrics.refused("not the leader");
        Err(not_serving())
    }
}

/// The response of a call: updates, and finally the status that ended the stream.
type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Configuration for Service {
    type HostStream = Updates<HostUpdate>;
    type CatalogStream = Updates<CatalogUpdate>;

    async fn host(&self, request: Request<Streaming<HostReport>>) -> Result<Response<Self::HostStream>, Status> {
        self.check_serving()?;
        let agent = self.authenticator.agent(request.metadata(), peer(&request)).await?;
        let mut reports = request.into_inner();
        let (registry, desired, metrics) = (Arc::clone(&self.registry), self.desired.clone(), self.metrics.clone());
        let lifetime = self.lifetime(agent.expires, CancellationToken::new());
        Ok(Response::new(spawn(move |out| async move {
            let (version, build) = match receive_hello(&mut reports).await {
                Ok(hello) => hello,
                Err(status) => {
                    metrics.refused("no common version");
                    return status;
                }
            };
            let stream = registry.open(&agent.host);
            let lifetime = Lifetime { superseded: stream.superseded(), ..lifetime };
            let (host, pod) = (agent.host, agent.pod);
            tracing::info!(%host, %pod, build = %EscapedTruncated(&build), "agent connected");
            let mut subscriber = HostSubscriber { host, version, stream, metrics };
            let metrics = subscriber.metrics.clone();
            let status = run(&mut subscriber, desired, reports, lifetime.end(), out, &metrics).await;
            let reason = EscapedTruncated(status.message());
            tracing::info!(host = %subscriber.host, %pod, %reason, "stream of an agent ended");
            status
        })))
    }

    async fn catalog(&self, request: Request<CatalogRequest>) -> Result<Response<Self::CatalogStream>, Status> {
        self.check_serving()?;
        let expires = self.authenticator.aggregator(request.metadata(), peer(&request)).await?;
        let CatalogRequest { least_version, greatest_version, build } = request.into_inner();
        let version = negotiate(VERSIONS, (least_version, greatest_version), "aggregator")
            .inspect_err(|_| self.metrics.refused("no common version"))?;
        tracing::info!(build = %EscapedTruncated(&build), "aggregator connected");
        let (desired, metrics) = (self.desired.clone(), self.metrics.clone());
        let lifetime = self.lifetime(expires, CancellationToken::new());
        Ok(Response::new(spawn(move |out| async move {
            let mut subscriber = CatalogSubscriber { version };
            let status = run(&mut subscriber, desired, stream::pending(), lifetime.end(), out, &metrics).await;
            tracing::info!(reason = %EscapedTruncated(status.message()), "stream of the aggregator ended");
            status
        })))
    }
}

/// Address of the caller: behind a Service, that of its pod.
fn peer<T>(request: &Request<T>) -> Option<IpAddr> {
    request.remote_addr().map(|address| address.ip())
}

/// Runs a subscription in its own task. The channel holds one part; later parts remain part of the difference.
fn spawn<T, F>(subscribe: impl FnOnce(mpsc::Sender<T>) -> F) -> Updates<T>
where
    T: Send + 'static,
    F: Future<Output = Status> + Send + 'static,
{
    let (out, updates) = mpsc::channel(1);
    let (end, ended) = oneshot::channel();
    let subscription = subscribe(out);
    tokio::spawn(async move {
        let status = subscription.await;
        let _ = end.send(status);
    });
    let last = ended.map(|status| Err(status.unwrap_or_else(|_| Status::internal("the stream's task panicked"))));
    Box::pin(ReceiverStream::new(updates).map(Ok).chain(stream::once(last)))
}

async fn receive_hello(reports: &mut Streaming<HostReport>) -> Result<(u32, String), Status> {
    let first = timeout(HELLO_TIMEOUT, reports.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello was received within 10 seconds"))??
        .and_then(|report| report.report);
    let Some(host_report::Report::Hello(HostHello { least_version, greatest_version, build })) = first else {
        return Err(Status::invalid_argument("the first message of the stream is not a hello"));
    };
    Ok((negotiate(VERSIONS, (least_version, greatest_version), "agent")?, build))
}

/// The greatest version that both sides support.
pub(super) fn negotiate(ours: (u32, u32), theirs: (u32, u32), client: &str) -> Result<u32, Status> {
    let version = ours.1.min(theirs.1);
    if theirs.0 <= theirs.1 && version >= ours.0.max(theirs.0) {
        return Ok(version);
    }
    let older = if theirs.1 < ours.0 { client } else { "operator" };
    Err(Status::failed_precondition(format!(
        "the operator supports versions {} to {} of the config stream, the {client} {} to {}: upgrade the {older}",
        ours.0, ours.1, theirs.0, theirs.1
    )))
}
