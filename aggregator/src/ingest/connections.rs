//! Limit of the open connections of the gRPC server.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use chainscope_tls::Connection;
use futures::{Stream, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::Connected;

/// The connections, of which at most `max` are open at a time; further ones wait.
pub(super) fn limited<E>(
    connections: impl Stream<Item = Result<Connection, E>>,
    max: usize,
) -> impl Stream<Item = Result<LimitedConnection, E>> {
    let permits = Arc::new(Semaphore::new(max));
    connections.then(move |connection| {
        let permits = Arc::clone(&permits);
        async move {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await.ok();
            connection.map(|connection| LimitedConnection { connection, _permit: permit })
        }
    })
}

/// A connection that counts as open until it is dropped.
#[derive(Debug)]
pub(super) struct LimitedConnection {
    connection: Connection,
    _permit: Option<OwnedSemaphorePermit>,
}

impl LimitedConnection {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut Connection> {
        Pin::new(&mut self.get_mut().connection)
    }
}

impl Connected for LimitedConnection {
    type ConnectInfo = <Connection as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl AsyncRead for LimitedConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_read(cx, buf)
    }
}

impl AsyncWrite for LimitedConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use chainscope_tls::{Acceptor, incoming};
    use tokio::{
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn a_connection_above_the_limit_waits_for_the_end_of_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = pin!(limited(incoming(listener, Acceptor::plain()), 1));
        let _clients = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let first = connections.next().await.unwrap().unwrap();
        timeout(Duration::from_millis(50), connections.next()).await.unwrap_err();
        drop(first);
        connections.next().await.unwrap().unwrap();
    }
}
