//! Cuts a byte stream into chunks: u16 length, then so many bytes. Keeps at most one chunk.
use std::borrow::Cow;

/// Bytes of a chunk's length prefix.
pub const PREFIX_BYTES: usize = 2;

/// Longest chunk on the wire, bytes.
pub const MAX_CHUNK_BYTES: usize = PREFIX_BYTES + u16::MAX as usize;

/// The content length that a chunk's first bytes announce.
pub(crate) fn content_length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<PREFIX_BYTES>().map(|prefix| usize::from(u16::from_be_bytes(*prefix)))
}

/// The incomplete chunk at the end of a stream.
#[derive(Clone, Debug, Default)]
pub struct Framer {
    pending: Vec<u8>,
}

impl Framer {
    /// Takes the next whole chunk (length prefix included) off the stream's next bytes; keeps what is left of them if there is none.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if self.pending.is_empty() {
            if let Some(length) = content_length(input)
                && let Some((chunk, rest)) = input.split_at_checked(PREFIX_BYTES + length)
            {
                *input = rest;
                return Some(Cow::Borrowed(chunk));
            }
            self.pending.extend_from_slice(input);
            *input = &[];
            return None;
        }
        self.fill(PREFIX_BYTES, input);
        let total = PREFIX_BYTES + content_length(&self.pending)?;
        self.fill(total, input);
        (self.pending.len() == total).then(|| Cow::Owned(std::mem::take(&mut self.pending)))
    }

    fn fill(&mut self, total: usize, input: &mut &[u8]) {
        let taken = total.saturating_sub(self.pending.len()).min(input.len());
        let (head, rest) = input.split_at(taken);
        self.pending.extend_from_slice(head);
        *input = rest;
    }

    /// The bytes of the incomplete chunk.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Takes the incomplete chunk out.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}
