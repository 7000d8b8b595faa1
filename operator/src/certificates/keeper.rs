//! Reads what is there, and writes what [`decision`](super::decision) says.

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
    authority::Pair,
    decision::{Change, Data, Found, Server, change, next},
    served::Served,
};

/// Who writes, for server-side apply.
const MANAGER: &str = "chainscope-operator-certificates";
/// Between two looks when all is well, when something failed, and while a replica waits for its certificate.
const CALM: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(5);
const WAITING: Duration = Duration::from_secs(1);
/// For one look with everything it writes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Steps of one look at most; a first one has five.
const STEPS: usize = 32;

/// Why the certificates are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The API server refuses, or cannot be reached.
    #[error("{what}: {cause}")]
    Cluster {
        /// Kind and name of the object.
        what: String,
        /// Why.
        cause: kube::Error,
    },
    /// A certificate could not be made.
    #[error("{0}")]
    Make(String),
    /// It took too long.
    #[error("no answer of the API server in 30 seconds")]
    Late,
    /// The steps do not come to an end.
    #[error("the certificates do not come to rest")]
    Restless,
}

/// Keeps the certificates of one release.
pub struct Keeper {
    secrets: Api<Secret>,
    bundles: Api<ConfigMap>,
    leases: Api<Lease>,
    release: String,
    namespace: String,
    served: Arc<Served>,
    ends: Ends,
}

/// When certificates end: seconds since 1970, by certificate.
pub type Ends = Family<[(&'static str, String); 1], Gauge>;

/// What was there, and what is needed to write it.
struct Look {
    found: Found,
    /// Of the authority's Secret: a write of it that others have changed meanwhile fails.
    version: Option<String>,
    owner: Option<OwnerReference>,
}

impl Keeper {
    /// For the release of this name in this namespace. The own certificate goes to `served`, the times at which
    /// certificates end to `ends`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, release: &str, served: Arc<Served>, ends: Ends) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            bundles: Api::namespaced(client.clone(), namespace),
            leases: Api::namespaced(client, namespace),
            release: release.to_owned(),
            namespace: namespace.to_owned(),
            served,
            ends,
        }
    }

    /// Looks after the certificates until the end; writes only while this replica leads.
    pub async fn run(self, mut leads: watch::Receiver<bool>, stop: CancellationToken) {
        loop {
            let leading = *leads.borrow_and_update();
            let outcome = timeout(PATIENCE, self.look_after(leading, now())).await.unwrap_or(Err(KeeperError::Late));
            let pause = match outcome {
                Ok(()) if self.served.is_there() => CALM,
                Ok(()) => WAITING,
                Err(error) => {
                    warn_limited!(%error, "the certificates could not be looked after");
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                changed = leads.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One look: writes what is due if this replica leads, and takes the own certificate over. `now` in seconds since
    /// 1970.
    ///
    /// # Errors
    /// [`KeeperError`]; what was written before stays.
    pub async fn look_after(&self, leads: bool, now: i64) -> Result<(), KeeperError> {
        let mut look = self.read().await?;
        if leads {
            self.write(&mut look, now).await?;
        }
        for (name, end) in look.found.ends() {
            self.ends.get_or_create(&[("certificate", name.to_owned())]).set(end);
        }
        if let Some(pair) = look.found.servers.get(&self.server("operator")).and_then(|server| server.pair.as_ref())
            && let Err(error) = self.served.take(pair)
        {
            warn_limited!(%error, "the certificate in the Secret cannot be used");
        }
        Ok(())
    }

    async fn write(&self, look: &mut Look, now: i64) -> Result<(), KeeperError> {
        for _ in 0..STEPS {
            let Some(step) = next(&look.found, now) else { return Ok(()) };
            tracing::info!(step = step.name(), "certificates");
            let change =
                change(&step, &look.found, &self.release, now).map_err(|error| KeeperError::Make(error.to_string()))?;
            match &change {
                Change::Authority(data) => {
                    let secret = self.secret(self.name("ca"), "Opaque", data, look);
                    look.version = self.apply_secret(&secret).await?.metadata.resource_version;
                }
                Change::Bundle(bundle) => self.apply_bundle(bundle, look).await?,
                Change::Server(server, pair) => {
                    let name = format!("{server}-tls");
                    let mut secret = self.secret(name, "kubernetes.io/tls", &tls_data(pair), look);
                    secret.metadata.resource_version = None;
                    self.apply_secret(&secret).await?;
                }
            }
            look.found.apply(change);
        }
        Err(KeeperError::Restless)
    }

    async fn read(&self) -> Result<Look, KeeperError> {
        let authority = self.get_secret(&self.name("ca")).await?;
        let version = authority.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let name = self.name("ca");
        let bundle = self.bundles.get_opt(&name).await.map_err(|cause| failed("ConfigMap", &name, cause))?;
        let mut servers = BTreeMap::new();
        for server in ["operator", "aggregator"].map(|part| self.server(part)) {
            let secret = self.get_secret(&format!("{server}-tls")).await?;
            let server_is = Server { names: self.dns_names(&server), pair: secret.and_then(tls_pair) };
            servers.insert(server, server_is);
        }
        let found = Found {
            authority: authority.map(data).unwrap_or_default(),
            bundle: bundle.and_then(|bundle| bundle.data?.remove("ca.crt")),
            servers,
        };
        Ok(Look { found, version, owner: self.owner().await? })
    }

    async fn get_secret(&self, name: &str) -> Result<Option<Secret>, KeeperError> {
        self.secrets.get_opt(name).await.map_err(|cause| failed("Secret", name, cause))
    }

    /// The Lease of the release; without one the objects belong to nobody.
    async fn owner(&self) -> Result<Option<OwnerReference>, KeeperError> {
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

    /// Name of a server's Service; the Secret's without `-tls`.
    fn server(&self, part: &str) -> String {
        self.name(part)
    }

    /// How a Service is called from near and far, and through a forwarded port.
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

    fn metadata(&self, name: String, look: &Look) -> ObjectMeta {
        let labels = [
            ("app.kubernetes.io/name", "chainscope"),
            ("app.kubernetes.io/instance", self.release.as_str()),
            ("app.kubernetes.io/managed-by", MANAGER),
        ];
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: look.owner.clone().map(|owner| vec![owner]),
            ..Default::default()
        }
    }

    /// A Secret that fails to be written if it has changed since the look.
    fn secret(&self, name: String, kind: &str, data: &Data, look: &Look) -> Secret {
        let data = data.iter().map(|(key, bytes)| (key.clone(), ByteString(bytes.to_vec()))).collect();
        let metadata = ObjectMeta { resource_version: look.version.clone(), ..self.metadata(name, look) };
        Secret { metadata, type_: Some(kind.to_owned()), data: Some(data), ..Default::default() }
    }

    async fn apply_secret(&self, secret: &Secret) -> Result<Secret, KeeperError> {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let applied = self.secrets.patch(name, &params(), &Patch::Apply(secret)).await;
        applied.map_err(|cause| failed("Secret", name, cause))
    }

    async fn apply_bundle(&self, bundle: &str, look: &Look) -> Result<(), KeeperError> {
        let name = self.name("ca");
        let data = [("ca.crt".to_owned(), bundle.to_owned())].into();
        let bundle = ConfigMap { metadata: self.metadata(name.clone(), look), data: Some(data), ..Default::default() };
        let applied = self.bundles.patch(&name, &params(), &Patch::Apply(&bundle)).await;
        applied.map(drop).map_err(|cause| failed("ConfigMap", &name, cause))
    }
}

fn params() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

fn failed(kind: &str, name: &str, cause: kube::Error) -> KeeperError {
    KeeperError::Cluster { what: format!("{kind} {name}"), cause }
}

fn data(secret: Secret) -> Data {
    secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, Zeroizing::new(bytes.0))).collect()
}

fn tls_pair(secret: Secret) -> Option<Pair> {
    let data = data(secret);
    let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned);
    Some(Pair { certificate: text("tls.crt")?, key: Zeroizing::new(text("tls.key")?) })
}

fn tls_data(pair: &Pair) -> Data {
    [("tls.crt", pair.certificate.as_str()), ("tls.key", pair.key.as_str())]
        .map(|(key, text)| (key.to_owned(), Zeroizing::new(text.as_bytes().to_vec())))
        .into()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
