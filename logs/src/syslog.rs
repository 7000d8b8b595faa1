//! Syslog: frames of a TCP connection (RFC 6587) and headers (RFC 3164, RFC 5424, and looser forms).

use chrono::{DateTime, Datelike as _, Utc};
use syslog_loose::{IncompleteDate, Protocol, Variant, parse_message_with_year_tz};

use crate::form::{self, Form};
use crate::join::MAX_MESSAGE_BYTES;
use crate::level::Level;

/// The header of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Severity as a level.
    pub level: Option<Level>,
    /// Nanoseconds since 1970. A time without a zone is read as UTC, one without a year in the latest year in which it is not
    /// after the arrival.
    pub time: Option<i64>,
    /// Host name, as the sender says.
    pub host: Option<&'a str>,
    /// Name of the application.
    pub app: Option<&'a str>,
    /// What follows the header.
    pub text: &'a str,
}

impl<'a> Header<'a> {
    /// Reads a message. One that does not begin with a priority (`<27>`) has no header: it is text.
    #[must_use]
    pub fn parse(message: &'a str, received: i64) -> Self {
        let none = Self { level: None, time: None, host: None, app: None, text: message };
        let Some((priority, rest)) = priority(message) else { return none };
        let only_priority = Self { level: Level::from_severity(priority % 8), text: rest, ..none };
        // A line of a node right after the priority has a time that looks like that of a header.
        if form::parse(rest).form != Form::Unknown {
            return only_priority;
        }
        let year = |date: IncompleteDate| latest_year(date, received);
        let parsed = parse_message_with_year_tz(message, year, Some(Utc), Variant::Either);
        if parsed.severity.is_none() {
            return only_priority;
        }
        // Structured data is of RFC 5424: in an older message such brackets are text.
        let text = match parsed.structured_data.first() {
            Some(element) if parsed.protocol == Protocol::RFC3164 => {
                let bracket = (element.id.as_ptr() as usize - message.as_ptr() as usize).saturating_sub(1);
                message.get(bracket..).unwrap_or(parsed.msg)
            }
            _ => parsed.msg,
        };
        Self {
            time: parsed.timestamp.and_then(|time| time.timestamp_nanos_opt()),
            host: parsed.hostname,
            app: parsed.appname,
            text: text.strip_prefix('\u{feff}').unwrap_or(text),
            ..only_priority
        }
    }
}

/// The priority with which a message begins, `<`, one to three digits and `>`, and what follows. Octez' own `<005> ` looks like
/// that, too, but is followed by a space.
fn priority(message: &str) -> Option<(u8, &str)> {
    let (digits, rest) = message.strip_prefix('<')?.split_once('>')?;
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    // 23 facilities of 8 severities.
    let number = digits.parse().ok().filter(|number| *number < 192)?;
    (is_number && !rest.starts_with(' ')).then_some((number, rest))
}

fn latest_year((month, day, hour, minute, second): IncompleteDate, received: i64) -> i32 {
    let time = crate::time::LocalTime { month, day, hour, minute, second, nanosecond: 0 };
    DateTime::<Utc>::from_timestamp_nanos(time.latest(received).unwrap_or(received)).year()
}

/// Splits a TCP stream into messages: octet counting (`LENGTH SP MESSAGE`), or messages that end with a newline. Each
/// message says which by its first byte. A message longer than [`MAX_MESSAGE_BYTES`] is returned in pieces of that length, so
/// that no sender makes the buffer larger.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that have been returned.
    consumed: usize,
    /// Bytes after these that are known to have no newline.
    searched: usize,
    rest: Rest,
}

/// What follows of a message of which a piece was returned.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Rest {
    #[default]
    Nothing,
    /// That many bytes.
    Octets(usize),
    /// Everything up to a newline.
    Line,
}

/// Most digits of an octet count.
const MAX_DIGITS: usize = 7;

impl FrameDecoder {
    /// Adds bytes that were read.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete message, or a piece of a long one.
    pub fn next_frame(&mut self) -> Option<&[u8]> {
        loop {
            let (header, length, trailer) = self.find()?;
            let start = self.consumed + header;
            self.consumed = start + length + trailer;
            self.searched = 0;
            // Senders that count octets may end messages with newlines nevertheless: those are empty messages.
            if length > 0 {
                return Some(&self.buffer[start..start + length]);
            }
        }
    }

    /// What is left when the connection ends: a message without its newline, or a part of one.
    #[must_use]
    pub fn remainder(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Lengths of the parts of the next frame: before the message, the message, after it.
    fn find(&mut self) -> Option<(usize, usize, usize)> {
        let bytes = &self.buffer[self.consumed..];
        let (header, octets) = match self.rest {
            Rest::Line => return self.find_line(),
            Rest::Octets(octets) => (0, octets),
            Rest::Nothing => match octet_count(bytes) {
                Count::Missing => return self.find_line(),
                Count::Incomplete => return None,
                Count::Octets(header, octets) => (header, octets),
            },
        };
        let length = octets.min(MAX_MESSAGE_BYTES);
        if bytes.len() < header + length {
            return None;
        }
        self.rest = if octets > length { Rest::Octets(octets - length) } else { Rest::Nothing };
        Some((header, length, 0))
    }

    fn find_line(&mut self) -> Option<(usize, usize, usize)> {
        let bytes = &self.buffer[self.consumed..];
        let within = &bytes[..bytes.len().min(MAX_MESSAGE_BYTES)];
        match within.iter().skip(self.searched).position(|byte| *byte == b'\n') {
            Some(after) => {
                self.rest = Rest::Nothing;
                let end = self.searched + after;
                let length = if end > 0 && bytes[end - 1] == b'\r' { end - 1 } else { end };
                Some((0, length, end + 1 - length))
            }
            None if within.len() == MAX_MESSAGE_BYTES => {
                self.rest = Rest::Line;
                Some((0, MAX_MESSAGE_BYTES, 0))
            }
            None => {
                self.searched = within.len();
                None
            }
        }
    }
}

enum Count {
    /// The message ends with a newline.
    Missing,
    /// Not known yet.
    Incomplete,
    /// Lengths of the count and of the message.
    Octets(usize, usize),
}

/// Reads `LENGTH SP` where a priority follows: a line of text may begin with a number as well.
fn octet_count(bytes: &[u8]) -> Count {
    let digits = bytes.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
    match bytes.get(digits..) {
        Some([]) if digits == 0 => Count::Incomplete,
        _ if digits == 0 || digits > MAX_DIGITS || bytes[0] == b'0' => Count::Missing,
        Some([] | [b' ']) => Count::Incomplete,
        Some([b' ', b'<', ..]) => {
            let length = bytes[..digits].iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
            Count::Octets(digits + 1, length)
        }
        _ => Count::Missing,
    }
}
