//! Client of Chainscope's HTTP API.

mod events;
mod problem;
mod tls;
mod token;

use std::{
    io::Read,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use chainscope_hygiene::Escaped;
use serde_json::Value;
use ureq::{http::Uri, tls::TlsConfig};

use self::problem::Problem;
pub(crate) use self::{events::Events, token::Token};
use crate::{
    failure::{self, Failure},
    kube::{Cluster, PortForward},
    program, terminal,
};

/// URL of the API without --api.
const DEFAULT_URL: &str = "http://127.0.0.1:17732";
/// Time without a byte after which a connection counts as lost; live streams have a heartbeat every 15 seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Parameters of a request.
pub(crate) type Query = Vec<(&'static str, String)>;

/// The API of one server.
#[derive(Clone)]
pub(crate) struct Api {
    base: String,
    agent: ureq::Agent,
    token: Arc<Token>,
    /// What makes the server reachable.
    forward: Option<Arc<PortForward>>,
}

impl Api {
    /// A client of the server at `base`: a URL without a path, or with the prefix of a node.
    pub(crate) fn new(base: &str) -> Self {
        Self::with_tls(base, Token::None, TlsConfig::default())
    }

    /// A client of the server at `url`, whose certificate is verified with the CA bundle in `ca_file`, else with those of the
    /// system.
    pub(crate) fn connect(url: Option<&str>, token: Token, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let url = url.unwrap_or(DEFAULT_URL);
        let uri: Uri = url.parse().ok().filter(|uri: &Uri| uri.host().is_some()).ok_or_else(|| {
            Failure::refused(format!("--api: {url:?} is not a URL"))
                .hint("such as http://127.0.0.1:17732 or https://chainscope.example.org")
        })?;
        let tls = match (uri.scheme_str(), ca_file) {
            (Some("https"), Some(path)) => tls::file(path)?,
            (Some("https"), None) => tls::system(),
            _ => TlsConfig::default(),
        };
        if uri.scheme_str() == Some("http") && !matches!(token, Token::None) && !is_loopback(&uri) {
            terminal::note(&format!("warning: the token is sent to {url} unencrypted"));
        }
        Ok(Self::with_tls(url, token, tls))
    }

    /// A client of the aggregator of a cluster, with `token` and the CA bundle in `ca_file` instead of the cluster's.
    pub(crate) fn in_cluster(cluster: Cluster, token: Option<Token>, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let tls = match (ca_file, &cluster.ca) {
            (Some(path), _) => tls::file(path)?,
            (None, Some(ca)) => tls::bundle(ca.as_bytes(), "the CA bundle of the cluster")?,
            (None, None) => TlsConfig::default(),
        };
        let token = token.or_else(|| cluster.token.map(Token::Cluster)).unwrap_or(Token::None);
        let api = Self::with_tls(&cluster.url, token, tls);
        Ok(Self { forward: Some(Arc::new(cluster.forward)), ..api })
    }

    fn with_tls(base: &str, token: Token, tls: TlsConfig) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls)
            .build()
            .new_agent();
        Self { base: base.trim_end_matches('/').to_owned(), agent, token: Arc::new(token), forward: None }
    }

    /// URL of the server.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Returns the response body as text.
    pub(crate) fn text(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<String> {
        let mut text = String::new();
        self.get(path, query)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Returns the response body as JSON.
    pub(crate) fn json(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.parse(path, &self.text(path, query)?)
    }

    /// Returns the response body as JSON, if it has fewer than `max` bytes.
    pub(crate) fn json_within(&self, max: u64, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        let mut text = String::new();
        let mut body = self.get(path, query)?.take(max);
        body.read_to_string(&mut text)?;
        ensure!(body.limit() > 0, "{}{path} has {max} bytes or more", self.base);
        self.parse(path, &text)
    }

    /// Makes the next request use a token newer than the one that a stream ended with; returns whether there may be one.
    pub(crate) fn renew_token(&self) -> bool {
        self.token.renew()
    }

    /// Opens a stream of server-sent events.
    pub(crate) fn events(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Events> {
        Ok(Events::new(self.get(path, query)?))
    }

    fn parse(&self, path: &str, text: &str) -> anyhow::Result<Value> {
        serde_json::from_str(text).with_context(|| format!("{}{path} did not return JSON", self.base))
    }

    /// Sends a GET request; a status other than 2xx is an error with the problem's detail. A token that the server rejects
    /// is requested again, once.
    fn get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<ureq::BodyReader<'static>> {
        match self.try_get(path, query) {
            Err(error) if failure::status(&error) == Some(401) && self.token.expire() => self.try_get(path, query),
            result => result,
        }
    }

    fn try_get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<ureq::BodyReader<'static>> {
        if let Some(forward) = &self.forward {
            forward.ensure_running()?;
        }
        let url = format!("{}{path}", self.base);
        let pairs = query.iter().map(|(name, value)| (*name, value.as_str()));
        let mut request = self.agent.get(&url).query_pairs(pairs);
        if let Some(token) = self.token.get()? {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let parameters = query.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        // Before the response, which may be long in coming.
        terminal::detail(&format!("GET {url}{parameters}"));
        let start = Instant::now();
        let response = request.call().map_err(|error| unreachable(&url, &error))?;
        let status = response.status();
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let named = id.as_ref().map(|id| format!(", request {}", Escaped(id))).unwrap_or_default();
        terminal::detail(&format!("{status} after {} ms{named}", start.elapsed().as_millis()));
        let mut body = response.into_body().into_reader();
        if !status.is_success() {
            let mut text = String::new();
            body.by_ref().take(64 * 1024).read_to_string(&mut text)?;
            return Err(Problem::parse(&text).of_response(&url, status, id.as_deref()).into());
        }
        Ok(body)
    }
}

/// The error of a request without a response.
fn unreachable(url: &str, error: &ureq::Error) -> Failure {
    let failure = Failure::new(format!("no response from {url}: {error}"));
    let text = error.to_string();
    if text.contains("UnknownIssuer") {
        return failure.hint("--ca-file FILE verifies the server with the CA bundle that signed its certificate");
    }
    if text.contains("certificate") {
        return failure.hint("the certificate must be valid for the name in the URL, as --api gives it");
    }
    let program = program::name();
    failure.hint(format!(
        "is `chainscope run` running there? --api URL requests from another server, --kube from that of a cluster; \
         `{program} --help` shows both"
    ))
}

/// Whether a server is on this machine.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
