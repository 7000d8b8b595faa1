//! Characters in the request target that URIs must not contain, but that people type: `"`, `<` and `>`.
//!
//! The contract accepts them in query strings (`query="…"`), as the original did. `http::Uri` refuses them (1.5), and hyper
//! responds with a 400 without a body before any handler or layer runs, so they are escaped below hyper. Only in the
//! first request of a connection: where later requests begin is known to the HTTP parser alone, and a guess could make two
//! requests of one.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read at a time until the first line is complete.
const BLOCK: usize = 1 << 10;

/// A connection whose first line is escaped.
pub(crate) struct EscapedTarget<S> {
    inner: S,
    /// The first line is complete.
    is_complete: bool,
    /// Escaped bytes.
    ready: Vec<u8>,
    /// Bytes of `ready` that were passed on.
    passed: usize,
}

impl<S> EscapedTarget<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, is_complete: false, ready: Vec::new(), passed: 0 }
    }

    /// Escapes what was read, up to the end of the line.
    fn escape(&mut self, read: &[u8]) {
        for byte in read {
            match byte {
                b'"' if !self.is_complete => self.ready.extend_from_slice(b"%22"),
                b'<' if !self.is_complete => self.ready.extend_from_slice(b"%3C"),
                b'>' if !self.is_complete => self.ready.extend_from_slice(b"%3E"),
                _ => {
                    self.is_complete |= *byte == b'\n';
                    self.ready.push(*byte);
                }
            }
        }
    }

    /// Passes escaped bytes on; false if there are none.
    fn pass(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let rest = self.ready.get(self.passed..).unwrap_or_default();
        let some = rest.get(..rest.len().min(buffer.remaining())).unwrap_or_default();
        buffer.put_slice(some);
        let count = some.len();
        self.passed += count;
        if self.passed >= self.ready.len() {
            self.ready = Vec::new();
            self.passed = 0;
        }
        count > 0
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EscapedTarget<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.pass(buffer) || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.is_complete {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let mut block = [0; BLOCK];
        let mut read = ReadBuf::new(&mut block);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
        self.escape(read.filled());
        self.pass(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EscapedTarget<S> {
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

    use super::EscapedTarget;

    /// What comes out of a connection on which `sent` comes in pieces.
    fn pass(sent: &[u8], piece: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = duplex(piece.max(1));
            let sent = sent.to_vec();
            let sending = tokio::spawn(async move { client.write_all(&sent).await.unwrap() });
            let mut read = Vec::new();
            EscapedTarget::new(server).read_to_end(&mut read).await.unwrap();
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
        fn other_bytes_pass_unchanged(line in "[ -~]{0,3000}", rest in proptest::collection::vec(any::<u8>(), 0..3000), piece in 1usize..2000) {
            let escaped = line.replace('"', "%22").replace('<', "%3C").replace('>', "%3E");
            let (mut sent, mut wanted) = (format!("{line}\n").into_bytes(), format!("{escaped}\n").into_bytes());
            sent.extend_from_slice(&rest);
            wanted.extend_from_slice(&rest);
            prop_assert_eq!(pass(&sent, piece), wanted);
        }
    }
}
