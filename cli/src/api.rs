//! Client of Chainscope's HTTP API.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

/// URL of the API without --url.
const DEFAULT_URL: &str = "http://127.0.0.1:17732";
/// Time without a byte after which a connection counts as lost; live streams have a heartbeat every 15 seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest event of a live stream.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// The API of one server.
#[derive(Clone)]
pub(crate) struct Api {
    base: String,
    agent: ureq::Agent,
    token: Option<String>,
}

impl Api {
    /// A client of the server at `base`: a URL without a path, or with the prefix of a node.
    pub(crate) fn new(base: &str) -> Self {
        Self::with_tls(base, TlsConfig::default())
    }

    /// A client as the command line says: the server at `url`, whose certificate is verified with the CA bundle in `ca_file`.
    pub(crate) fn connect(url: Option<&str>, token: Option<&str>, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let url = url.unwrap_or(DEFAULT_URL);
        ensure!(
            ca_file.is_some() || !url.starts_with("https:"),
            "--ca-file is missing: the CA bundle to verify {url} with; that of the system is often /etc/ssl/certs/ca-certificates.crt"
        );
        let tls = ca_file.map(tls).transpose()?.unwrap_or_default();
        Ok(Self { token: token.map(|token| token.trim().to_owned()), ..Self::with_tls(url, tls) })
    }

    fn with_tls(base: &str, tls: TlsConfig) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls)
            .build()
            .new_agent();
        Self { base: base.trim_end_matches('/').to_owned(), agent, token: None }
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

    /// Opens a stream of server-sent events.
    pub(crate) fn events(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Events> {
        Ok(Events { body: BufReader::new(self.get(path, query)?) })
    }

    fn parse(&self, path: &str, text: &str) -> anyhow::Result<Value> {
        serde_json::from_str(text).with_context(|| format!("{}{path} did not return JSON", self.base))
    }

    /// Sends a GET request; a status other than 2xx is an error with the problem's detail.
    fn get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<ureq::BodyReader<'static>> {
        let url = format!("{}{path}", self.base);
        let pairs = query.iter().map(|(name, value)| (*name, value.as_str()));
        let mut request = self.agent.get(&url).query_pairs(pairs);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response =
            request.call().with_context(|| format!("no response from {url}: is `chainscope run` running there?"))?;
        let status = response.status();
        let mut body = response.into_body().into_reader();
        if !status.is_success() {
            let mut text = String::new();
            body.by_ref().take(64 * 1024).read_to_string(&mut text)?;
            bail!("{url}: {status}: {}", problem(&text));
        }
        Ok(body)
    }
}

/// TLS that verifies servers with a CA bundle.
fn tls(ca_file: &Path) -> anyhow::Result<TlsConfig> {
    let context = || ca_file.display().to_string();
    let pem = fs::read(ca_file).with_context(context)?;
    let mut roots: Vec<Certificate<'static>> = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(context)? {
            roots.push(certificate);
        }
    }
    ensure!(!roots.is_empty(), "{} contains no certificate", ca_file.display());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .build())
}

/// The detail of a problem, or the text itself, escaped.
fn problem(text: &str) -> String {
    let detail = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|problem| problem.get("detail").and_then(Value::as_str).map(str::to_owned));
    chainscope_hygiene::Escaped(detail.as_deref().unwrap_or(text).trim()).to_string()
}

/// A stream of server-sent events.
pub(crate) struct Events {
    body: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    /// Waits for the next event and returns its data; `None` at the end of the stream. An event called `error` is one.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<String>> {
        let (mut data, mut line, mut is_error) = (String::new(), String::new(), false);
        loop {
            line.clear();
            let room = MAX_EVENT_BYTES.saturating_sub(data.len());
            if self.body.by_ref().take(room as u64).read_line(&mut line)? == 0 {
                ensure!(room > 0, "an event has more than {MAX_EVENT_BYTES} bytes");
                return Ok(None);
            }
            ensure!(line.len() < room, "an event has more than {MAX_EVENT_BYTES} bytes");
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(rest) = line.strip_prefix("data:") {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            } else if let Some(name) = line.strip_prefix("event:") {
                is_error = name.trim() == "error";
            } else if line.is_empty() && !data.is_empty() {
                ensure!(!is_error, "the server ended the stream: {}", problem(&data));
                return Ok(Some(data));
            }
        }
    }
}
