//! Listening: connections are bounded in number, and each in what it may cost.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use chainscope_hygiene::warn_limited;
use chainscope_tls::Acceptor;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{app::Pinned, entry, lenient::Lenient, patient::Patient};
use crate::{limits::Limits, metrics::Metrics};

/// Bytes of a request's head at most, and of what is read ahead.
const HEAD_BYTES: usize = 32 << 10;

/// Time that answers under way have left when the program ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// Pause after the system refused a connection, as when there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What a listener serves.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) router: Router,
    /// The node that the listener is about.
    pub(crate) pinned: Option<Pinned>,
    pub(crate) acceptor: Acceptor,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: CancellationToken,
}

/// Accepts connections until the end, then waits for those that are open.
pub(crate) async fn serve(listener: TcpListener, served: Served) {
    let room = Arc::new(Semaphore::new(served.limits.connections));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => {
                let Ok(permit) = permit else { break };
                tokio::select! {
                    accepted = listener.accept() => accepted.map(|(stream, peer)| (stream, peer, permit)),
                    () = served.stop.cancelled() => break,
                }
            }
            () = served.stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let served = served.clone();
                connections.spawn(async move {
                    served.metrics.http.connections.inc();
                    connection(stream, peer, &served).await;
                    served.metrics.http.connections.dec();
                    drop(permit);
                });
            }
            Err(error) => {
                warn_limited!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, peer: SocketAddr, served: &Served) {
    let accepted = tokio::select! {
        accepted = served.acceptor.accept(stream) => accepted,
        () = served.stop.cancelled() => return,
    };
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%peer, %error, "a connection could not be opened");
            return;
        }
    };
    let service = service_fn(|request: Request<Incoming>| {
        let (router, pinned) = (served.router.clone(), served.pinned.clone());
        async move { Ok::<_, Infallible>(entry::answer(router, pinned, request.map(Body::new)).await) }
    });
    let io = TokioIo::new(Lenient::new(Patient::new(stream, served.limits.patience)));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(served.limits.patience)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(io, service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = served.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
