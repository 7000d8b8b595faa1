//! `chainscope trace raw --pcapng`: P2P messages as packets in a file.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use chainscope_trace::{
    Accounting, Attachment, Event, Timestamp,
    pcapng::Writer,
    view::{Lines, Raw, View},
};

use super::recording::{EXISTING, PROGRAM};
use crate::{failure, terminal};

/// A view that writes to a file. Its last line is the accounting, as that of every other.
pub(super) struct Packets {
    path: PathBuf,
    /// From the beginning of the view on. The first failure ends it.
    writer: io::Result<Option<Writer<BufWriter<File>>>>,
}

impl Packets {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), writer: Ok(None) }
    }

    /// Says how the file ended.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let path = self.path.display();
        let written = self.writer.with_context(|| format!("cannot write {path}"));
        let writer = written.map_err(|error| failure::of_file(error, &EXISTING))?;
        terminal::note(&format!("{} messages written to {path}", writer.map_or(0, |writer| writer.messages())));
        Ok(())
    }

    fn write(&mut self, write: impl FnOnce(&mut Writer<BufWriter<File>>) -> io::Result<()>) {
        if let Ok(Some(writer)) = &mut self.writer
            && let Err(error) = write(writer)
        {
            self.writer = Err(error);
        }
    }
}

impl View for Packets {
    fn patterns(&self) -> Vec<String> {
        Raw::default().patterns()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Raw::default().selects(provider, name)
    }

    fn needs_payloads(&self) -> bool {
        true
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], _out: &mut Lines) {
        // An existing file is not overwritten.
        let file = File::create_new(&self.path);
        self.writer = file.and_then(|file| Writer::new(BufWriter::new(file), PROGRAM)).map(Some);
    }

    /// What was written so far can be read by others, too.
    fn account(&mut self, accounting: &Accounting) {
        self.write(|writer| {
            writer.account(accounting);
            writer.get_mut().flush()
        });
    }

    fn event(&mut self, event: &Event, _out: &mut Lines) {
        self.write(|writer| writer.event(event));
    }

    fn is_done(&self) -> bool {
        self.writer.is_err()
    }

    fn finish(&mut self, accounting: &Accounting, _out: &mut Lines) {
        self.write(|writer| writer.finish(accounting));
    }
}
