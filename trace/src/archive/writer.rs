//! Writes a recording.

use std::{
    io::{self, Write},
    sync::Arc,
};

use prost::Message as _;
use zstd::stream::write::Encoder;

use super::{FORMAT, MAX_ATTACHMENTS, MAX_ENTRY, VERSION, convert, wire};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
    source::Process,
};

/// Fast, and most of what higher levels gain.
const LEVEL: i32 = 3;

/// Writes events into a file.
pub struct Writer<W: Write> {
    encoder: Encoder<'static, W>,
    /// Those that are written, by their number. They are compared by address: a source has each once.
    attachments: Vec<Arc<Attachment>>,
    buffer: Vec<u8>,
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("attachments", &self.attachments.len()).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Begins a recording. `program` says what writes it, `start` when the source was attached.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(file: W, program: &str, start: Timestamp, attachments: &[Arc<Attachment>]) -> io::Result<Self> {
        let mut encoder = Encoder::new(file, LEVEL)?;
        encoder.include_checksum(true)?;
        let mut writer = Self { encoder, attachments: Vec::new(), buffer: Vec::new() };
        let (format, program) = (FORMAT.to_owned(), program.to_owned());
        let header = wire::Header { format, version: VERSION, program, start: Some(start.into()) };
        writer.entry(wire::Kind::Header(header))?;
        for attachment in attachments {
            writer.index_of(attachment)?;
        }
        // Also a recording without events can be read while it is written.
        writer.flush()?;
        Ok(writer)
    }

    /// Adds an event.
    ///
    /// # Errors
    /// The file cannot be written, or the event is too large for one.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let attachment = self.index_of(&event.attachment)?;
        self.entry(wire::Kind::Event(convert::event(event, attachment)))
    }

    /// Adds when the process of events that follow was started.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn process(&mut self, Process { pid, start_ns }: Process) -> io::Result<()> {
        self.entry(wire::Kind::Process(wire::Process { pid, start_ns }))
    }

    /// Writes what is buffered: a file that is cut after it has everything before it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }

    /// Ends the recording and returns the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, accounting: &Accounting) -> io::Result<W> {
        self.entry(wire::Kind::Trailer(accounting.into()))?;
        let mut file = self.encoder.finish()?;
        file.flush()?;
        Ok(file)
    }

    fn index_of(&mut self, attachment: &Arc<Attachment>) -> io::Result<u32> {
        let known = self.attachments.iter().position(|known| Arc::ptr_eq(known, attachment));
        let index = match known {
            Some(index) => index,
            None if self.attachments.len() == MAX_ATTACHMENTS => {
                return Err(io::Error::other(format!("more than {MAX_ATTACHMENTS} tracepoint locations")));
            }
            None => {
                self.entry(wire::Kind::Attachment(attachment.as_ref().into()))?;
                self.attachments.push(Arc::clone(attachment));
                self.attachments.len() - 1
            }
        };
        u32::try_from(index).map_err(io::Error::other)
    }

    fn entry(&mut self, kind: wire::Kind) -> io::Result<()> {
        let entry = wire::Entry { kind: Some(kind) };
        let length = entry.encoded_len();
        if length > MAX_ENTRY {
            let problem = format!("an entry of {length} bytes is larger than {MAX_ENTRY}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.buffer.clear();
        entry.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.encoder.write_all(&self.buffer)
    }
}
