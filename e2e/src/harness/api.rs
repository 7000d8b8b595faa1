//! A client of Chainscope's HTTP API.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Rows per page; small enough that every scenario reads several pages.
const PAGE_ROWS: usize = 1000;
/// Largest response body that is read. A message of 100 MiB, encrypted and decrypted, is larger; no test requests one.
const MAX_RESPONSE_BYTES: u64 = 256 << 20;

/// The API of a running Chainscope.
#[derive(Clone)]
pub struct Api {
    base: String,
    agent: ureq::Agent,
    token: Option<String>,
}

/// Resolves every name to this port of the loopback address.
#[derive(Debug)]
struct Loopback(u16);

impl Resolver for Loopback {
    fn resolve(&self, _: &Uri, _: &ureq::config::Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, self.0)));
        Ok(addresses)
    }
}

/// A connection as `/v3/connections` lists it.
#[derive(Debug, Clone)]
pub struct Connection {
    /// "seconds.nanoseconds".
    pub key: String,
    /// Its other fields.
    pub value: Value,
}

impl Api {
    /// The API at a port of this machine.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self { base: format!("http://127.0.0.1:{port}"), agent: config.into(), token: None }
    }

    /// The API of a cluster over TLS: `port` of this machine forwards to the server `name`, whose certificate is verified with
    /// `ca_bundle`.
    ///
    /// # Panics
    /// If the CA bundle is not PEM.
    #[must_use]
    pub fn secure(port: u16, name: &str, ca_bundle: &str) -> Self {
        let roots = ureq::tls::parse_pem(ca_bundle.as_bytes()).map(|item| match item.expect("PEM") {
            ureq::tls::PemItem::Certificate(certificate) => certificate,
            _ => panic!("not only certificates: {ca_bundle}"),
        });
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::Specific(Arc::new(roots.collect::<Vec<Certificate<'static>>>())))
            .build();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .tls_config(tls)
            .build();
        let agent = ureq::Agent::with_parts(config, DefaultConnector::default(), Loopback(port));
        Self { base: format!("https://{name}:{port}"), agent, token: None }
    }

    /// A client that sends this bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Status and body of the response to a GET request; `None` if there is no response.
    #[must_use]
    pub fn request(&self, path: &str) -> Option<(u16, String)> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = request.call().ok()?;
        let body = response.body_mut().with_config().limit(MAX_RESPONSE_BYTES).read_to_string().ok()?;
        Some((response.status().as_u16(), body))
    }

    /// The JSON of a response with status 200.
    ///
    /// # Panics
    /// If the response is another one.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(path).unwrap_or_else(|| panic!("no response to {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body:.200}"))
    }

    /// A page of rows; `query` does not name the node.
    ///
    /// # Panics
    /// If the response is not a list.
    #[must_use]
    pub fn page(&self, node: &str, query: &str) -> Vec<Value> {
        self.page_of("/v2/p2p", node, query)
    }

    fn page_of(&self, path: &str, node: &str, query: &str) -> Vec<Value> {
        match self.get(&format!("{path}?node_name={node}&{query}")) {
            Value::Array(rows) => rows,
            other => panic!("not a list: {other}"),
        }
    }

    /// Every row that matches the filters, oldest first, from all pages.
    ///
    /// # Panics
    /// If ids are not ascending.
    #[must_use]
    pub fn rows(&self, node: &str, filters: &str) -> Vec<Value> {
        self.rows_from(node, filters, 0)
    }

    /// As [`rows`](Self::rows), from id `first` on.
    ///
    /// # Panics
    /// If ids are not ascending.
    #[must_use]
    pub fn rows_from(&self, node: &str, filters: &str, first: u64) -> Vec<Value> {
        self.rows_of("/v2/p2p", node, filters, first)
    }

    /// Number of messages from an id on, in each direction: sent, received.
    ///
    /// # Panics
    /// If ids are not ascending.
    #[must_use]
    pub fn counts_from(&self, node: &str, first: u64) -> [u64; 2] {
        [false, true].map(|incoming| self.rows_from(node, &format!("incoming={incoming}"), first).len() as u64)
    }

    /// Every log message, oldest first, from all pages.
    ///
    /// # Panics
    /// If ids are not ascending.
    #[must_use]
    pub fn log(&self, node: &str) -> Vec<Value> {
        self.rows_of("/v2/log", node, "", 0)
    }

    /// Every event of tracepoints, oldest first, from all pages.
    ///
    /// # Panics
    /// If ids are not ascending.
    #[must_use]
    pub fn events(&self, node: &str) -> Vec<Value> {
        self.rows_of("/v2/trace", node, "", 0)
    }

    fn rows_of(&self, path: &str, node: &str, filters: &str, first: u64) -> Vec<Value> {
        let mut rows: Vec<Value> = Vec::new();
        let mut cursor = first;
        loop {
            let query = format!("direction=forward&limit={PAGE_ROWS}&cursor={cursor}&{filters}");
            let page = self.page_of(path, node, &query);
            let more = page.len() == PAGE_ROWS;
            for row in page {
                let id = id(&row);
                assert!(id >= cursor, "row {id} is before the cursor {cursor}");
                cursor = id + 1;
                rows.push(row);
            }
            if !more {
                return rows;
            }
        }
    }

    /// The number of rows that the node has had: the newest id plus one.
    #[must_use]
    pub fn count(&self, node: &str) -> u64 {
        self.page(node, "limit=1").first().map_or(0, |row| id(row) + 1)
    }

    /// A message with its bytes.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn message(&self, node: &str, id: u64) -> Value {
        let message = self.get(&format!("/v2/p2p/{id}?node_name={node}"));
        assert!(message.is_object(), "message {id} of {node} is {message}");
        message
    }

    /// The plaintext of a message.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn plain(&self, node: &str, id: u64) -> Vec<u8> {
        byte_list(&self.message(node, id)["decrypted_bytes"])
    }

    /// All connections of a node, oldest first.
    ///
    /// # Panics
    /// If the response has another shape.
    #[must_use]
    pub fn connections(&self, node: &str) -> Vec<Connection> {
        let list = self.get(&format!("/v3/connections?node_name={node}&limit=100000"));
        let pairs = list.as_array().expect("a list").iter();
        pairs
            .map(|pair| Connection { key: pair[0].as_str().expect("a key").to_owned(), value: pair[1].clone() })
            .collect()
    }

    /// A chunk, if it exists: `side` is "local" or "remote".
    #[must_use]
    pub fn chunk(&self, node: &str, connection: &str, side: &str, counter: u64) -> Option<Value> {
        let chunk = self.get(&format!("/v3/chunk/{connection}-{side}-{counter}?node_name={node}"));
        (!chunk.is_null()).then_some(chunk)
    }

    /// How many nodes have a process that is observed; `None` without an answer.
    #[must_use]
    pub fn observed_nodes(&self) -> Option<usize> {
        let nodes = self.get("/nodes");
        Some(nodes.as_array()?.iter().filter(|node| node["targets"][0].is_object()).count())
    }

    /// The conservation table.
    #[must_use]
    pub fn stats(&self) -> Value {
        self.get("/v2/stats")
    }
}

/// The id of a row.
///
/// # Panics
/// If the row has none.
#[must_use]
pub fn id(row: &Value) -> u64 {
    row["id"].as_u64().unwrap_or_else(|| panic!("no id: {row}"))
}

/// The bytes of a list of two-digit hexadecimal strings.
///
/// # Panics
/// If the value is not such a list.
#[must_use]
pub fn byte_list(list: &Value) -> Vec<u8> {
    let list = list.as_array().unwrap_or_else(|| panic!("not a list of bytes: {list:.100}"));
    list.iter().map(|byte| u8::from_str_radix(byte.as_str().expect("text"), 16).expect("two digits")).collect()
}
