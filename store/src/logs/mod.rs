//! Log messages: by level and time, and by their text.

mod query;

use std::ops::ControlFlow;

use chainscope_logs::{Encoding, Message};
use chainscope_proto::v1::{LogEncoding, LogMessage, LogPosition, Record, record::Kind};
pub use query::LogQuery;

use crate::{
    Error, Store,
    kind::{FactKind, Index, RetentionClass},
};

/// Log messages of nodes.
pub(crate) static LOG_MESSAGES: FactKind = FactKind {
    name: "log message",
    table: 112,
    accepts: |record| matches!(record.kind, Some(Kind::LogMessage(_))),
    time: |record| record.time_ns,
    indexes: &[BY_LEVEL, BY_TARGET],
    text: Some(text),
    position: Some(position),
    group: None,
    retention: RetentionClass::Logs,
    counted: true,
    total: |totals, _| totals.log_messages += 1,
};

/// Positions in the list of indexes of [`LOG_MESSAGES`].
mod index {
    pub(super) const LEVEL: usize = 0;
    pub(super) const TARGET: usize = 1;
}

const BY_LEVEL: Index = Index { values: |record, add| with(record, |message| add(&[message.level() as u8])) };
const BY_TARGET: Index = Index { values: |record, add| add(record.target.as_bytes()) };

/// Section and text.
fn text(record: &Record) -> String {
    let Some(Kind::LogMessage(message)) = &record.kind else { return String::new() };
    let encoding = match message.encoding() {
        LogEncoding::Syslog => Encoding::Syslog,
        LogEncoding::Plain | LogEncoding::Unspecified => Encoding::Plain,
    };
    let Message { section, text, .. } = Message::parse(encoding, &message.raw, message.received_ns);
    if section.is_empty() { text } else { format!("{section} {text}") }
}

fn position(record: &Record) -> Option<LogPosition> {
    let Some(Kind::LogMessage(message)) = &record.kind else { return None };
    message.position
}

fn with(record: &Record, add: impl FnOnce(&LogMessage)) {
    if let Some(Kind::LogMessage(message)) = &record.kind {
        add(message);
    }
}

impl Store {
    /// Log messages with their ids.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed: nothing is cut silently. Damage.
    pub fn log_messages(&self, node: &str, query: &LogQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.facts(node, &LOG_MESSAGES, &query.query())
    }

    /// As [`Self::log_messages`], one by one, until `each` breaks off.
    ///
    /// # Errors
    /// As [`Self::log_messages`].
    pub fn each_log_message(
        &self,
        node: &str,
        query: &LogQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.each_fact(node, &LOG_MESSAGES, &query.query(), each)
    }
}
