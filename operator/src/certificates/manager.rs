//! Reads the certificates from the cluster and writes what [`decision`](super::decision) computes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chainscope_hygiene::warn_limited;
use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
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
    leases: Api<Lease>,
    release: String,
    namespace: String,
    serving: Arc<ServingCertificate>,
    expiry: ExpiryGauges,
}

/// Expiry time by certificate, in seconds since the Unix epoch.
pub type ExpiryGauges = Family<[(&'static str, String); 1], Gauge>;

/// The objects that were read, with what is needed to write them.
struct Snapshot {
    state: CertificateState,
    /// `resourceVersion` of the CA's Secret: a write after a concurrent change fails.
    version: Option<String>,
    owner: Option<OwnerReference>,
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
            leases: Api::namespaced(client, namespace),
            release: release.to_owned(),
            namespace: namespace.to_owned(),
            serving,
            expiry,
        }
    }

    /// Reconciles periodically until `stop` is cancelled; writes only while this replica is the leader.
    pub async fn run(self, mut is_leader: watch::Receiver<bool>, stop: CancellationToken) {
        loop {
            let leads = *is_leader.borrow_and_update();
            let outcome = timeout(RECONCILE_TIMEOUT, self.reconcile(leads, now()))
                .await
                .unwrap_or(Err(CertificateError::Timeout));
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
            }
        }
    }

    /// Writes what is due if this replica is the leader, and loads the serving certificate. `now` is in seconds since
    /// the Unix epoch.
    ///
    /// # Errors
    /// [`CertificateError`]; earlier writes are kept.
    pub async fn reconcile(&self, is_leader: bool, now: i64) -> Result<(), CertificateError> {
        let mut snapshot = self.read().await?;
        if is_leader {
            self.write(&mut snapshot, now).await?;
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
        for _ in 0..MAX_STEPS {
            let Some(step) = next(&snapshot.state, now) else { return Ok(()) };
            tracing::info!(step = step.name(), "certificate rotation");
            let change = change(&step, &snapshot.state, &self.release, now)
                .map_err(|error| CertificateError::Create(error.to_string()))?;
            match &change {
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
            snapshot.state.apply(change);
        }
        Err(CertificateError::NotConverging)
    }

    async fn read(&self) -> Result<Snapshot, CertificateError> {
        let ca = self.get_secret(&self.name("ca")).await?;
        let version = ca.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let name = self.name("ca");
        let bundle = self.bundles.get_opt(&name).await.map_err(|cause| failed("ConfigMap", &name, cause))?;
        let mut servers = BTreeMap::new();
        for server in ["operator", "aggregator"].map(|part| self.server(part)) {
            let secret = self.get_secret(&format!("{server}-tls")).await?;
            let server_is = ServerCertificate { names: self.dns_names(&server), pair: secret.and_then(tls_pair) };
            servers.insert(server, server_is);
        }
        let state = CertificateState {
            ca: ca.map(data).unwrap_or_default(),
            bundle: bundle.and_then(|bundle| bundle.data?.remove("ca.crt")),
            servers,
        };
        Ok(Snapshot { state, version, owner: self.owner().await? })
    }

    async fn get_secret(&self, name: &str) -> Result<Option<Secret>, CertificateError> {
        self.secrets.get_opt(name).await.map_err(|cause| failed("Secret", name, cause))
    }

    /// The owner of the objects: the Lease of the release, if it exists.
    async fn owner(&self) -> Result<Option<OwnerReference>, CertificateError> {
        let name = self.server("operator");
        let lease = self.leases.get_opt(&name).await.map_err(|cause| failed("Lease", &name, cause))?;
        Ok(lease.and_then(|lease| {
            Some(OwnerReference {
                api_version: "coordination.k8s.io/v1".to_owned(),
                kind: "Lease".to_owned(),
                name,
                uid: lease.metadata.uid?,
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
