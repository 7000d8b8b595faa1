//! Client side: connections to Chainscope servers.

use std::{path::PathBuf, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::{
    Connection, Error,
    files::{certificates, read},
    provider,
};

/// Timeout of the TCP connect and the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 keep-alive pings and timeout of their answers, which detect a broken network without traffic.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Address of a server, and the CA bundle used to verify it.
#[derive(Debug, Clone)]
pub struct Remote {
    address: Box<Address>,
    endpoint: Box<Endpoint>,
}

#[derive(Debug, Clone)]
struct Address {
    /// As configured.
    uri: String,
    host: String,
    port: u16,
    /// For https: file of the CA bundle, and the name that the certificate must have.
    trust: Option<(PathBuf, ServerName<'static>)>,
}

impl Remote {
    /// A server at `https://HOST:PORT`, verified by the CA bundle in a file, or at `http://HOST:PORT` without. The file
    /// is read for each connection, so that it may be created later.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid, or if the CA bundle does not match its scheme.
    pub fn new(uri: &str, ca_file: Option<PathBuf>) -> Result<Self, Error> {
        let invalid = |cause: String| Error::Address { uri: uri.to_owned(), cause };
        let parsed = uri.parse::<Uri>().map_err(|cause| invalid(cause.to_string()))?;
        let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(|| invalid("it has no host".to_owned()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (trust, port) = match (parsed.scheme_str(), ca_file) {
            (Some("https"), Some(file)) => {
                let name = ServerName::try_from(host.clone()).map_err(|cause| invalid(cause.to_string()))?;
                (Some((file, name)), 443)
            }
            (Some("http"), None) => (None, 80),
            (Some("https"), None) => {
                return Err(invalid("https needs the file of a CA bundle".to_owned()));
            }
            (Some("http"), Some(_)) => {
                return Err(invalid("a CA bundle is given, but the address is not https".to_owned()));
            }
            _ => return Err(invalid("it begins with neither http:// nor https://".to_owned())),
        };
        let port = parsed.port_u16().unwrap_or(port);
        // tonic rejects https with a custom connector, so the endpoint is http and the origin has the real scheme.
        let mut plain = parsed.clone().into_parts();
        plain.scheme = Some(http::uri::Scheme::HTTP);
        plain.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let plain = Uri::from_parts(plain).map_err(|cause| invalid(cause.to_string()))?;
        let endpoint = Endpoint::from(plain)
            .origin(parsed)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
            .keep_alive_while_idle(true);
        let address = Address { uri: uri.to_owned(), host, port, trust };
        Ok(Self { address: Box::new(address), endpoint: Box::new(endpoint) })
    }

    /// Connects; reads the CA bundle from its file.
    ///
    /// # Errors
    /// [`Error::Connect`] with all causes, such as an untrusted certificate.
    pub async fn connect(&self) -> Result<Channel, Error> {
        let address = self.address.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let address = address.clone();
            async move { address.open().await.map(TokioIo::new) }
        });
        self.endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|cause| Error::Connect { uri: self.address.uri.clone(), cause: with_causes(&cause) })
    }
}

impl Address {
    /// Opens the TCP connection, and TLS on it for https.
    async fn open(&self) -> Result<Connection, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some((file, name)) = &self.trust else { return Ok(Connection::Plain(stream)) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&file.display().to_string(), &read(file)?)? {
            roots.add(certificate)?;
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TlsConnector::from(std::sync::Arc::new(config)).connect(name.clone(), stream).await?;
        Ok(Connection::Tls(Box::new(stream.into())))
    }
}

/// An error with its causes; the outermost is only "transport error".
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
