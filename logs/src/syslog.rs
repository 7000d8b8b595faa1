//! Syslog: frames of a TCP connection (RFC 6587) and headers (RFC 3164, RFC 5424, and looser forms).

use chrono::{DateTime, Datelike as _, Utc};
use syslog_loose::{IncompleteDate, SyslogSeverity, Variant, parse_message_with_year_tz};

use crate::level::Level;

/// The header of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Severity as a level.
    pub level: Option<Level>,
    /// Nanoseconds since 1970. A time without a zone is read as UTC, one without a year in the year nearest to the arrival.
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
        if !has_priority(message) {
            return Self { level: None, time: None, host: None, app: None, text: message };
        }
        let year = |date: IncompleteDate| nearest_year(date, received);
        let parsed = parse_message_with_year_tz(message, year, Some(Utc), Variant::Either);
        Self {
            level: parsed.severity.and_then(|severity| Level::from_severity(number(severity))),
            time: parsed.timestamp.and_then(|time| time.timestamp_nanos_opt()),
            host: parsed.hostname,
            app: parsed.appname,
            text: parsed.msg.strip_prefix('\u{feff}').unwrap_or(parsed.msg),
        }
    }
}

/// Whether a message begins with `<`, one to three digits and `>`. Octez' own `<005> ` looks like that, too, but is followed
/// by a space.
fn has_priority(message: &str) -> bool {
    let Some((digits, rest)) = message.strip_prefix('<').and_then(|rest| rest.split_once('>')) else { return false };
    (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()) && !rest.starts_with(' ')
}

fn number(severity: SyslogSeverity) -> u8 {
    match severity {
        SyslogSeverity::SEV_EMERG => 0,
        SyslogSeverity::SEV_ALERT => 1,
        SyslogSeverity::SEV_CRIT => 2,
        SyslogSeverity::SEV_ERR => 3,
        SyslogSeverity::SEV_WARNING => 4,
        SyslogSeverity::SEV_NOTICE => 5,
        SyslogSeverity::SEV_INFO => 6,
        SyslogSeverity::SEV_DEBUG => 7,
    }
}

fn nearest_year((month, day, hour, minute, second): IncompleteDate, received: i64) -> i32 {
    let time = crate::time::LocalTime { month, day, hour, minute, second, nanosecond: 0 };
    DateTime::<Utc>::from_timestamp_nanos(time.nearest(received).unwrap_or(received)).year()
}

/// Splits a TCP stream into messages: octet counting (`LENGTH SP MESSAGE`), or messages that end with a newline. Each
/// message says which by its first byte.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that have been returned.
    consumed: usize,
}

/// A stream that cannot be split any further. The connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than the limit.
    #[error("a syslog message is longer than {MAX_FRAME} bytes")]
    TooLong,
}

/// Greatest length of a message. RFC 5425 asks for 8 KiB at least.
pub const MAX_FRAME: usize = 1 << 20;
/// Digits of [`MAX_FRAME`].
const MAX_DIGITS: usize = 7;

impl FrameDecoder {
    /// Adds bytes that were read.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete message.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        loop {
            let rest = &self.buffer[self.consumed..];
            let Some((header, length, trailer)) = find_frame(rest)? else { return Ok(None) };
            let start = self.consumed + header;
            self.consumed = start + length + trailer;
            // Senders that count octets may end messages with newlines nevertheless: those are empty messages.
            if length > 0 {
                return Ok(Some(&self.buffer[start..start + length]));
            }
        }
    }

    /// What is left when the connection ends: a message without its newline, or a part of one.
    #[must_use]
    pub fn remainder(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }
}

/// Lengths of the parts of the first frame: before the message, the message, after it.
fn find_frame(bytes: &[u8]) -> Result<Option<(usize, usize, usize)>, FrameError> {
    match octet_count(bytes) {
        Count::Missing => {}
        Count::Incomplete => return Ok(None),
        Count::Octets(header, length) if length <= MAX_FRAME => {
            return Ok((bytes.len() >= header + length).then_some((header, length, 0)));
        }
        Count::Octets(..) => return Err(FrameError::TooLong),
    }
    let end = bytes.iter().take(MAX_FRAME + 1).position(|byte| *byte == b'\n');
    let Some(end) = end else { return if bytes.len() > MAX_FRAME { Err(FrameError::TooLong) } else { Ok(None) } };
    let length = if end > 0 && bytes[end - 1] == b'\r' { end - 1 } else { end };
    Ok(Some((0, length, end + 1 - length)))
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
        _ if digits == 0 || digits > MAX_DIGITS || bytes[0] == b'0' => Count::Missing,
        Some([] | [b' ']) => Count::Incomplete,
        Some([b' ', b'<', ..]) => {
            let length = bytes[..digits].iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
            Count::Octets(digits + 1, length)
        }
        _ => Count::Missing,
    }
}
