//! Reads a recording.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use zstd::stream::read::Decoder;

use super::{FORMAT, MAX_ATTACHMENTS, MAX_ENTRY, VERSION, convert, wire};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
    record::read_attachment,
    source::{Polled, Process, Source},
};

/// Reads events from a file.
pub struct Reader<R: BufRead> {
    input: BufReader<Decoder<'static, R>>,
    program: String,
    start: Timestamp,
    attachments: Vec<Arc<Attachment>>,
    /// What was read to find the attachments before it.
    next: Option<Item>,
    /// What was read; replaced by the trailer.
    accounting: Accounting,
    ending: Option<Ending>,
}

/// What a recording has in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// An event.
    Event(Event),
    /// When the process of events that follow was started.
    Process(Process),
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its trailer.
    Complete,
    /// Without it: the file was cut, or is still being written.
    Cut,
}

impl<R: BufRead> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("start", &self.start).field("ending", &self.ending).finish_non_exhaustive()
    }
}

impl<R: BufRead> Reader<R> {
    /// Opens a recording.
    ///
    /// # Errors
    /// The file cannot be read, or is no recording, or one of a later version.
    pub fn new(file: R) -> io::Result<Self> {
        let mut input = BufReader::new(Decoder::with_buffer(file)?);
        let no_header = || invalid("the file was cut within its header, or is no recording of tracepoints");
        let no_recording = || invalid("not a recording of tracepoints");
        let header = match entry(&mut input) {
            Ok(Some(wire::Kind::Header(header))) if header.format == FORMAT => header,
            Ok(Some(_)) => return Err(no_recording()),
            Ok(None) => return Err(no_header()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(no_header()),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", no_recording()))),
        };
        if header.version > VERSION {
            return Err(invalid(format!("format version {}; this program reads up to {VERSION}", header.version)));
        }
        let start = header.start.map(Into::into).unwrap_or_default();
        let accounting = Accounting { from: start, until: start, ..Accounting::default() };
        let program = header.program;
        let mut reader = Self { input, program, start, attachments: Vec::new(), next: None, accounting, ending: None };
        reader.next = reader.read()?;
        Ok(reader)
    }

    /// What wrote the file.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// How the file ends, once its last event was returned.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.ending.filter(|_| self.next.is_none())
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read or is damaged; what was returned before is right.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        loop {
            match self.item()? {
                Some(Item::Event(event)) => return Ok(Some(event)),
                Some(Item::Process(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next event, or what precedes it; `None` at the end.
    ///
    /// # Errors
    /// As [`Reader::event`].
    pub fn item(&mut self) -> io::Result<Option<Item>> {
        match self.next.take() {
            Some(item) => Ok(Some(item)),
            None => self.read(),
        }
    }

    fn read(&mut self) -> io::Result<Option<Item>> {
        while self.ending.is_none() {
            match entry(&mut self.input) {
                Ok(Some(wire::Kind::Event(found))) => {
                    let event = convert::read_event(found, &self.attachments).map_err(invalid)?;
                    self.count(&event);
                    return Ok(Some(Item::Event(event)));
                }
                Ok(Some(wire::Kind::Process(wire::Process { pid, start_ns }))) => {
                    return Ok(Some(Item::Process(Process { pid, start_ns })));
                }
                Ok(Some(wire::Kind::Attachment(found))) => {
                    if self.attachments.len() == MAX_ATTACHMENTS {
                        return Err(invalid(format!("more than {MAX_ATTACHMENTS} tracepoint locations")));
                    }
                    self.attachments.push(Arc::new(read_attachment(found).map_err(invalid)?));
                }
                Ok(Some(wire::Kind::Trailer(found))) => {
                    self.accounting = convert::read_accounting(found);
                    self.ending = Some(Ending::Complete);
                }
                Ok(Some(wire::Kind::Header(_))) => return Err(invalid("a second header")),
                Ok(None) => self.ending = Some(Ending::Cut),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => self.ending = Some(Ending::Cut),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Counts an event for the case that there is no trailer.
    fn count(&mut self, event: &Event) {
        let name = event.attachment.full_name();
        let counts = self.accounting.tracepoints.entry(name).or_default();
        counts.hits += 1;
        counts.delivered += 1;
        self.accounting.until = self.accounting.until.max(event.time);
    }
}

impl<R: BufRead> Source for Reader<R> {
    fn start(&self) -> Timestamp {
        self.start
    }

    fn attachments(&self) -> Vec<Arc<Attachment>> {
        self.attachments.clone()
    }

    fn poll(&mut self, _timeout: Duration) -> io::Result<Polled> {
        Ok(match self.item()? {
            Some(Item::Event(event)) => Polled::Event(event),
            Some(Item::Process(process)) => Polled::Process(process),
            None => Polled::End,
        })
    }

    /// Does nothing: all of its events are captured.
    fn stop(&mut self) {}

    /// That of the trailer; without it, what was read is all that is known.
    fn accounting(&mut self) -> Accounting {
        self.accounting.clone()
    }
}

/// The next entry; `None` at the end of the file.
fn entry(input: &mut impl BufRead) -> io::Result<Option<wire::Kind>> {
    loop {
        if input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let length = length(input)?;
        if length > MAX_ENTRY as u64 {
            return Err(invalid(format!("an entry of {length} bytes is larger than {MAX_ENTRY}")));
        }
        // Grows as far as there is input: the length may lie.
        let mut bytes = Vec::new();
        input.take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let entry = wire::Entry::decode(Bytes::from(bytes)).map_err(|error| invalid(error.to_string()))?;
        // Kinds of later versions that need no new version are skipped.
        if let Some(kind) = entry.kind {
            return Ok(Some(kind));
        }
    }
}

/// A length as a varint.
fn length(input: &mut impl Read) -> io::Result<u64> {
    let mut bytes = BytesMut::with_capacity(10);
    loop {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        bytes.extend_from_slice(&byte);
        let [byte] = byte;
        if byte < 0x80 {
            break;
        }
        if bytes.len() == 10 {
            return Err(invalid("a length of more than 10 bytes"));
        }
    }
    prost::encoding::decode_varint(&mut bytes).map_err(|error| invalid(error.to_string()))
}

fn invalid(problem: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem.into())
}
