//! The next step of certificate creation and rotation, as a pure function of the current state.
//!
//! ```text
//! current CA:  ── signs ────────────────── 9 years ──┬── 1 day ──┬──────────────
//! next CA:                                 PrepareCa └─ trusted ─┘ PromoteCa: becomes the current CA
//! previous CA:                                                   └── trusted until no server uses it ── RetireCa
//! ```
//!
//! A new CA is in the bundle for a day before it signs, and the old one stays in the bundle for a day after the last
//! server certificate was replaced. Volumes of Secrets and ConfigMaps are updated within about two minutes.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_tls::certified_key;
use zeroize::Zeroizing;

use super::ca::{
    CertificateAndKey, CertificateInfo, DAY, Error, HOUR, SERVER_LIFETIME, new_ca, new_server_certificate,
};

/// Remaining lifetime of the current CA at which the next one is created.
const CA_RENEW_BEFORE: i64 = 365 * DAY;
/// Age at which a server certificate is renewed.
const SERVER_RENEW_AFTER: i64 = SERVER_LIFETIME / 3 * 2;
/// Overlap of the old and the new CA, before and after the rotation: the time for clients to update the bundle.
const OVERLAP: i64 = DAY;
/// Age at which a next CA that is not in the bundle is replaced: the overlap counts from its creation.
const UNPUBLISHED_TIMEOUT: i64 = HOUR;

/// Data of the CA's Secret.
pub(crate) type Data = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// The stored certificates.
#[derive(Debug, Clone, Default)]
pub(crate) struct CertificateState {
    /// Data of the CA's Secret; empty if it does not exist.
    pub(crate) ca: Data,
    /// The CA bundle in the ConfigMap.
    pub(crate) bundle: Option<String>,
    /// The servers by the name of their Service.
    pub(crate) servers: BTreeMap<String, ServerCertificate>,
}

impl CertificateState {
    /// Expiry time of each certificate in seconds since the Unix epoch, by the name of its Service; the CA is named `ca`.
    /// Missing and invalid certificates are omitted.
    pub(crate) fn expiry_times(&self) -> BTreeMap<&str, i64> {
        let ca = self.ca.get(CURRENT[0]).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let servers =
            self.servers.iter().filter_map(|(name, server)| Some((&**name, &*server.pair.as_ref()?.certificate)));
        let all = ca.map(|certificate| ("ca", certificate)).into_iter().chain(servers);
        all.filter_map(|(name, certificate)| Some((name, CertificateInfo::parse(certificate).ok()?.not_after)))
            .collect()
    }
}

/// A server and its certificate.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerCertificate {
    /// DNS names of the server.
    pub(crate) names: BTreeSet<String>,
    /// The stored certificate, if any.
    pub(crate) pair: Option<CertificateAndKey>,
}

/// A step of creation or rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create the current CA: none is valid.
    CreateCa,
    /// Create the next CA, which is trusted in addition to the current one.
    PrepareCa,
    /// Make the next CA the current one.
    PromoteCa,
    /// Remove the previous CA.
    RetireCa,
    /// Write the CA bundle.
    UpdateBundle(String),
    /// Issue the certificate of the named server.
    IssueServer(String),
}

impl Step {
    /// A description for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::CreateCa => "CA created",
            Self::PrepareCa => "next CA created",
            Self::PromoteCa => "next CA promoted",
            Self::RetireCa => "previous CA removed",
            Self::UpdateBundle(_) => "CA bundle updated",
            Self::IssueServer(_) => "server certificate issued",
        }
    }
}

/// The objects that a step writes.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Ca(Data),
    Bundle(String),
    ServerCertificate(String, CertificateAndKey),
}

/// The valid parts of the CA's Secret.
#[derive(Debug, Clone, Default)]
struct CaSet {
    current: Option<(CertificateAndKey, CertificateInfo)>,
    next: Option<(CertificateAndKey, CertificateInfo)>,
    /// Without the key: it does not sign any more.
    previous: Option<(String, CertificateInfo)>,
}

const CURRENT: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS: &str = "previous.crt";

impl CaSet {
    fn read(data: &Data) -> Self {
        let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let pair = |[certificate, key]: [&str; 2]| {
            let (certificate, key) = (text(certificate)?, text(key)?);
            let info = CertificateInfo::parse(certificate).ok().filter(|info| info.is_ca)?;
            info.has_key(key).ok()?;
            Some((CertificateAndKey { certificate: certificate.to_owned(), key: Zeroizing::new(key.to_owned()) }, info))
        };
        let previous = text(PREVIOUS).and_then(|pem| Some((pem.to_owned(), CertificateInfo::parse(pem).ok()?)));
        Self { current: pair(CURRENT), next: pair(NEXT), previous }
    }

    fn data(&self) -> Data {
        let mut data = Data::new();
        let mut add = |key: &str, text: &str| data.insert(key.to_owned(), Zeroizing::new(text.as_bytes().to_vec()));
        for (keys, pair) in [(CURRENT, &self.current), (NEXT, &self.next)] {
            if let Some((pair, _)) = pair {
                add(keys[0], &pair.certificate);
                add(keys[1], &pair.key);
            }
        }
        if let Some((certificate, _)) = &self.previous {
            add(PREVIOUS, certificate);
        }
        data
    }

    fn bundle(&self) -> String {
        let pairs = [&self.current, &self.next].into_iter().flatten().map(|(pair, _)| pair.certificate.as_str());
        pairs.chain(self.previous.iter().map(|(certificate, _)| certificate.as_str())).collect()
    }
}

/// Returns the next step, or `None` if no step is due.
pub(crate) fn next(state: &CertificateState, now: i64) -> Option<Step> {
    let cas = CaSet::read(&state.ca);
    // `notBefore` is ignored, so that a clock that is behind does not invalidate the CA.
    let usable = |info: &CertificateInfo| now < info.not_after;
    let next = cas.next.as_ref().map(|(_, info)| info);
    let Some((_, current)) = cas.current.as_ref().filter(|(_, info)| usable(info)) else {
        return Some(if next.is_some_and(usable) { Step::PromoteCa } else { Step::CreateCa });
    };
    match next {
        None if now >= current.not_after - CA_RENEW_BEFORE => return Some(Step::PrepareCa),
        Some(info) if !usable(info) => return Some(Step::PrepareCa),
        Some(info) => {
            if is_published(state, &cas) {
                if now >= info.created + OVERLAP {
                    return Some(Step::PromoteCa);
                }
            } else if now >= info.created + UNPUBLISHED_TIMEOUT {
                return Some(Step::PrepareCa);
            }
        }
        None => {}
    }
    if let Some((_, previous)) = &cas.previous
        && (!usable(previous) || state.servers.values().all(|server| is_settled(server, current, now)))
    {
        return Some(Step::RetireCa);
    }
    let bundle = cas.bundle();
    if state.bundle.as_ref() != Some(&bundle) {
        return Some(Step::UpdateBundle(bundle));
    }
    let mut servers = state.servers.iter();
    servers.find(|(_, server)| !is_valid(server, current, now)).map(|(name, _)| Step::IssueServer(name.clone()))
}

/// Whether the next CA is in the bundle.
fn is_published(state: &CertificateState, cas: &CaSet) -> bool {
    cas.next.as_ref().zip(state.bundle.as_ref()).is_some_and(|((next, _), bundle)| bundle.contains(&next.certificate))
}

/// Whether the certificate of a server is valid and not due for renewal.
fn is_valid(server: &ServerCertificate, ca: &CertificateInfo, now: i64) -> bool {
    let Some(pair) = &server.pair else { return false };
    let Ok(info) = CertificateInfo::parse(&pair.certificate) else { return false };
    info.names == server.names
        // A creation time in the future means that the clock was wrong.
        && info.created <= now + HOUR
        && now < info.created + SERVER_RENEW_AFTER
        && now < info.not_after
        && info.signed_by(ca)
        && certified_key("server", pair.certificate.as_bytes(), pair.key.as_bytes()).is_ok()
}

/// Whether the server has used a certificate of the current CA for the duration of the overlap.
fn is_settled(server: &ServerCertificate, ca: &CertificateInfo, now: i64) -> bool {
    let info = server.pair.as_ref().and_then(|pair| CertificateInfo::parse(&pair.certificate).ok());
    info.is_some_and(|info| info.signed_by(ca) && now >= info.created + OVERLAP)
}

/// Computes the objects that a step writes.
///
/// # Errors
/// [`Error`] if the step does not apply to the state, or a certificate cannot be created.
pub(crate) fn change(step: &Step, state: &CertificateState, name: &str, now: i64) -> Result<Change, Error> {
    let mut cas = CaSet::read(&state.ca);
    let made = |pair: CertificateAndKey| CertificateInfo::parse(&pair.certificate).map(|info| (pair, info));
    match step {
        Step::CreateCa => cas = CaSet { current: Some(made(new_ca(name, now)?)?), ..cas },
        Step::PrepareCa => cas.next = Some(made(new_ca(name, now)?)?),
        Step::PromoteCa => {
            let old = cas.current.take();
            cas.previous = old.map(|(pair, info)| (pair.certificate, info)).or(cas.previous);
            cas.current = cas.next.take();
        }
        Step::RetireCa => cas.previous = None,
        Step::UpdateBundle(bundle) => return Ok(Change::Bundle(bundle.clone())),
        Step::IssueServer(server) => {
            let (ca, _) = cas.current.as_ref().ok_or(Error::Mismatch)?;
            let names = state.servers.get(server).map(|server| server.names.clone()).unwrap_or_default();
            return Ok(Change::ServerCertificate(server.clone(), new_server_certificate(ca, &names, now)?));
        }
    }
    Ok(Change::Ca(cas.data()))
}

impl CertificateState {
    /// Updates the state after a change was written.
    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Ca(data) => self.ca = data,
            Change::Bundle(bundle) => self.bundle = Some(bundle),
            Change::ServerCertificate(name, pair) => self.servers.entry(name).or_default().pair = Some(pair),
        }
    }
}
