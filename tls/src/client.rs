//! Connecting to one of our servers.

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

/// Time to reach the server and shake hands.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an open connection is tried, and how long the answer may take: a cut network shows without traffic too.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The address of a server, and the certificate authorities it is believed by.
#[derive(Debug, Clone)]
pub struct Remote {
    address: Box<Address>,
    endpoint: Box<Endpoint>,
}

#[derive(Debug, Clone)]
struct Address {
    uri: String,
    host: String,
    port: u16,
    /// For https.
    trust: Option<(PathBuf, ServerName<'static>)>,
}

impl Remote {
    /// Takes `https://HOST:PORT` with the file of the authorities' certificates, or `http://HOST:PORT` without. The file
    /// is read at each connection and may come later.
    ///
    /// # Errors
    /// [`Error::Address`] if it is no such address, or the file's presence contradicts it.
    pub fn new(uri: &str, ca_file: Option<PathBuf>) -> Result<Self, Error> {
        let wrong = |cause: String| Error::Address { uri: uri.to_owned(), cause };
        let parsed = uri.parse::<Uri>().map_err(|cause| wrong(cause.to_string()))?;
        let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("no host in it".to_owned()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (trust, port) = match (parsed.scheme_str(), ca_file) {
            (Some("https"), Some(file)) => {
                let name = ServerName::try_from(host.clone()).map_err(|cause| wrong(cause.to_string()))?;
                (Some((file, name)), 443)
            }
            (Some("http"), None) => (None, 80),
            (Some("https"), None) => {
                return Err(wrong("https needs the file of the certificate authority".to_owned()));
            }
            (Some("http"), Some(_)) => {
                return Err(wrong("a certificate authority is given, but the address is not https".to_owned()));
            }
            _ => return Err(wrong("neither http:// nor https://".to_owned())),
        };
        let port = parsed.port_u16().unwrap_or(port);
        // The library refuses https with a connector of one's own, so it learns of it as the origin only.
        let mut plain = parsed.clone().into_parts();
        plain.scheme = Some(http::uri::Scheme::HTTP);
        plain.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let plain = Uri::from_parts(plain).map_err(|cause| wrong(cause.to_string()))?;
        let endpoint = Endpoint::from(plain)
            .origin(parsed)
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(HEARTBEAT)
            .keep_alive_timeout(HEARTBEAT)
            .keep_alive_while_idle(true);
        let address = Address { uri: uri.to_owned(), host, port, trust };
        Ok(Self { address: Box::new(address), endpoint: Box::new(endpoint) })
    }

    /// Connects, with the authorities that are in the file now.
    ///
    /// # Errors
    /// [`Error::Connect`] with all causes, of which a certificate that is not believed is one.
    pub async fn connect(&self) -> Result<Channel, Error> {
        let address = self.address.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let address = address.clone();
            async move { address.open().await.map(TokioIo::new) }
        });
        self.endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|cause| Error::Connect { uri: self.address.uri.clone(), cause: whole(&cause) })
    }
}

impl Address {
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

/// An error with its causes: the outermost alone says "transport error".
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
