//! Reads the certificates from the cluster and writes what [`decision`](super::decision) computes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chainscope_hygiene::warn_limited;
use futures::{FutureExt as _, Stream, StreamExt as _, stream::select_all};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{PartialObjectMeta, Patch, PatchParams},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    ca::CertificateAndKey,
    decision::{CertificateState, Change, Data, ServerCertificate, change, next},
    serving::ServingCertificate,
};

/// Field manager of server-side apply.
const MANAGER: &str = "chainscope-operator-certificates";
/// Interval between two reconciliations.
const RECONCILE_INTERVAL: Duration = Duration::from_mins(5);
/// Delay after a failed reconciliation.
const BACKOFF: Duration = Duration::from_secs(5);
/// Interval while this replica has no serving certificate.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay of the reconciliation after a change of an object, for changes that come together.
const LINGER: Duration = Duration::from_secs(1);
/// Timeout of a reconciliation.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of steps of a reconciliation; the first one takes five.
const MAX_STEPS: usize = 32;

/// Errors of a reconciliation.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A request to the API server failed.
    #[error("{what}: {cause}")]
    Cluster {
        /// Kind and name of the object.
        what: String,
        /// The client's error.
        cause: kube::Error,
    },
    /// A certificate could not be created.
    #[error("{0}")]
    Create(String),
    /// The reconciliation timed out.
    #[error("reconciliation timed out after 30 seconds")]
    Timeout,
    /// The maximum number of steps was exceeded.
    #[error("the certificates did not converge")]
    NotConverging,
}

/// Creates and rotates the certificates of a release.
pub struct CertificateManager {
    secrets: Api<Secret>,
    bundles: Api<ConfigMap>,
    deployments: Api<Deployment>,
    release: String,
    namespace: String,
    serving: Arc<ServingCertificate>,
    expiry: ExpiryGauges,
    /// The last data of the CA's Secret, from which a deleted one is restored: clients keep trusting the CA.
    ca: Data,
    /// Whether the Deployment existed: without it the release is being uninstalled.
    had_owner: bool,
}

/// Expiry time by certificate, in seconds since the Unix epoch.
pub type ExpiryGauges = Family<[(&'static str, String); 1], Gauge>;

/// The objects that were read, with what is needed to write them.
struct Snapshot {
    state: CertificateState,
    /// `resourceVersion` of the CA's Secret: a write after a concurrent change fails.
    version: Option<String>,
    owner: Option<OwnerReference>,
    is_uninstalling: bool,
    /// Objects to write as they are: a deleted CA, and objects with another owner.
    rewrites: Vec<Change>,
}

impl CertificateManager {
    /// Creates a manager for a release. `serving` receives the operator's certificate, `expiry` the expiry times.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &str,
        release: &str,
        serving: Arc<ServingCertificate>,
        expiry: ExpiryGauges,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            bundles: Api::namespaced(client.clone(), namespace),
            deployments: Api::namespaced(client, namespace),
            release: release.to_owned(),
            namespace: namespace.to_owned(),
            serving,
            expiry,
            ca: Data::new(),
            had_owner: false,
        }
    }

    /// Reconciles periodically and after changes of the objects until `stop` is cancelled; writes only while this replica
    /// is the leader.
    pub async fn run(mut self, mut is_leader: watch::Receiver<bool>, stop: CancellationToken) {
        let mut changes = std::pin::pin!(self.changes());
        loop {
            let leads = *is_leader.borrow_and_update();
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Cancels the requests in flight: only the leader writes.
                changed = is_leader.changed() => if changed.is_err() { return } else { continue },
                outcome = timeout(RECONCILE_TIMEOUT, self.reconcile(leads, now())) => {
                    outcome.unwrap_or(Err(CertificateError::Timeout))
                }
            };
            let pause = match outcome {
                Ok(()) if self.serving.is_loaded() => RECONCILE_INTERVAL,
                Ok(()) => POLL_INTERVAL,
                Err(error) => {
                    warn_limited!(%error, "cannot reconcile the certificates; retrying");
                    BACKOFF
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                changed = is_leader.changed() => if changed.is_err() { return },
                // Own writes are among the changes; nothing is due after them.
                Some(()) = changes.next() => {
                    sleep(LINGER).await;
                    while changes.next().now_or_never().flatten().is_some() {}
                }
            }
        }
    }

    /// Changes and deletions of the objects.
    fn changes(&self) -> impl Stream<Item = ()> + use<> {
        let client = self.secrets.clone().into_client();
        let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), &self.namespace);
        let bundles: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, &self.namespace);
        let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let servers = self.servers().map(|server| format!("{server}-tls"));
        let secret_names = [self.name("ca")].into_iter().chain(servers);
        let secrets = secret_names.map(move |name| changes_of(watcher(secrets.clone(), named(&name))).boxed());
        select_all(secrets.chain([changes_of(watcher(bundles, named(&self.name("ca")))).boxed()]))
    }

    /// Writes what is due if this replica is the leader, and loads the serving certificate. `now` is in seconds since
    /// the Unix epoch.
    ///
    /// # Errors
    /// [`CertificateError`]; earlier writes are kept.
    pub async fn reconcile(&mut self, is_leader: bool, now: i64) -> Result<(), CertificateError> {
        let mut snapshot = self.read().await?;
        self.had_owner |= snapshot.owner.is_some();
        if is_leader && !snapshot.is_uninstalling {
            self.write(&mut snapshot, now).await?;
        }
        if !snapshot.state.ca.is_empty() {
            self.ca.clone_from(&snapshot.state.ca);
        }
        for (name, end) in snapshot.state.expiry_times() {
            self.expiry.get_or_create(&[("certificate", name.to_owned())]).set(end);
        }
        if let Some(pair) = snapshot.state.servers.get(&self.server("operator")).and_then(|server| server.pair.as_ref())
            && let Err(error) = self.serving.load(pair)
        {
            warn_limited!(%error, "the certificate in the Secret is invalid");
        }
        Ok(())
    }

    async fn write(&self, snapshot: &mut Snapshot, now: i64) -> Result<(), CertificateError> {
        for change in std::mem::take(&mut snapshot.rewrites) {
            self.apply(&change, snapshot).await?;
        }
        for _ in 0..MAX_STEPS {
            let Some(step) = next(&snapshot.state, now) else { return Ok(()) };
            tracing::info!(step = step.name(), "certificate rotation");
            let change = change(&step, &snapshot.state, &self.release, now)
                .map_err(|error| CertificateError::Create(error.to_string()))?;
            self.apply(&change, snapshot).await?;
            snapshot.state.apply(change);
        }
        Err(CertificateError::NotConverging)
    }

    async fn apply(&self, change: &Change, snapshot: &mut Snapshot) -> Result<(), CertificateError> {
        match change {
            Change::Ca(data) => {
                let secret = self.secret(self.name("ca"), "Opaque", data, snapshot);
                snapshot.version = self.apply_secret(&secret).await?.metadata.resource_version;
            }
            Change::Bundle(bundle) => self.apply_bundle(bundle, snapshot).await?,
            Change::ServerCertificate(server, pair) => {
                let name = format!("{server}-tls");
                let mut secret = self.secret(name, "kubernetes.io/tls", &tls_data(pair), snapshot);
                secret.metadata.resource_version = None;
                self.apply_secret(&secret).await?;
            }
        }
        Ok(())
    }

    async fn read(&self) -> Result<Snapshot, CertificateError> {
        let owner = self.owner().await?;
        let is_foreign = |metadata: &ObjectMeta| {
            let mut owners = metadata.owner_references.iter().flatten();
            owner.as_ref().is_some_and(|owner| owners.all(|other| other.uid != owner.uid))
        };
        let mut rewrites = Vec::new();
        let secret = self.get_secret(&self.name("ca")).await?;
        let version = secret.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let must_write_ca = secret.as_ref().map_or(!self.ca.is_empty(), |secret| is_foreign(&secret.metadata));
        let ca = secret.map_or_else(|| self.ca.clone(), data);
        if must_write_ca {
            rewrites.push(Change::Ca(ca.clone()));
        }
        let name = self.name("ca");
        let bundle = self.bundles.get_opt(&name).await.map_err(|cause| failed("ConfigMap", &name, cause))?;
        let is_foreign_bundle = bundle.as_ref().is_some_and(|bundle| is_foreign(&bundle.metadata));
        let bundle = bundle.and_then(|bundle| bundle.data?.remove("ca.crt"));
        rewrites.extend(bundle.clone().filter(|_| is_foreign_bundle).map(Change::Bundle));
        let mut servers = BTreeMap::new();
        for server in self.servers() {
            let secret = self.get_secret(&format!("{server}-tls")).await?;
            let is_foreign = secret.as_ref().is_some_and(|secret| is_foreign(&secret.metadata));
            let pair = secret.and_then(tls_pair);
            rewrites.extend(
                pair.clone().filter(|_| is_foreign).map(|pair| Change::ServerCertificate(server.clone(), pair)),
            );
            servers.insert(server.clone(), ServerCertificate { names: self.dns_names(&server), pair });
        }
        let is_uninstalling = self.had_owner && owner.is_none();
        Ok(Snapshot { state: CertificateState { ca, bundle, servers }, version, owner, is_uninstalling, rewrites })
    }

    async fn get_secret(&self, name: &str) -> Result<Option<Secret>, CertificateError> {
        self.secrets.get_opt(name).await.map_err(|cause| failed("Secret", name, cause))
    }

    /// The owner of the objects: the operator's Deployment, unless it is being deleted.
    async fn owner(&self) -> Result<Option<OwnerReference>, CertificateError> {
        let name = self.server("operator");
        let found = self.deployments.get_metadata_opt(&name).await;
        let found = found.map_err(|cause| failed("Deployment", &name, cause))?;
        let metadata = found.map(|deployment| deployment.metadata).filter(|found| found.deletion_timestamp.is_none());
        Ok(metadata.and_then(|metadata| {
            Some(OwnerReference {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name,
                uid: metadata.uid?,
                ..Default::default()
            })
        }))
    }

    fn name(&self, part: &str) -> String {
        format!("{}-{part}", self.release)
    }

    /// Name of a server's Service, and of its Secret without `-tls`.
    fn server(&self, part: &str) -> String {
        self.name(part)
    }

    fn servers(&self) -> [String; 2] {
        ["operator", "aggregator"].map(|part| self.server(part))
    }

    /// DNS names of a Service, and `localhost` for forwarded ports.
    fn dns_names(&self, service: &str) -> BTreeSet<String> {
        let namespace = &self.namespace;
        [
            service.to_owned(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            "localhost".to_owned(),
        ]
        .into()
    }

    fn metadata(&self, name: String, snapshot: &Snapshot) -> ObjectMeta {
        let labels = [
            ("app.kubernetes.io/name", "chainscope"),
            ("app.kubernetes.io/instance", self.release.as_str()),
            ("app.kubernetes.io/managed-by", MANAGER),
        ];
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: snapshot.owner.clone().map(|owner| vec![owner]),
            ..Default::default()
        }
    }

    /// A Secret with the resource version that was read: a write after a concurrent change fails.
    fn secret(&self, name: String, kind: &str, data: &Data, snapshot: &Snapshot) -> Secret {
        let data = data.iter().map(|(key, bytes)| (key.clone(), ByteString(bytes.to_vec()))).collect();
        let metadata = ObjectMeta { resource_version: snapshot.version.clone(), ..self.metadata(name, snapshot) };
        Secret { metadata, type_: Some(kind.to_owned()), data: Some(data), ..Default::default() }
    }

    async fn apply_secret(&self, secret: &Secret) -> Result<Secret, CertificateError> {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let applied = self.secrets.patch(name, &params(), &Patch::Apply(secret)).await;
        applied.map_err(|cause| failed("Secret", name, cause))
    }

    async fn apply_bundle(&self, bundle: &str, snapshot: &Snapshot) -> Result<(), CertificateError> {
        let name = self.name("ca");
        let data = [("ca.crt".to_owned(), bundle.to_owned())].into();
        let bundle =
            ConfigMap { metadata: self.metadata(name.clone(), snapshot), data: Some(data), ..Default::default() };
        let applied = self.bundles.patch(&name, &params(), &Patch::Apply(&bundle)).await;
        applied.map(drop).map_err(|cause| failed("ConfigMap", &name, cause))
    }
}

/// The changes and deletions among the events of a watch. The end of a list may be a missed deletion.
fn changes_of<T>(events: impl Stream<Item = watcher::Result<Event<T>>>) -> impl Stream<Item = ()> {
    events.default_backoff().filter_map(async |event| match event {
        Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(()),
        Ok(Event::Init | Event::InitApply(_)) => None,
        Err(error) => {
            warn_limited!(%error, "cannot watch the certificates; retrying");
            None
        }
    })
}

fn params() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

fn failed(kind: &str, name: &str, cause: kube::Error) -> CertificateError {
    CertificateError::Cluster { what: format!("{kind} {name}"), cause }
}

fn data(secret: Secret) -> Data {
    secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, Zeroizing::new(bytes.0))).collect()
}

fn tls_pair(secret: Secret) -> Option<CertificateAndKey> {
    let data = data(secret);
    let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned);
    Some(CertificateAndKey { certificate: text("tls.crt")?, key: Zeroizing::new(text("tls.key")?) })
}

fn tls_data(pair: &CertificateAndKey) -> Data {
    [("tls.crt", pair.certificate.as_str()), ("tls.key", pair.key.as_str())]
        .map(|(key, text)| (key.to_owned(), Zeroizing::new(text.as_bytes().to_vec())))
        .into()
}

#[expect(clippy::disallowed_methods, reason = "the validity of certificates is in wall-clock time")]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
