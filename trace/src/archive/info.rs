//! What is in a recording.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead},
};

use super::{Ending, Item, Reader};
use crate::{accounting::Accounting, event::Timestamp, source::Source as _};

/// Processes that are listed.
const MAX_PROCESSES: usize = 1000;

/// The contents of a recording.
#[derive(Clone, Debug)]
pub struct Info {
    /// What wrote it.
    pub program: String,
    /// When the source was attached.
    pub start: Timestamp,
    /// Number of events.
    pub events: u64,
    /// Times of the first and the last event.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Files with the attached tracepoints.
    pub files: BTreeSet<Program>,
    /// By `provider:name`; a tracepoint that was attached but has no event is listed, too.
    pub tracepoints: BTreeMap<String, Observed>,
    /// Processes that hit tracepoints: the first ones; when each was started (`CLOCK_MONOTONIC` nanoseconds), if it is known.
    pub processes: BTreeMap<u32, Option<u64>>,
    /// Of the trailer; without it, what was read.
    pub accounting: Accounting,
    /// How the file ends; the problem if it is damaged.
    pub ending: Result<Ending, String>,
}

/// A file with tracepoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Its path.
    pub path: String,
    /// The contract that describes its arguments.
    pub contract: Option<String>,
    /// The id of this build.
    pub build_id: Option<String>,
}

/// The events of a tracepoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Their number.
    pub events: u64,
    /// Those with text that is truncated, or bytes that are not whole.
    pub incomplete: u64,
    /// Those with an argument that could not be read.
    pub unreadable: u64,
}

impl Info {
    /// Reads a recording to its end.
    ///
    /// # Errors
    /// As [`Reader::new`]. A file that is damaged further on is no error.
    pub fn read(file: impl BufRead) -> io::Result<Self> {
        let mut reader = Reader::new(file)?;
        let mut info = Self {
            program: reader.program().to_owned(),
            start: reader.start(),
            events: 0,
            span: None,
            files: BTreeSet::new(),
            tracepoints: BTreeMap::new(),
            processes: BTreeMap::new(),
            accounting: Accounting::default(),
            ending: Ok(Ending::Cut),
        };
        let ending = loop {
            match reader.item() {
                Ok(Some(Item::Event(event))) => info.add(&event),
                Ok(Some(Item::Process(process))) => info.start(process.pid, Some(process.start_ns)),
                Ok(None) => break Ok(reader.ending().unwrap_or(Ending::Cut)),
                Err(error) => break Err(error.to_string()),
            }
        };
        for attachment in reader.attachments() {
            let (path, contract) = (attachment.file.clone(), attachment.contract.clone());
            info.files.insert(Program { path, contract, build_id: attachment.build_id.clone() });
            info.tracepoints.entry(attachment.full_name()).or_default();
        }
        info.accounting = reader.accounting();
        info.ending = ending;
        Ok(info)
    }

    fn start(&mut self, pid: u32, start_ns: Option<u64>) {
        if self.processes.len() < MAX_PROCESSES {
            let known = self.processes.entry(pid).or_default();
            *known = known.or(start_ns);
        }
    }

    fn add(&mut self, event: &crate::Event) {
        use crate::event::Value;

        self.events += 1;
        let (first, last) = self.span.unwrap_or((event.time, event.time));
        self.span = Some((first.min(event.time), last.max(event.time)));
        self.start(event.pid, None);
        let observed = self.tracepoints.entry(event.attachment.full_name()).or_default();
        let is_incomplete = |value: &Value| {
            matches!(value, Value::Text { is_truncated: true, .. } | Value::Bytes { incomplete: Some(_), .. })
        };
        observed.events += 1;
        observed.incomplete += u64::from(event.arguments.iter().any(is_incomplete));
        let is_unreadable = |value: &Value| matches!(value, Value::Unreadable { .. });
        observed.unreadable += u64::from(event.arguments.iter().any(is_unreadable));
    }
}
