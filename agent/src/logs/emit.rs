//! Records of log messages, and where they go.

use std::sync::atomic::Ordering;

use chainscope_logs::{Encoding, Level, Message, pieces};
use chainscope_proto::v1::{LogEncoding, LogLevel, LogMessage, LogPosition, Record, record::Kind};
use chainscope_spec::Redaction;

use crate::status::ActiveSink;

/// Receiver of the pillar's records, shared by its threads.
pub(crate) trait LogSink: Clone + Send + Sync + 'static {
    /// Queues a fact; false if it was dropped for lack of space, which the stream counts.
    fn push(&self, node: &str, record: Record) -> bool;

    /// Queues a fact, unless there is no space: then it is returned and may be offered again. Returns how many records the
    /// stream was given until now.
    fn offer(&self, node: &str, record: Record) -> Result<u64, Box<Record>>;

    /// How many of the records that the stream was given no kill of this process would lose.
    fn durable(&self, node: &str) -> u64;
}

impl LogSink for ActiveSink {
    fn push(&self, node: &str, record: Record) -> bool {
        self.active.store(true, Ordering::Relaxed);
        self.streams.push(node, record)
    }

    fn offer(&self, node: &str, record: Record) -> Result<u64, Box<Record>> {
        self.active.store(true, Ordering::Relaxed);
        self.streams.offer(node, record)
    }

    fn durable(&self, node: &str) -> u64 {
        self.streams.durable(node)
    }
}

/// A message as it was received.
pub(super) struct Received<'a> {
    pub(super) raw: Vec<u8>,
    pub(super) encoding: Encoding,
    /// "syslog", "file", "stdout" or "stderr".
    pub(super) source: &'static str,
    /// The process or pod.
    pub(super) target: &'a str,
    /// When a container runtime read it.
    pub(super) written_ns: Option<i64>,
    pub(super) received_ns: i64,
    /// File and position of its end.
    pub(super) position: Option<(u64, u64)>,
}

impl Received<'_> {
    /// The records of the message: one, or several for a long one.
    pub(super) fn records(self, redact: &Redaction) -> Vec<Record> {
        let raw = redact.apply(self.raw);
        let message = Message::parse(self.encoding, &raw, self.written_ns.unwrap_or(self.received_ns));
        let time_ns = message.time.or(self.written_ns).unwrap_or(self.received_ns);
        let level = wire_level(message.level.unwrap_or(Level::Info));
        let pieces: Vec<&[u8]> = pieces(&raw).collect();
        let last = pieces.len() - 1;
        let record = |(number, piece): (usize, &[u8])| {
            // Only the first piece has the header.
            let encoding = if number == 0 { self.encoding } else { Encoding::Plain };
            // Positions are different and ascend: a line has more bytes than pieces.
            let position =
                |(file, end): (u64, u64)| LogPosition { file, end: end.saturating_sub((last - number) as u64) };
            let log = LogMessage {
                raw: piece.to_vec(),
                encoding: wire_encoding(encoding).into(),
                level: level.into(),
                received_ns: self.received_ns,
                source: self.source.to_owned(),
                position: self.position.map(position),
            };
            Record { time_ns, target: self.target.to_owned(), kind: Some(Kind::LogMessage(log)) }
        };
        pieces.iter().copied().enumerate().map(record).collect()
    }
}

fn wire_encoding(encoding: Encoding) -> LogEncoding {
    match encoding {
        Encoding::Plain => LogEncoding::Plain,
        Encoding::Syslog => LogEncoding::Syslog,
    }
}

fn wire_level(level: Level) -> LogLevel {
    match level {
        Level::Trace => LogLevel::Trace,
        Level::Debug => LogLevel::Debug,
        Level::Info => LogLevel::Info,
        Level::Notice => LogLevel::Notice,
        Level::Warning => LogLevel::Warning,
        Level::Error => LogLevel::Error,
        Level::Fatal => LogLevel::Fatal,
    }
}
