//! The least rate at which a client takes a response.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// A connection that fails if its peer, over a time in which there always was something to write, took less than it has to.
/// Time without anything to write does not count. tokio-io-timeout takes one byte now and then for progress.
pub(crate) struct LeastRate<S> {
    inner: S,
    /// The time, and the bytes that have to be written in it.
    window: Duration,
    least: usize,
    /// Bytes written in this window.
    written: usize,
    /// Time that writes were blocked for in this window, without the current wait.
    blocked: Duration,
    /// Since when a write is blocked.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S> LeastRate<S> {
    pub(crate) fn new(inner: S, window: Duration, least: usize) -> Self {
        let timer = Box::pin(sleep(window));
        Self { inner, window, least, written: 0, blocked: Duration::ZERO, since: None, timer }
    }

    /// Accounts for the result of a write.
    fn observe(&mut self, context: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = result {
            self.written = self.written.saturating_add(*result.as_ref().unwrap_or(&0));
            self.blocked += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            return Poll::Ready(result);
        }
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.timer.as_mut().reset(Instant::now() + self.window.saturating_sub(self.blocked));
        }
        loop {
            ready!(self.timer.as_mut().poll(context));
            if self.written < self.least {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
            }
            (self.written, self.blocked, self.since) = (0, Duration::ZERO, Some(Instant::now()));
            self.timer.as_mut().reset(Instant::now() + self.window);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LeastRate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LeastRate<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.observe(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context).map_ok(|()| 0);
        self.observe(context, result).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context).map_ok(|()| 0);
        self.observe(context, result).map_ok(drop)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.observe(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::LeastRate;

    const WINDOW: Duration = Duration::from_millis(50);

    /// Writes until the client has taken `bytes`, or was given up.
    async fn write(mut server: LeastRate<DuplexStream>, bytes: usize) -> io::Result<()> {
        for _ in 0..bytes {
            server.write_all(b"x").await?;
        }
        Ok(())
    }

    /// A client that takes a byte whenever the server has written another one, in steps of `pause`.
    async fn read(mut client: DuplexStream, pause: Duration) {
        let mut turn = tokio::time::interval(pause);
        while client.read_u8().await.is_ok() {
            turn.tick().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_too_slowly_is_given_up() {
        let (server, _client) = duplex(8);
        let error = write(LeastRate::new(server, WINDOW, 1000), 1 << 20).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        // Each of its steps makes progress.
        let (server, client) = duplex(8);
        tokio::spawn(read(client, Duration::from_millis(2)));
        let error = write(LeastRate::new(server, WINDOW, 1000), 1 << 20).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_fast_enough_and_an_idle_connection_go_on() {
        let (server, client) = duplex(8);
        tokio::spawn(read(client, Duration::from_millis(1)));
        write(LeastRate::new(server, WINDOW, 2), 200).await.unwrap();

        let (server, mut client) = duplex(1);
        let mut server = LeastRate::new(server, WINDOW, 1000);
        for _ in 0..4 {
            server.write_all(b"x").await.unwrap();
            tokio::time::sleep(WINDOW).await;
            client.read_u8().await.unwrap();
        }
    }
}
