//! Tests of the config stream over TLS connections, with a fake token reviewer.

mod calls;
mod many;
mod reviews;
mod streams;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chainscope_proto::v1::{
    CatalogNode, HostHello, HostReport, HostStatus, HostUpdate, ObservedPod, PodReport,
    configuration_client::ConfigurationClient, host_report, observed_pod::Identity,
};
use chainscope_tls::{Acceptor, Protocol, Remote};
use futures::future::BoxFuture;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::{AUDIENCE, Config, Metrics, Review, ReviewError, ReviewToken, Service, ServiceAccounts};
use crate::{
    certificates::{self, ServingCertificate},
    desired::{Desired, HostPods, Reports},
};

/// Timeout of every awaited event.
const TIMEOUT: Duration = Duration::from_secs(60);
const AGENT: &str = "system:serviceaccount:chainscope:cs-agent";
const AGGREGATOR: &str = "system:serviceaccount:chainscope:cs-aggregator";

/// Accepts the tokens it issued, and counts the reviews.
#[derive(Default)]
struct FakeReviewer {
    known: parking_lot::Mutex<HashMap<String, Result<Review, ReviewError>>>,
    /// Number of reviews.
    reviews: watch::Sender<usize>,
    /// While true, reviews of other tokens are not answered.
    is_holding: watch::Sender<bool>,
}

impl ReviewToken for FakeReviewer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Review, ReviewError>> {
        self.reviews.send_modify(|reviews| *reviews += 1);
        let answer = self.known.lock().get(token).cloned();
        Box::pin(async move {
            let Some(answer) = answer else {
                self.is_holding.subscribe().wait_for(|is_holding| !is_holding).await.unwrap();
                return Err(ReviewError::Refused("never issued".to_owned()));
            };
            answer
        })
    }
}

impl FakeReviewer {
    /// Issues a token that is bound to a pod on a host and expires after `seconds`.
    fn issue(&self, username: &str, host: Option<&str>, seconds: u64) -> String {
        let token = jwt(AUDIENCE, seconds, self.known.lock().len());
        let extra = host.map(|host| ("authentication.kubernetes.io/node-name".to_owned(), vec![host.to_owned()]));
        let audiences = vec![AUDIENCE.to_owned()];
        let review = Review { username: username.to_owned(), audiences, extra: extra.into_iter().collect() };
        self.known.lock().insert(token.clone(), Ok(review));
        token
    }

    fn agent(&self, host: &str) -> String {
        self.issue(AGENT, Some(host), 3600)
    }

    /// Number of reviews so far.
    fn reviews(&self) -> usize {
        *self.reviews.borrow()
    }
}

fn accounts() -> ServiceAccounts {
    ServiceAccounts {
        namespace: "chainscope".to_owned(),
        agent: "cs-agent".to_owned(),
        aggregator: "cs-aggregator".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "an expiry is a wall-clock time")]
fn jwt(audience: &str, seconds: u64, number: usize) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let payload = format!(r#"{{"aud":["{audience}"],"exp":{},"jti":"{number}"}}"#, now + seconds);
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
}

/// A running config stream with its inputs and outputs.
struct TestService {
    address: SocketAddr,
    trust: TempDir,
    reviewer: Arc<FakeReviewer>,
    desired: watch::Sender<Arc<Desired>>,
    serving: watch::Sender<bool>,
    reports: watch::Receiver<Arc<Reports>>,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TestService {
    async fn new() -> Self {
        let ca = certificates::ca::new_ca("test", now()).unwrap();
        let names = BTreeSet::from(["localhost".to_owned()]);
        let certificate = Arc::new(ServingCertificate::default());
        certificate.load(&certificates::ca::new_server_certificate(&ca, &names, now()).unwrap()).unwrap();
        let trust = TempDir::new().unwrap();
        fs::write(trust.path().join("ca.crt"), &ca.certificate).unwrap();

        let (desired, desired_receiver) = watch::channel(Arc::default());
        let (serving, serving_receiver) = watch::channel(true);
        let (reviewer, metrics, stop) =
            (Arc::new(FakeReviewer::default()), Metrics::default(), CancellationToken::new());
        let (server, reports) = Service::new(Config {
            accounts: accounts(),
            reviewer: Arc::clone(&reviewer) as Arc<dyn ReviewToken>,
            desired: desired_receiver,
            serving: serving_receiver,
            metrics: metrics.clone(),
            stop: stop.clone(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.serve(listener, Acceptor::tls(certificate, Protocol::Grpc).unwrap()));
        Self { address, trust, reviewer, desired, serving, reports, metrics, stop }
    }

    async fn client(&self) -> ConfigurationClient<Channel> {
        let uri = format!("https://localhost:{}", self.address.port());
        let remote = Remote::new(&uri, Some(self.trust.path().join("ca.crt"))).unwrap();
        ConfigurationClient::new(remote.connect().await.unwrap())
    }

    /// A client with the given address of the loopback interface.
    async fn client_at(&self, address: IpAddr) -> ConfigurationClient<Channel> {
        let ca = Certificate::from_pem(fs::read(self.trust.path().join("ca.crt")).unwrap());
        let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap().tls_config(tls).unwrap();
        ConfigurationClient::new(endpoint.local_address(Some(address)).connect().await.unwrap())
    }

    /// Connects an agent with the token and sends a hello.
    async fn agent(&self, token: &str) -> Result<Agent, Status> {
        Agent::connect(&mut self.client().await, token, (1, 1)).await
    }

    fn desire(&self, desired: Desired) {
        self.desired.send_replace(Arc::new(desired));
    }

    /// Waits until the published reports satisfy a condition.
    async fn reported(&mut self, what: &str, condition: impl Fn(&Reports) -> bool) -> Arc<Reports> {
        let waited =
            timeout(TIMEOUT, self.reports.wait_for(|reports| condition(reports))).await.map(|found| found.map(|_| ()));
        assert!(matches!(waited, Ok(Ok(()))), "timeout: {what}; {:?}", self.reports.borrow());
        Arc::clone(&self.reports.borrow())
    }
}

/// The metrics as text.
fn page(metrics: &Metrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    page
}

#[expect(clippy::disallowed_methods, reason = "compared with timestamps of reports")]
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn request<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

/// The client side of a host's stream.
struct Agent {
    out: mpsc::Sender<HostReport>,
    updates: Streaming<HostUpdate>,
    pods: BTreeMap<String, ObservedPod>,
    parts: Vec<HostUpdate>,
}

impl Agent {
    async fn connect(
        client: &mut ConfigurationClient<Channel>,
        token: &str,
        (least_version, greatest_version): (u32, u32),
    ) -> Result<Self, Status> {
        let hello = HostHello { least_version, greatest_version, build: "test".to_owned() };
        Self::open(client, token, host_report::Report::Hello(hello)).await
    }

    /// Opens the stream with the given first message.
    async fn open(
        client: &mut ConfigurationClient<Channel>,
        token: &str,
        first: host_report::Report,
    ) -> Result<Self, Status> {
        let (out, reports) = mpsc::channel(4);
        out.send(HostReport { report: Some(first) }).await.unwrap();
        let updates = client.host(request(ReceiverStream::new(reports), token)).await?.into_inner();
        Ok(Self { out, updates, pods: BTreeMap::new(), parts: Vec::new() })
    }

    /// Receives the next message, and applies the update if it is complete.
    async fn next(&mut self) -> Result<HostUpdate, Status> {
        let update = timeout(TIMEOUT, self.updates.message()).await.expect("an update");
        let update = update?.ok_or_else(|| Status::ok("end of stream without a status"))?;
        self.parts.push(update.clone());
        if !update.more {
            if update.snapshot {
                self.pods.clear();
            }
            for part in std::mem::take(&mut self.parts) {
                assert_eq!((part.generation, part.snapshot), (update.generation, update.snapshot));
                self.pods.extend(part.pods.into_iter().map(|pod| (pod.uid.clone(), pod)));
                for uid in part.removed {
                    assert!(self.pods.remove(&uid).is_some(), "{uid} was removed but is unknown");
                }
            }
        }
        Ok(update)
    }

    /// Receives until the stream ends and returns the status.
    async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }

    /// Receives until the state equals `pods`; returns the number of messages.
    async fn until(&mut self, pods: &HostPods) -> usize {
        let mut updates = 0;
        while self.pods.len() != pods.len() || pods.iter().any(|(uid, pod)| self.pods.get(uid) != Some(pod.as_ref())) {
            self.next().await.expect("an update");
            updates += 1;
        }
        updates
    }

    async fn report(&self, generation: u64, pods: Vec<PodReport>) {
        let status = HostStatus { generation, pods, ..Default::default() };
        let report = HostReport { report: Some(host_report::Report::Status(status)) };
        self.out.send(report).await.unwrap();
    }
}

fn pod(uid: &str, identity: &[u8]) -> ObservedPod {
    ObservedPod {
        uid: uid.to_owned(),
        node: "tezos/rolling".to_owned(),
        node_generation: 2,
        name: format!("rolling-{uid}"),
        identity: Some(Identity::IdentityJson(identity.to_vec())),
        ..Default::default()
    }
}

fn pods(pods: impl IntoIterator<Item = ObservedPod>) -> Arc<HostPods> {
    Arc::new(pods.into_iter().map(|pod| (pod.uid.clone(), Arc::new(pod))).collect())
}

fn hosts<const N: usize>(hosts: [(&str, Arc<HostPods>); N]) -> Desired {
    let hosts = hosts.map(|(host, pods)| (host.to_owned(), pods)).into();
    let node = CatalogNode { node: "tezos/rolling".to_owned(), keep_rows: Some(7), ..Default::default() };
    Desired { hosts, catalog: [("tezos/rolling".to_owned(), Arc::new(node))].into() }
}
