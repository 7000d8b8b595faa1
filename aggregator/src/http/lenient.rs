//! Characters that a request's target may not have, but that people type: `"`, `<` and `>`.
//!
//! The HTTP library answers them by a bare 400. Here they are escaped before it sees them, in the first request of a
//! connection. Later ones are left alone: where they begin is known only to who reads them, and a guess could make one
//! request of two.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read at once while the first line is not over.
const BLOCK: usize = 1 << 10;

/// Wraps a connection.
pub(crate) struct Lenient<S> {
    inner: S,
    /// The first line is over.
    is_over: bool,
    /// What was read and not given on yet; its end is where the reading is.
    ready: Vec<u8>,
    given: usize,
}

impl<S> Lenient<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, is_over: false, ready: Vec::new(), given: 0 }
    }

    /// Takes what was read: escapes it up to the line's end.
    fn take(&mut self, read: &[u8]) {
        for byte in read {
            match byte {
                b'"' if !self.is_over => self.ready.extend_from_slice(b"%22"),
                b'<' if !self.is_over => self.ready.extend_from_slice(b"%3C"),
                b'>' if !self.is_over => self.ready.extend_from_slice(b"%3E"),
                _ => {
                    self.is_over |= *byte == b'\n';
                    self.ready.push(*byte);
                }
            }
        }
    }

    /// Gives what is ready; false if nothing is.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let rest = self.ready.get(self.given..).unwrap_or_default();
        let some = rest.get(..rest.len().min(buffer.remaining())).unwrap_or_default();
        buffer.put_slice(some);
        let count = some.len();
        self.given += count;
        if self.given >= self.ready.len() {
            self.ready = Vec::new();
            self.given = 0;
        }
        count > 0
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lenient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.give(buffer) || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.is_over {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let mut block = [0; BLOCK];
        let mut read = ReadBuf::new(&mut block);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
        self.take(read.filled());
        self.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lenient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::Lenient;

    /// What comes out of a connection on which `sent` comes in pieces.
    fn pass(sent: &[u8], piece: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = duplex(piece.max(1));
            let sent = sent.to_vec();
            let sending = tokio::spawn(async move { client.write_all(&sent).await.unwrap() });
            let mut read = Vec::new();
            Lenient::new(server).read_to_end(&mut read).await.unwrap();
            sending.await.unwrap();
            read
        })
    }

    #[test]
    fn the_first_line_is_escaped_and_nothing_else() {
        let sent = b"GET /v2/p2p?x=\"<a>\" HTTP/1.1\r\nhost: \"h\"\r\n\r\nGET /\"\r\n";
        let read = b"GET /v2/p2p?x=%22%3Ca%3E%22 HTTP/1.1\r\nhost: \"h\"\r\n\r\nGET /\"\r\n";
        for piece in [1, 7, 4096] {
            assert_eq!(pass(sent, piece), read);
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_passes(line in "[ -~]{0,3000}", rest in proptest::collection::vec(any::<u8>(), 0..3000), piece in 1usize..2000) {
            let escaped = line.replace('"', "%22").replace('<', "%3C").replace('>', "%3E");
            let (mut sent, mut wanted) = (format!("{line}\n").into_bytes(), format!("{escaped}\n").into_bytes());
            sent.extend_from_slice(&rest);
            wanted.extend_from_slice(&rest);
            prop_assert_eq!(pass(&sent, piece), wanted);
        }
    }
}
