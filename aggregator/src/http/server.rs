//! Listeners: connections are limited in number, and each in the resources that it may use.

use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, http::Request, response::Response};
use chainscope_hygiene::warn_limited;
use chainscope_tls::Acceptor;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{least_rate::LeastRate, request_target::EscapedTarget};

/// Maximum size of a request's head, and of the read buffer.
const HEAD_BYTES: usize = 32 << 10;

/// Time that responses under way have left when the program ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Pause after `accept` failed, as when there are no more file descriptors.
const BACKOFF: Duration = Duration::from_millis(100);

/// The address that a request came from, in the extensions of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// How a listener serves its connections.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) acceptor: Acceptor,
    pub(crate) max_connections: usize,
    /// Maximum time that a client takes to send the head of a request, and until which it has to take a response at the least
    /// rate.
    pub(crate) client_timeout: Duration,
    /// Least bytes a second that a client takes of a response while there are any.
    pub(crate) least_rate: usize,
    /// Number of open connections.
    pub(crate) connections: Gauge,
    /// Cancelled when the listener has to end.
    pub(crate) stop: CancellationToken,
}

impl Server {
    /// Accepts connections and responds to their requests until the end, then waits for open connections.
    pub(crate) async fn serve<S, F>(self, listener: TcpListener, service: S)
    where
        S: Fn(Request<Body>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.max_connections));
        let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &permits) => accepted,
                Some(_) = connections.join_next() => continue,
                () = self.stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer, permit)) => {
                    let (server, service, watcher) = (self.clone(), service.clone(), graceful.watcher());
                    connections.spawn(async move {
                        server.connections.inc();
                        server.connection(stream, peer, service, watcher).await;
                        server.connections.dec();
                        drop(permit);
                    });
                }
                Err(error) => {
                    warn_limited!(%error, "a connection could not be accepted");
                    sleep(BACKOFF).await;
                }
            }
        }
        drop(listener);
        if timeout(SHUTDOWN_GRACE, graceful.shutdown()).await.is_err() {
            tracing::debug!(connections = connections.len(), "open connections are closed");
        }
        connections.shutdown().await;
    }

    async fn connection<S, F>(&self, stream: TcpStream, peer: SocketAddr, service: S, watcher: Watcher)
    where
        S: Fn(Request<Body>) -> F,
        F: Future<Output = Response>,
    {
        let accepted = tokio::select! {
            accepted = self.acceptor.accept(stream) => accepted,
            () = self.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection could not be established");
                return;
            }
        };
        let seconds = usize::try_from(self.client_timeout.as_secs()).unwrap_or(usize::MAX).max(1);
        let stream = LeastRate::new(stream, self.client_timeout, self.least_rate.saturating_mul(seconds));
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddress(peer.ip()));
            let response = service(request.map(Body::new));
            async move { Ok::<_, Infallible>(response.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.client_timeout)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(EscapedTarget::new(stream)), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "a connection ended early");
        }
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}
