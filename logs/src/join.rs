//! Lines that make up one message.

use crate::colours::without_colours;
use crate::form::{self, Form, Line};

/// Joins the lines of one source into messages. The end of a message is known when the next one begins: the caller flushes
/// when no line has arrived for a while.
#[derive(Debug, Default)]
pub struct MessageJoiner {
    /// Raw lines of the message, separated by `\n`, and the length of the first.
    raw: Vec<u8>,
    first: usize,
    lines: usize,
}

/// Greatest length of a message; a longer one is continued by further messages.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Greatest number of joined lines.
const MAX_LINES: usize = 4096;

impl MessageJoiner {
    /// Adds a line, without its end. Returns the message that it does not continue, if there is one.
    pub fn push(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let complete = if self.lines > 0 && !self.is_continued_by(line) { self.flush() } else { None };
        if self.lines == 0 {
            self.first = line.len();
        } else {
            self.raw.push(b'\n');
        }
        self.raw.extend_from_slice(line);
        self.lines += 1;
        complete
    }

    /// Whether a message waits for its next line.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.lines > 0
    }

    /// Whether a line can continue the message: not one of unknown form, and JSON objects are one line.
    #[must_use]
    pub fn may_continue(&self) -> bool {
        let first = String::from_utf8_lossy(&self.raw[..self.first]);
        self.is_pending() && form::parse(&without_colours(&first)).form != Form::Unknown
    }

    /// Ends the message. Returns `None` if there is none.
    pub fn flush(&mut self) -> Option<Vec<u8>> {
        let is_pending = self.is_pending();
        self.lines = 0;
        is_pending.then(|| std::mem::take(&mut self.raw))
    }

    fn is_continued_by(&self, line: &[u8]) -> bool {
        if self.lines == MAX_LINES || self.raw.len() + 1 + line.len() > MAX_MESSAGE_BYTES {
            return false;
        }
        let (first, line) = (String::from_utf8_lossy(&self.raw[..self.first]), String::from_utf8_lossy(line));
        let (first, line) = (without_colours(&first), without_colours(&line));
        let first: Line<'_> = form::parse(&first);
        form::parse(&line).continues(&first)
    }
}

/// A message in pieces of at most [`MAX_MESSAGE_BYTES`], divided between characters. An empty message is one empty piece.
pub fn pieces(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(message);
    std::iter::from_fn(move || {
        let whole = rest.take()?;
        if whole.len() <= MAX_MESSAGE_BYTES {
            return Some(whole);
        }
        // A character has at most four bytes; what is not UTF-8 is divided anywhere.
        let is_start = |end: &usize| whole[*end] & 0xc0 != 0x80;
        let end = (MAX_MESSAGE_BYTES - 3..=MAX_MESSAGE_BYTES).rev().find(is_start).unwrap_or(MAX_MESSAGE_BYTES);
        let (piece, after) = whole.split_at(end);
        rest = Some(after);
        Some(piece)
    })
}
