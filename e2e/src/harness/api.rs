//! Asking Chainscope over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Rows a page; small enough that every scenario walks several.
const PAGE: usize = 1000;
/// Longest answer: one message of 100 MiB, once as bytes and once decrypted, is much longer, and no test asks for it.
const LONGEST_ANSWER: u64 = 256 << 20;

/// The API of a running Chainscope.
#[derive(Clone)]
pub struct Api {
    base: String,
    agent: ureq::Agent,
    token: Option<String>,
}

/// Every name is at this port of this machine.
#[derive(Debug)]
struct Here(u16);

impl Resolver for Here {
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
    /// The rest.
    pub value: Value,
}

impl Api {
    /// The API on that port of this machine.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self { base: format!("http://127.0.0.1:{port}"), agent: config.into(), token: None }
    }

    /// The API of a cluster, by TLS: that port of this machine leads to the server of that name, whose certificate the authority has
    /// signed.
    ///
    /// # Panics
    /// If the authority's certificates are no PEM.
    #[must_use]
    pub fn secure(port: u16, name: &str, authority: &str) -> Self {
        let roots = ureq::tls::parse_pem(authority.as_bytes()).map(|item| match item.expect("PEM") {
            ureq::tls::PemItem::Certificate(certificate) => certificate,
            _ => panic!("not only certificates: {authority}"),
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
        let agent = ureq::Agent::with_parts(config, DefaultConnector::default(), Here(port));
        Self { base: format!("https://{name}:{port}"), agent, token: None }
    }

    /// The same, asked with a bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Status and body of an answer; `None` if there is none.
    #[must_use]
    pub fn ask(&self, path: &str) -> Option<(u16, String)> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().ok()?;
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string().ok()?;
        Some((answer.status().as_u16(), body))
    }

    /// The JSON of an answer with status 200.
    ///
    /// # Panics
    /// If it is another answer.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(path).unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body:.200}"))
    }

    /// One page of rows; `query` without node.
    ///
    /// # Panics
    /// If the answer is not a list.
    #[must_use]
    pub fn page(&self, node: &str, query: &str) -> Vec<Value> {
        match self.get(&format!("/v2/p2p?node_name={node}&{query}")) {
            Value::Array(rows) => rows,
            other => panic!("no list: {other}"),
        }
    }

    /// Every row that passes the filters, oldest first, by walking the pages.
    ///
    /// # Panics
    /// If ids do not rise.
    #[must_use]
    pub fn rows(&self, node: &str, filters: &str) -> Vec<Value> {
        self.rows_from(node, filters, 0)
    }

    /// As [`rows`](Self::rows), from that id on.
    ///
    /// # Panics
    /// If ids do not rise.
    #[must_use]
    pub fn rows_from(&self, node: &str, filters: &str, first: u64) -> Vec<Value> {
        let mut rows: Vec<Value> = Vec::new();
        let mut cursor = first;
        loop {
            let page = self.page(node, &format!("direction=forward&limit={PAGE}&cursor={cursor}&{filters}"));
            let more = page.len() == PAGE;
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

    /// How many rows the node has had: the newest id and one.
    #[must_use]
    pub fn count(&self, node: &str) -> u64 {
        self.page(node, "limit=1").first().map_or(0, |row| id(row) + 1)
    }

    /// One message with its bytes.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn message(&self, node: &str, id: u64) -> Value {
        let message = self.get(&format!("/v2/p2p/{id}?node_name={node}"));
        assert!(message.is_object(), "message {id} of {node} is {message}");
        message
    }

    /// The plain bytes of a message.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn plain(&self, node: &str, id: u64) -> Vec<u8> {
        byte_list(&self.message(node, id)["decrypted_bytes"])
    }

    /// All connections of a node, oldest first.
    ///
    /// # Panics
    /// If the answer has another shape.
    #[must_use]
    pub fn connections(&self, node: &str) -> Vec<Connection> {
        let list = self.get(&format!("/v3/connections?node_name={node}&limit=100000"));
        let pairs = list.as_array().expect("a list").iter();
        pairs
            .map(|pair| Connection { key: pair[0].as_str().expect("a key").to_owned(), value: pair[1].clone() })
            .collect()
    }

    /// A chunk, if there is one: `side` is "local" or "remote".
    #[must_use]
    pub fn chunk(&self, node: &str, connection: &str, side: &str, counter: u64) -> Option<Value> {
        let chunk = self.get(&format!("/v3/chunk/{connection}-{side}-{counter}?node_name={node}"));
        (!chunk.is_null()).then_some(chunk)
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
/// If it has none.
#[must_use]
pub fn id(row: &Value) -> u64 {
    row["id"].as_u64().unwrap_or_else(|| panic!("no id: {row}"))
}

/// A list of two-digit texts as bytes.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn byte_list(list: &Value) -> Vec<u8> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list of bytes: {list:.100}"));
    list.iter().map(|byte| u8::from_str_radix(byte.as_str().expect("text"), 16).expect("two digits")).collect()
}
