//! JSON of `/v2/log`, with the fields in the order of the original.

use chainscope_logs::{Encoding, Level, Message};
use chainscope_proto::v1::{LogEncoding, LogLevel, LogMessage};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::time::shown_time;

/// A log message.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogRow {
    /// Position among the node's log messages, dense from 0.
    #[schema(example = 9999)]
    id: u64,
    /// `Trace`, `Debug`, `Info`, `Notice`, `Warning`, `Error` or `Fatal`.
    #[schema(example = "Info")]
    level: &'static str,
    /// Time in the message, or else of its arrival: nanoseconds since 1970, in whole milliseconds.
    #[schema(example = 1_626_273_999_000_000_000_i64)]
    timestamp: i64,
    /// The part of the node that wrote it; empty if it does not say.
    #[schema(example = "node.main")]
    section: String,
    /// Its text, without time, level and section; lines are separated by a newline.
    #[schema(example = "read identity file")]
    message: String,
}

impl LogRow {
    pub(super) fn new(id: u64, time_ns: i64, message: &LogMessage) -> Self {
        let encoding = match message.encoding() {
            LogEncoding::Syslog => Encoding::Syslog,
            LogEncoding::Plain | LogEncoding::Unspecified => Encoding::Plain,
        };
        let Message { section, text, .. } = Message::parse(encoding, &message.raw, message.received_ns);
        Self { id, level: level(message.level()).name(), timestamp: shown_time(time_ns), section, message: text }
    }
}

/// The level of a record. A level that this build does not know is one of normal operation.
fn level(level: LogLevel) -> Level {
    match level {
        LogLevel::Trace => Level::Trace,
        LogLevel::Debug => Level::Debug,
        LogLevel::Info | LogLevel::Unspecified => Level::Info,
        LogLevel::Notice => Level::Notice,
        LogLevel::Warning => Level::Warning,
        LogLevel::Error => Level::Error,
        LogLevel::Fatal => Level::Fatal,
    }
}

/// The levels of records that are shown as this one.
pub(super) fn stored(level: Level) -> &'static [LogLevel] {
    match level {
        Level::Trace => &[LogLevel::Trace],
        Level::Debug => &[LogLevel::Debug],
        Level::Info => &[LogLevel::Info, LogLevel::Unspecified],
        Level::Notice => &[LogLevel::Notice],
        Level::Warning => &[LogLevel::Warning],
        Level::Error => &[LogLevel::Error],
        Level::Fatal => &[LogLevel::Fatal],
    }
}

#[cfg(test)]
mod tests {
    use chainscope_logs::Level;
    use chainscope_proto::v1::LogLevel;

    #[test]
    fn every_level_of_a_record_is_found_by_the_one_that_is_shown() {
        let all = (0..8).map(|number| LogLevel::try_from(number).unwrap());
        for stored in all {
            assert!(super::stored(super::level(stored)).contains(&stored), "{stored:?}");
        }
        let filters = Level::ALL.iter().map(|level| super::stored(*level).len()).sum::<usize>();
        assert_eq!(filters, 8, "each by one");
    }
}
