//! Log messages as an agent sends them, and the lines that the original was tested with.

use std::time::{Duration, UNIX_EPOCH};

use chainscope_logs::{Encoding, Level, Message};
use chainscope_proto::v1::{LogEncoding, LogLevel, LogMessage, Record, record::Kind};

use super::{TIME, record};

/// 2021-07-14T12:00:00Z, in seconds since 1970.
pub(crate) const START: i64 = 1_626_264_000;

/// The record of a message that arrived at `received_ns`.
pub(crate) fn log(encoding: Encoding, raw: impl Into<Vec<u8>>, received_ns: i64) -> Record {
    let raw = raw.into();
    let Message { level, time, .. } = Message::parse(encoding, &raw, received_ns);
    let encoding = match encoding {
        Encoding::Syslog => LogEncoding::Syslog,
        Encoding::Plain => LogEncoding::Plain,
    };
    let message = LogMessage {
        raw,
        encoding: encoding.into(),
        level: proto(level.unwrap_or(Level::Info)).into(),
        received_ns,
        source: "stdout".into(),
        position: None,
    };
    record(time.unwrap_or(received_ns), Kind::LogMessage(message))
}

/// A message of this level, as TezEdge writes it.
pub(crate) fn line(level: Level, text: &str, time_ns: i64) -> Record {
    let Record { target, kind, .. } = log(Encoding::Plain, text, time_ns);
    let Some(Kind::LogMessage(message)) = kind else { unreachable!() };
    let message = LogMessage { level: proto(level).into(), ..message };
    Record { time_ns, target, kind: Some(Kind::LogMessage(message)) }
}

/// Messages without form.
pub(crate) fn lines(texts: &[&str]) -> Vec<Record> {
    texts.iter().map(|text| log(Encoding::Plain, *text, TIME)).collect()
}

fn proto(level: Level) -> LogLevel {
    LogLevel::try_from(i32::from(level as u8) + 1).unwrap()
}

/// A line of the original's generator, `seconds` after [`START`].
pub(crate) fn syslog(seconds: i64, level: Level, text: &str) -> Record {
    let word = match level {
        Level::Warning => "WARN",
        Level::Error => "ERROR",
        Level::Info => "INFO",
        other => panic!("{other} is not in the pattern"),
    };
    let time = UNIX_EPOCH + Duration::from_secs((START + seconds) as u64);
    let time = humantime::format_rfc3339_seconds(time);
    let line = format!("<27>1 {time} wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000 {word} {text}");
    log(Encoding::Syslog, line, TIME)
}

/// Level of line `number` of the pattern of 10,000.
pub(crate) fn pattern_level(number: i64) -> Level {
    match (START + number) % 19 {
        1 | 4 | 5 | 8 => Level::Warning,
        7 | 10 => Level::Error,
        _ => Level::Info,
    }
}

/// Line `number` of the pattern of 10,000: `some`, and 16 words that nothing else has.
pub(crate) fn pattern(number: i64) -> Record {
    let word = |index: i64| format!(" {:016x}", (number * 16 + index + 1).wrapping_mul(0x1e37_79b9_7f4a_7c15));
    let words: String = (0..16).map(word).collect();
    syslog(number, pattern_level(number), &format!("some{words}"))
}

/// The eight words of the search test.
pub(crate) const WORDS: [&str; 8] = ["peer", "branch", "head", "chain", "address", "ip", "message", "connection"];

/// The line with the words whose bits are set, in an order that depends on the set.
pub(crate) fn words(set: u32) -> Record {
    let mut words: Vec<_> = WORDS.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0).collect();
    words.sort_by_key(|(bit, _)| (*bit as u32 * 37 + set * 11) % 8);
    let words: Vec<_> = words.into_iter().map(|(_, word)| *word).collect();
    syslog(0, Level::Info, &words.join(" "))
}
