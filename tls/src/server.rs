//! Server side: acceptance of connections, encrypted or plain.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use chainscope_hygiene::warn_limited;
use futures::{FutureExt as _, Stream, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use rustls::{ServerConfig, server::ResolvesServerCert};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::{Error, provider};

/// Timeout of a client's handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes; further clients wait in the backlog of the listener.
const MAX_HANDSHAKES: usize = 512;
/// Pause after a failed `accept`, for example without free file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Application protocol inside TLS, announced by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2.
    Grpc,
    /// HTTP/1.1.
    Http,
}

/// Completes an accepted TCP connection: with a TLS handshake, or plain.
#[derive(Clone)]
pub struct Acceptor(Option<TlsAcceptor>);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Acceptor(tls)" } else { "Acceptor(plain)" })
    }
}

impl Acceptor {
    /// Connections without encryption.
    #[must_use]
    pub fn plain() -> Self {
        Self(None)
    }

    /// TLS 1.2 and 1.3 with the current certificate, without client certificates.
    ///
    /// # Errors
    /// [`Error::Tls`] if rustls rejects the configuration.
    pub fn tls(certificate: Arc<dyn ResolvesServerCert>, protocol: Protocol) -> Result<Self, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = match protocol {
            Protocol::Grpc => vec![b"h2".to_vec()],
            Protocol::Http => vec![b"http/1.1".to_vec()],
        };
        Ok(Self(Some(TlsAcceptor::from(Arc::new(config)))))
    }

    /// Performs the handshake, with a timeout of 10 seconds.
    ///
    /// # Errors
    /// If the handshake fails or times out.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        match &self.0 {
            None => Ok(Connection::Plain(stream)),
            Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(stream) => Ok(Connection::Tls(Box::new(stream?.into()))),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not finish the handshake")),
            },
        }
    }
}

/// The connections of a listener, for `tonic::transport::server::Router::serve_with_incoming`. The stream never ends
/// and never fails; a failed or slow handshake does not affect other clients.
pub fn incoming(
    listener: TcpListener,
    acceptor: Acceptor,
) -> impl Stream<Item = Result<Connection, Infallible>> + Send + 'static {
    type Handshakes = FuturesUnordered<BoxFuture<'static, io::Result<Connection>>>;
    futures::stream::unfold(
        (listener, acceptor, Handshakes::new()),
        |(listener, acceptor, mut handshakes)| async move {
            loop {
                tokio::select! {
                    Some(done) = handshakes.next(), if !handshakes.is_empty() => match done {
                        Ok(connection) => return Some((Ok(connection), (listener, acceptor, handshakes))),
                        Err(error) => tracing::debug!(%error, "TLS handshake failed"),
                    },
                    accepted = listener.accept(), if handshakes.len() < MAX_HANDSHAKES => match accepted {
                        Ok((stream, _)) => {
                            let acceptor = acceptor.clone();
                            handshakes.push(async move { acceptor.accept(stream).await }.boxed());
                        }
                        Err(error) => {
                            warn_limited!(%error, "cannot accept a connection");
                            sleep(ACCEPT_BACKOFF).await;
                        }
                    },
                }
            }
        },
    )
}

/// A connection, encrypted or plain.
#[derive(Debug)]
pub enum Connection {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// The underlying TCP connection.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.tcp().connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
