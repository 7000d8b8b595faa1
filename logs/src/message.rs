//! What a message says.

use crate::colours::without_colours;
use crate::form::{self, Form};
use crate::json;
use crate::level::Level;
use crate::syslog;
use crate::time::LineTime;

/// How the bytes of a message are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A syslog message: header and text.
    Syslog,
    /// Text as the node wrote it.
    Plain,
}

/// A message, as far as its bytes say.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// Form of its first line.
    pub form: Form,
    /// Its own level, else that of the syslog header.
    pub level: Option<Level>,
    /// Time in the message, in nanoseconds since 1970: that of the syslog header if there is one, else of the line.
    pub time: Option<i64>,
    /// Section or module that wrote it; may be empty.
    pub section: String,
    /// Its text, without time, level and section; lines separated by `\n`. Control characters are kept, colours are not.
    pub text: String,
}

impl Message {
    /// Reads a message. `received` is when it arrived, in nanoseconds since 1970: lines of some forms have no year.
    ///
    /// Whatever is not understood is text; bytes that are not UTF-8 are replaced by U+FFFD.
    #[must_use]
    pub fn parse(encoding: Encoding, raw: &[u8], received: i64) -> Self {
        let text = String::from_utf8_lossy(raw);
        match encoding {
            Encoding::Plain => Self::from_text(&text, received),
            Encoding::Syslog => {
                let header = syslog::Header::parse(&text, received);
                let message = Self::from_text(header.text, received);
                Self { level: message.level.or(header.level), time: header.time.or(message.time), ..message }
            }
        }
    }

    fn from_text(text: &str, received: i64) -> Self {
        let text = without_colours(text);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        if let Some(line) = json::parse(text) {
            let json::JsonLine { form, level, time, section, text } = line;
            return Self { form, level, time, section: section.unwrap_or_default(), text };
        }
        let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let first = form::parse(lines.next().unwrap_or_default());
        let mut joined = first.text.to_owned();
        for line in lines {
            let next = form::parse(line);
            joined.push('\n');
            joined.push_str(if next.continues(&first) { next.text } else { line });
        }
        let time = first.time.and_then(|time| match time {
            LineTime::Exact(time) => Some(time),
            LineTime::Local(time) => time.latest(received),
        });
        let section = first.section.unwrap_or_default().to_owned();
        Self { form: first.form, level: first.level, time, section, text: joined }
    }
}
