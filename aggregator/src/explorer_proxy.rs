//! TezEdge Explorer cannot send a token. This proxy serves the Explorer's files and the API of some nodes on one origin,
//! and adds the token of a service account to what goes to the API.
//!
//! ```text
//! browser ─▶ /v1 /v2 /v3 /nodes ─▶ only the listed nodes, as /nodes/<namespace>/<name>/… ─▶ API, with a token
//!        └─▶ all else ───────────────────────────────────────────────────────────────────▶ the Explorer's files
//! ```
//!
//! Whoever reaches it reads these nodes, so it is strict in what goes on: reading methods only, each path rewritten to a
//! listed node, a few headers each way. The header by which the API lets pages of other origins read is left out:
//! otherwise any page in a visitor's browser could.

use std::{convert::Infallible, io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use chainscope_hygiene::warn_limited;
use chainscope_tls::Token;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Incoming, client, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, NodeConfig,
    http::{entry, form::Form, list, patient::Patient, problem::Problem},
    nodes::Nodes,
};

/// Connections at a time.
const CONNECTIONS: usize = 512;
/// How long a browser may be slow, and an upstream may take for the head of its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a request's head at most.
const HEAD_BYTES: usize = 32 << 10;
/// Largest list of nodes.
const LIST_BYTES: usize = 16 << 20;
/// Time that open answers have at the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// What of a browser's headers goes to the API, and back.
const TO_API: [HeaderName; 2] = [header::ACCEPT, HeaderName::from_static("last-event-id")];
const FROM_API: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
    HeaderName::from_static("x-accel-buffering"),
    HeaderName::from_static("x-content-type-options"),
];
/// What concerns one connection only.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What a proxy is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to serve.
    pub listen: SocketAddr,
    /// The aggregator's API, `http://…` or `https://…`.
    pub api: String,
    /// Where the Explorer's files are.
    pub explorer: String,
    /// The token for the API.
    pub token_file: Option<PathBuf>,
    /// Certificate authorities that the API is believed by.
    pub ca_file: Option<PathBuf>,
    /// The nodes that may be read.
    pub nodes: Vec<String>,
}

/// Serves until `end` comes.
///
/// # Errors
/// The address cannot be bound, another cannot be one, a name cannot be a node's.
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

/// A proxy that has its address.
pub struct Proxy {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    api: Origin,
    explorer: Origin,
    token_file: Option<PathBuf>,
    nodes: Vec<String>,
}

impl Proxy {
    /// Binds the address.
    ///
    /// # Errors
    /// As [`run`].
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let Config { listen: address, api, explorer, token_file, ca_file, nodes } = config;
        for name in &nodes {
            crate::nodes::check_name(name).map_err(|why| Error::NodeName { name: name.clone(), why })?;
        }
        let (api, explorer) = (Origin::parse(&api, ca_file)?, Origin::parse(&explorer, None)?);
        let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        Ok(Self { listener, shared: Arc::new(Shared { api, explorer, token_file, nodes }) })
    }

    /// Where it serves.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets answers under way end.
    pub async fn serve(self, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = async {
                    let permit = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
                    Ok::<_, io::Error>((self.listener.accept().await?.0, permit))
                } => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, permit)) => {
                    let (shared, stop) = (Arc::clone(&self.shared), stop.clone());
                    connections.spawn(async move {
                        connection(stream, shared, stop).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    warn_limited!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.answer(request).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, PATIENCE)), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let problem = format!("{} is not answered here", request.method());
            return Problem::new(StatusCode::METHOD_NOT_ALLOWED, problem).into_response();
        }
        let path = request.uri().path();
        let root = path.split('/').nth(1).unwrap_or_default();
        let answered = if matches!(root, "v1" | "v2" | "v3" | "nodes") {
            self.api(&request).await
        } else {
            self.file(&request).await
        };
        answered.unwrap_or_else(|problem| problem.into_response())
    }

    /// What the API says of a listed node.
    async fn api(&self, request: &Request<Incoming>) -> Result<Response, Problem> {
        let (pinned, path) = entry::split(request.uri().path());
        let (nodes, list) = self.listed().await?;
        if path == "/nodes" {
            return Ok(list::json(Body::from(Value::from(list).to_string())));
        }
        let query = request.uri().query().unwrap_or_default();
        let form = Form::parse(query);
        let node = match pinned {
            Some(pinned) => nodes.find(Some(&pinned), None)?,
            None => nodes.find(form.text("node_name")?, None)?,
        };
        if path.starts_with("/nodes") {
            return Err(Problem::not_found("there is no such path"));
        }
        let target = format!("/nodes/{node}{path}?{query}");
        let answer = self.ask_api(request.method().clone(), &target, only(&TO_API, request.headers())).await?;
        let (mut head, body) = answer.into_parts();
        head.headers = only(&FROM_API, &head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }

    /// The nodes that are listed here and that the API lets us read, to find names and aliases in; and what it says of
    /// them.
    async fn listed(&self) -> Result<(Nodes, Vec<Value>), Problem> {
        let answer = self.ask_api(Method::GET, "/nodes", HeaderMap::new()).await?;
        if answer.status() != StatusCode::OK {
            let detail = format!("the API answers {} to this proxy's token", answer.status());
            return Err(Problem::new(StatusCode::BAD_GATEWAY, detail));
        }
        let body = timeout(PATIENCE, Limited::new(answer.into_body(), LIST_BYTES).collect()).await;
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

    async fn ask_api(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
    ) -> Result<Response<Incoming>, Problem> {
        if let Some(file) = &self.token_file {
            let token = Token::read(file).map_err(|error| unreachable(&error.to_string()))?;
            let mut metadata = Default::default();
            token.authorize(&mut metadata);
            headers.extend(metadata.into_headers());
        }
        self.api.ask(method, target, headers).await
    }

    /// One of the Explorer's files.
    async fn file(&self, request: &Request<Incoming>) -> Result<Response, Problem> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let mut headers = request.headers().clone();
        for name in HOP_BY_HOP.iter().chain(&[header::AUTHORIZATION, header::CONTENT_LENGTH]) {
            headers.remove(name);
        }
        let answer = self.explorer.ask(request.method().clone(), target, headers).await?;
        let (mut head, body) = answer.into_parts();
        HOP_BY_HOP.iter().for_each(|name| {
            head.headers.remove(name);
        });
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

fn only(names: &[HeaderName], headers: &HeaderMap) -> HeaderMap {
    names.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}

fn config_of(node: &Value) -> Option<NodeConfig> {
    let aliases = node["aliases"].as_array().into_iter().flatten();
    let aliases = aliases.filter_map(|alias| Some(alias.as_str()?.to_owned())).collect();
    Some(NodeConfig { aliases, ..NodeConfig::new(node["name"].as_str()?) })
}

fn unreachable(why: &str) -> Problem {
    warn_limited!(why, "the other side of the proxy cannot be reached");
    Problem::new(StatusCode::BAD_GATEWAY, format!("what is behind this proxy cannot be reached: {why}"))
}

/// Where requests go.
struct Origin {
    authority: HeaderValue,
    host: String,
    port: u16,
    /// For https.
    tls: Option<(PathBuf, ServerName<'static>)>,
}

impl Origin {
    fn parse(text: &str, ca_file: Option<PathBuf>) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Address { address: text.to_owned(), why: why.to_owned() };
        let uri: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, port) = match (uri.scheme_str(), ca_file) {
            (Some("http"), _) => (None, 80),
            (Some("https"), Some(file)) => {
                let name = ServerName::try_from(host.clone()).map_err(|_| wrong("its host is no name"))?;
                (Some((file, name)), 443)
            }
            (Some("https"), None) => return Err(wrong("https needs the file of the certificate authority")),
            _ => return Err(wrong("it begins neither with http:// nor with https://")),
        };
        let port = authority.port_u16().unwrap_or(port);
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("its host is no name"))?;
        Ok(Self { authority, host, port, tls })
    }

    /// One request on a connection of its own.
    async fn ask(&self, method: Method, target: &str, mut headers: HeaderMap) -> Result<Response<Incoming>, Problem> {
        headers.insert(header::HOST, self.authority.clone());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|_| Problem::not_found("there is no such path"))?;
        *request.headers_mut() = headers;
        match timeout(PATIENCE, self.send(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(unreachable(&error.to_string())),
            Err(_) => Err(unreachable("it does not answer")),
        }
    }

    async fn send(
        &self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some((file, name)) = &self.tls else { return exchange(stream, request).await };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file)? {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        exchange(TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?, request).await
    }
}

async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or when nobody reads the answer any more.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection behind the proxy ended early");
        }
    });
    Ok(sender.send_request(request).await?)
}
