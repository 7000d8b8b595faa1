//! What to do about the certificates that are there, without doing it.
//!
//! ```text
//! authority:  ── current ───────────────── 9 years ──┬── 1 day ──┬──────────────
//! next:                                       Prepare └─ trusted ─┘ Promote: becomes current
//! previous:                                                       └── trusted until no server uses it ── Retire
//! ```
//!
//! A new authority is trusted by everybody for a day before it signs anything, and the old one for a day after nothing
//! that it signed is in use. Files in pods follow their Secrets and ConfigMaps within about two minutes.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_tls::certified_key;
use zeroize::Zeroizing;

use super::authority::{About, DAY, Error, HOUR, Pair, SERVER_LIFE, new_authority, new_server};

/// An authority is followed by another when it has less than this left.
const AUTHORITY_RENEWAL: i64 = 365 * DAY;
/// A server's certificate is renewed at this age.
const SERVER_RENEWAL: i64 = SERVER_LIFE / 3 * 2;
/// Both overlaps: until everybody has seen something new.
const OVERLAP: i64 = DAY;
/// A prepared authority that was not published in this time is made again: its day of overlap counts from its making.
const UNPUBLISHED: i64 = HOUR;

/// Data of the authority's Secret.
pub(crate) type Data = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// What is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// Data of the authority's Secret; empty if there is none.
    pub(crate) authority: Data,
    /// What clients are told to trust.
    pub(crate) bundle: Option<String>,
    /// The servers' certificates by the name of the Service; each is wanted.
    pub(crate) servers: BTreeMap<String, Server>,
}

impl Found {
    /// When each certificate ends, in seconds since 1970, by the name of its Service; the authority's as `authority`.
    /// Those that are not there or cannot be read are left out.
    pub(crate) fn ends(&self) -> BTreeMap<&str, i64> {
        let authority = self.authority.get(CURRENT[0]).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let servers =
            self.servers.iter().filter_map(|(name, server)| Some((&**name, &*server.pair.as_ref()?.certificate)));
        let all = authority.map(|certificate| ("authority", certificate)).into_iter().chain(servers);
        all.filter_map(|(name, certificate)| Some((name, About::read(certificate).ok()?.ends))).collect()
    }
}

/// One server's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server {
    /// The DNS names that it is reached by.
    pub(crate) names: BTreeSet<String>,
    /// What is there.
    pub(crate) pair: Option<Pair>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is no usable authority: make one.
    Begin,
    /// Make the next authority, to be trusted beside the current one.
    Prepare,
    /// The next authority becomes the current one.
    Promote,
    /// The previous authority is trusted no more.
    Retire,
    /// Tell clients whom to trust.
    Publish(String),
    /// Make the certificate of this server.
    Issue(String),
}

impl Step {
    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Begin => "the first authority is made",
            Self::Prepare => "the next authority is made",
            Self::Promote => "the next authority takes over",
            Self::Retire => "the previous authority is trusted no more",
            Self::Publish(_) => "whom to trust is published",
            Self::Issue(_) => "a server's certificate is made",
        }
    }
}

/// What a step makes.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Authority(Data),
    Bundle(String),
    Server(String, Pair),
}

/// The parts of the authority's Secret that can be used.
#[derive(Debug, Clone, Default)]
struct Authorities {
    current: Option<(Pair, About)>,
    next: Option<(Pair, About)>,
    /// Its certificate only: it signs nothing any more.
    previous: Option<(String, About)>,
}

const CURRENT: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS: &str = "previous.crt";

impl Authorities {
    fn read(data: &Data) -> Self {
        let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let pair = |[certificate, key]: [&str; 2]| {
            let (certificate, key) = (text(certificate)?, text(key)?);
            let about = About::read(certificate).ok().filter(|about| about.authority)?;
            about.has_key(key).ok()?;
            Some((Pair { certificate: certificate.to_owned(), key: Zeroizing::new(key.to_owned()) }, about))
        };
        let previous = text(PREVIOUS).and_then(|pem| Some((pem.to_owned(), About::read(pem).ok()?)));
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

/// The next thing to do now; none if everything is as it should be.
pub(crate) fn next(found: &Found, now: i64) -> Option<Step> {
    let authorities = Authorities::read(&found.authority);
    // Clocks that are behind make nothing unusable here: the begin of an authority is looked at by nobody.
    let usable = |about: &About| now < about.ends;
    let next = authorities.next.as_ref().map(|(_, about)| about);
    let Some((_, current)) = authorities.current.as_ref().filter(|(_, about)| usable(about)) else {
        return Some(if next.is_some_and(usable) { Step::Promote } else { Step::Begin });
    };
    match next {
        None if now >= current.ends - AUTHORITY_RENEWAL => return Some(Step::Prepare),
        Some(about) if !usable(about) => return Some(Step::Prepare),
        Some(about) => {
            if is_published(found, &authorities) {
                if now >= about.made + OVERLAP {
                    return Some(Step::Promote);
                }
            } else if now >= about.made + UNPUBLISHED {
                return Some(Step::Prepare);
            }
        }
        None => {}
    }
    if let Some((_, previous)) = &authorities.previous
        && (!usable(previous) || found.servers.values().all(|server| is_settled(server, current, now)))
    {
        return Some(Step::Retire);
    }
    let bundle = authorities.bundle();
    if found.bundle.as_ref() != Some(&bundle) {
        return Some(Step::Publish(bundle));
    }
    let mut servers = found.servers.iter();
    servers.find(|(_, server)| !is_good(server, current, now)).map(|(name, _)| Step::Issue(name.clone()))
}

/// Whether clients are told to trust the next authority.
fn is_published(found: &Found, authorities: &Authorities) -> bool {
    authorities
        .next
        .as_ref()
        .zip(found.bundle.as_ref())
        .is_some_and(|((next, _), bundle)| bundle.contains(&next.certificate))
}

/// Whether a server can do with what it has.
fn is_good(server: &Server, authority: &About, now: i64) -> bool {
    let Some(pair) = &server.pair else { return false };
    let Ok(about) = About::read(&pair.certificate) else { return false };
    about.names == server.names
        // Of a time to come: made when the clock was wrong.
        && about.made <= now + HOUR
        && now < about.made + SERVER_RENEWAL
        && now < about.ends
        && about.signed_by(authority)
        && certified_key("server", pair.certificate.as_bytes(), pair.key.as_bytes()).is_ok()
}

/// Whether nobody can meet anything else than the current authority's work any more.
fn is_settled(server: &Server, authority: &About, now: i64) -> bool {
    let about = server.pair.as_ref().and_then(|pair| About::read(&pair.certificate).ok());
    about.is_some_and(|about| about.signed_by(authority) && now >= about.made + OVERLAP)
}

/// Does a step, as far as it can be done without writing.
///
/// # Errors
/// [`Error`] if the step does not fit what is there, or the library refuses.
pub(crate) fn change(step: &Step, found: &Found, name: &str, now: i64) -> Result<Change, Error> {
    let mut authorities = Authorities::read(&found.authority);
    let made = |pair: Pair| About::read(&pair.certificate).map(|about| (pair, about));
    match step {
        Step::Begin => authorities = Authorities { current: Some(made(new_authority(name, now)?)?), ..authorities },
        Step::Prepare => authorities.next = Some(made(new_authority(name, now)?)?),
        Step::Promote => {
            let old = authorities.current.take();
            authorities.previous = old.map(|(pair, about)| (pair.certificate, about)).or(authorities.previous);
            authorities.current = authorities.next.take();
        }
        Step::Retire => authorities.previous = None,
        Step::Publish(bundle) => return Ok(Change::Bundle(bundle.clone())),
        Step::Issue(server) => {
            let (authority, _) = authorities.current.as_ref().ok_or(Error::Mismatch)?;
            let names = found.servers.get(server).map(|server| server.names.clone()).unwrap_or_default();
            return Ok(Change::Server(server.clone(), new_server(authority, &names, now)?));
        }
    }
    Ok(Change::Authority(authorities.data()))
}

impl Found {
    /// What is there after a change was written.
    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Authority(data) => self.authority = data,
            Change::Bundle(bundle) => self.bundle = Some(bundle),
            Change::Server(name, pair) => self.servers.entry(name).or_default().pair = Some(pair),
        }
    }
}
