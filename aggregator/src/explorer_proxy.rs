//! A proxy for TezEdge Explorer, which cannot send a token: it serves the Explorer's files and the API of some nodes on one
//! origin, and adds the token of a service account to requests for the API.
//!
//! ```text
//! browser ─▶ /v1 /v2 /v3 /chains /nodes ─▶ the listed nodes only, as /nodes/<namespace>/<name>/… ─▶ API, with a token
//!        └─▶ other paths ─────────────────────────────────────────────────────────────────▶ the Explorer's files
//! ```
//!
//! Every client of the proxy can read these nodes, so it restricts what it forwards: `GET` and `HEAD` only, each path
//! rewritten to a listed node, a few headers in each direction. Pages of other origins in a visitor's browser can read nothing:
//! the header by which the API allows origins is removed, and a request for a host name that is not listed is refused.

use std::{io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use chainscope_hygiene::warn_limited;
use chainscope_tls::{Acceptor, Token};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, NodeConfig,
    http::{
        browser::BrowserPolicy,
        code::Code,
        params::{NodeParameters, parse},
        prefix,
        problem::Problem,
        request_id::{RequestId, X_REQUEST_ID},
        response,
        server::Server,
    },
    nodes::{Nodes, check_name},
};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 512;
/// Maximum time that a browser takes to send the head of a request, and that it leaves a response unread.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Least bytes a second that a browser takes of a response.
const LEAST_RATE: usize = 16 << 10;
/// Maximum time until the head of an upstream's response.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections to an upstream are closed after this.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the list of nodes.
const MAX_LIST_BYTES: usize = 16 << 20;

/// Headers that are forwarded to the API, and back.
const TO_API: [HeaderName; 4] =
    [header::ACCEPT, header::ACCEPT_ENCODING, header::IF_NONE_MATCH, HeaderName::from_static("last-event-id")];
const FROM_API: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CACHE_CONTROL,
    header::ETAG,
    header::VARY,
    header::RETRY_AFTER,
    HeaderName::from_static("x-accel-buffering"),
    HeaderName::from_static("x-content-type-options"),
];
/// Headers of one connection, which are not forwarded.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Configuration of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the listener.
    pub listen: SocketAddr,
    /// The aggregator's API, `http://…` or `https://…`.
    pub api: String,
    /// Base URL of the Explorer's files.
    pub explorer: String,
    /// File with the token for the API.
    pub token_file: Option<PathBuf>,
    /// CA bundle used to verify the API.
    pub ca_file: Option<PathBuf>,
    /// The nodes that may be read.
    pub nodes: Vec<String>,
    /// Host names of the proxy beside `localhost` and IP addresses; `*`: all.
    pub hosts: Vec<String>,
}

/// Serves until `end` completes.
///
/// # Errors
/// The address cannot be bound, a URL or the name of a node is invalid.
pub async fn run(config: Config, end: impl Future<Output = ()> + Send) -> Result<(), Error> {
    let proxy = Proxy::bind(config).await?;
    let stop = CancellationToken::new();
    let mut serving = pin!(proxy.serve(stop.clone()));
    tokio::select! {
        () = serving.as_mut() => {}
        () = end => {
            stop.cancel();
            serving.await;
        }
    }
    Ok(())
}

/// A proxy with a bound address.
pub struct Proxy {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    api: Origin,
    explorer: Origin,
    token_file: Option<PathBuf>,
    nodes: Vec<String>,
    policy: BrowserPolicy,
}

impl Proxy {
    /// Binds the address.
    ///
    /// # Errors
    /// As [`run`].
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let Config { listen: address, api, explorer, token_file, ca_file, nodes, hosts } = config;
        let policy = BrowserPolicy::new(&[], &hosts, true)?;
        for name in &nodes {
            check_name(name).map_err(|why| Error::NodeName { name: name.clone(), why })?;
        }
        let (api, explorer) = (Origin::parse(&api, ca_file)?, Origin::parse(&explorer, None)?);
        let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        Ok(Self { listener, shared: Arc::new(Shared { api, explorer, token_file, nodes, policy }) })
    }

    /// Address of the listener.
    ///
    /// # Errors
    /// That of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then waits for responses under way.
    pub async fn serve(self, stop: CancellationToken) {
        let server = Server {
            acceptor: Acceptor::plain(),
            max_connections: MAX_CONNECTIONS,
            client_timeout: CLIENT_TIMEOUT,
            least_rate: LEAST_RATE,
            connections: Default::default(),
            stop,
        };
        let shared = self.shared;
        let service = move |request| {
            let shared = Arc::clone(&shared);
            async move { shared.respond(request).await }
        };
        server.serve(self.listener, service).await;
    }
}

impl Shared {
    async fn respond(&self, request: Request<Body>) -> Response {
        let id = RequestId::of(request.headers());
        let response = self.route(request, &id).await;
        id.attach(response)
    }

    async fn route(&self, request: Request<Body>, id: &RequestId) -> Response {
        if let Some(refused) = self.policy.refuse_host(&request) {
            return refused;
        }
        // Without the body, which is not forwarded.
        let (request, _) = request.into_parts();
        if let Some(refused) = prefix::refuse_method(&request.method) {
            return refused;
        }
        let path = request.uri.path();
        let root = path.split('/').nth(1).unwrap_or_default();
        let response = if matches!(root, "v1" | "v2" | "v3" | "chains" | "nodes") {
            self.api(&request, id).await
        } else {
            self.file(&request).await
        };
        response.unwrap_or_else(|problem| problem.into_response())
    }

    /// The response of the API for a listed node. Its audit log has the request's id.
    async fn api(&self, request: &Parts, id: &RequestId) -> Result<Response, Problem> {
        let (pinned, path) = prefix::split(request.uri.path());
        let (nodes, list) = self.listed(id).await?;
        if path == "/nodes" {
            return Ok(response::json(Body::from(Value::from(list).to_string())));
        }
        let query = request.uri.query().unwrap_or_default();
        let wanted = match pinned {
            Some(pinned) => Some(pinned),
            None => parse::<NodeParameters>(query)?.node_name,
        };
        let node = nodes.find(wanted.as_deref(), None)?;
        if path.starts_with("/nodes") {
            return Err(Problem::new(Code::UnknownPath, "there is no such path"));
        }
        let target = format!("/nodes/{node}{path}?{query}");
        let headers = only(&TO_API, &request.headers);
        let response = self.request_api(request.method.clone(), &target, headers, id).await?;
        let (mut head, body) = response.into_parts();
        head.headers = only(&FROM_API, &head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }

    /// The listed nodes that the token may read, for the lookup of names and aliases; and the API's list of them.
    async fn listed(&self, id: &RequestId) -> Result<(Nodes, Vec<Value>), Problem> {
        let response = self.request_api(Method::GET, "/nodes", HeaderMap::new(), id).await?;
        if response.status() != StatusCode::OK {
            let detail = format!("the API responds with {} to this proxy's token", response.status());
            return Err(Problem::new(Code::UpstreamFailed, detail));
        }
        let body = timeout(UPSTREAM_TIMEOUT, Limited::new(response.into_body(), MAX_LIST_BYTES).collect()).await;
        let body = body.map_err(|_| unreachable("the list of nodes does not end"))?;
        let body = body.map_err(|error| unreachable(&error.to_string()))?.to_bytes();
        let mut list: Vec<Value> =
            serde_json::from_slice(&body).map_err(|error| unreachable(&format!("its list of nodes: {error}")))?;
        list.retain(|node| node["name"].as_str().is_some_and(|name| self.nodes.iter().any(|listed| listed == name)));
        let known: Vec<NodeConfig> = list.iter().filter_map(config_of).collect();
        let nodes = Nodes::new(&known, [], known.len(), Default::default())
            .map_err(|error| unreachable(&format!("its list of nodes: {error}")))?;
        Ok((nodes, list))
    }

    async fn request_api(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
        id: &RequestId,
    ) -> Result<Response<Incoming>, Problem> {
        headers.insert(X_REQUEST_ID, id.header());
        if let Some(file) = &self.token_file {
            let token = Token::read(file).map_err(|error| unreachable(&error.to_string()))?;
            let mut metadata = Default::default();
            token.authorize(&mut metadata);
            headers.extend(metadata.into_headers());
        }
        self.api.request(method, target, headers).await
    }

    /// One of the Explorer's files.
    async fn file(&self, request: &Parts) -> Result<Response, Problem> {
        let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut headers = request.headers.clone();
        for name in HOP_BY_HOP.iter().chain(&[header::AUTHORIZATION, header::CONTENT_LENGTH]) {
            headers.remove(name);
        }
        let response = self.explorer.request(request.method.clone(), target, headers).await?;
        let (mut head, body) = response.into_parts();
        HOP_BY_HOP.iter().for_each(|name| {
            head.headers.remove(name);
        });
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

fn only(names: &[HeaderName], headers: &HeaderMap) -> HeaderMap {
    let values = |name: &HeaderName| headers.get_all(name).iter().map(|value| (name.clone(), value.clone())).collect();
    names.iter().flat_map(|name| -> Vec<_> { values(name) }).collect()
}

fn config_of(node: &Value) -> Option<NodeConfig> {
    let aliases = node["aliases"].as_array().into_iter().flatten();
    let aliases = aliases.filter_map(|alias| Some(alias.as_str()?.to_owned())).collect();
    Some(NodeConfig { aliases, ..NodeConfig::new(node["name"].as_str()?) })
}

fn unreachable(why: &str) -> Problem {
    warn_limited!(why, "an upstream of the proxy is unreachable");
    Problem::new(Code::UpstreamFailed, format!("the upstream of this proxy is unreachable: {why}"))
}

type UpstreamClient = Client<HttpsConnector<HttpConnector>, Body>;

/// Where requests are forwarded to.
struct Origin {
    scheme: &'static str,
    authority: HeaderValue,
    /// CA bundle used to verify the upstream, for https.
    ca_file: Option<PathBuf>,
    /// The pooled client, and the CA bundle that it was made with. Another bundle makes another client.
    client: Mutex<Option<(Vec<u8>, UpstreamClient)>>,
}

impl Origin {
    fn parse(text: &str, ca_file: Option<PathBuf>) -> Result<Self, Error> {
        let invalid = |why: &str| Error::Address { address: text.to_owned(), why: why.to_owned() };
        let uri: Uri = text.parse().map_err(|_| invalid("it is no URL"))?;
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        let (scheme, ca_file) = match (uri.scheme_str(), ca_file) {
            (Some("http"), _) => ("http", None),
            (Some("https"), Some(file)) => ("https", Some(file)),
            (Some("https"), None) => return Err(invalid("https needs a CA bundle")),
            _ => return Err(invalid("it begins neither with http:// nor with https://")),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        ServerName::try_from(host).map_err(|_| invalid("its host is no name"))?;
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid("its host is no name"))?;
        Ok(Self { scheme, authority, ca_file, client: Mutex::new(None) })
    }

    /// Forwards a request without a body.
    async fn request(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
    ) -> Result<Response<Incoming>, Problem> {
        let (scheme, authority) = (self.scheme, self.authority.to_str().unwrap_or_default());
        let uri = format!("{scheme}://{authority}{target}");
        headers.insert(header::HOST, self.authority.clone());
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().map_err(|_| Problem::new(Code::UnknownPath, "there is no such path"))?;
        *request.headers_mut() = headers;
        let client = self.client().map_err(|error| unreachable(&error.to_string()))?;
        match timeout(UPSTREAM_TIMEOUT, client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(unreachable(&format!("{:#}", anyhow::Error::from(error)))),
            Err(_) => Err(unreachable("it does not respond")),
        }
    }

    /// The client for the CA bundle in the file now.
    fn client(&self) -> Result<UpstreamClient, Box<dyn std::error::Error + Send + Sync>> {
        let bundle = match &self.ca_file {
            Some(file) => std::fs::read(file)?,
            None => Vec::new(),
        };
        let mut client = self.client.lock();
        if let Some((made_with, client)) = &*client
            && *made_with == bundle
        {
            return Ok(client.clone());
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bundle) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let made = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        *client = Some((bundle, made.clone()));
        Ok(made)
    }
}
