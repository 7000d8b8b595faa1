//! Recordings as sources, and copies of them.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, ErrorKind, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use chainscope_hygiene::EscapedTruncated;
use chainscope_trace::{
    Accounting, Attachment, Polled, Selection, Source, Timestamp,
    archive::{Ending, Item, Reader, Writer},
};

use crate::{failure, terminal};

/// What writes recordings.
pub(super) const PROGRAM: &str = concat!("chainscope ", env!("CARGO_PKG_VERSION"));

/// What is recorded is in the file after this time at most.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// What to do about a file that exists: it may be a recording of more than can be recorded again.
pub(super) const EXISTING: [(ErrorKind, &str); 1] =
    [(ErrorKind::AlreadyExists, "name another file: an existing one is not overwritten")];
const RECORD: &str = "`chainscope trace any '*:*' --pid PID --record FILE` writes a recording";
/// What to do about a file that is no recording, or does not exist.
const NO_RECORDING: [(ErrorKind, &str); 2] = [(ErrorKind::NotFound, RECORD), (ErrorKind::InvalidData, RECORD)];

/// Opens a recording and reads from it.
pub(super) fn read<T>(path: &Path, read: impl FnOnce(File) -> io::Result<T>) -> anyhow::Result<T> {
    let found = File::open(path).and_then(read).with_context(|| path.display().to_string());
    found.map_err(|error| failure::of_file(error, &NO_RECORDING))
}

/// Creates a file that does not exist.
fn create(path: &Path) -> anyhow::Result<File> {
    let created = File::create_new(path).with_context(|| path.display().to_string());
    created.map_err(|error| failure::of_file(error, &EXISTING))
}

/// A recording that is open.
pub(super) struct Recording {
    path: PathBuf,
    reader: Reader<BufReader<File>>,
}

impl Recording {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let reader = read(path, |file| Reader::new(BufReader::new(file)))?;
        Ok(Self { path: path.to_owned(), reader })
    }

    /// Says so if the file was cut.
    pub(super) fn check_ending(&self) {
        if self.reader.ending() == Some(Ending::Cut) {
            terminal::note(&format!(
                "chainscope: {} was cut, or is still being written: losses up to there are not known",
                EscapedTruncated(&self.path.to_string_lossy())
            ));
        }
    }
}

impl Source for Recording {
    fn start(&self) -> Timestamp {
        self.reader.start()
    }

    fn attachments(&self) -> Vec<Arc<Attachment>> {
        self.reader.attachments()
    }

    fn poll(&mut self, timeout: Duration) -> io::Result<Polled> {
        self.reader.poll(timeout)
    }

    fn stop(&mut self) {
        self.reader.stop();
    }

    fn accounting(&mut self) -> Accounting {
        self.reader.accounting()
    }
}

/// A source whose events are written to a file as well.
pub(super) struct Recorder<'a> {
    source: &'a mut dyn Source,
    writer: Writer<BufWriter<File>>,
    path: PathBuf,
    flushed: Instant,
}

impl<'a> Recorder<'a> {
    /// Begins a recording; an existing file is not overwritten.
    pub(super) fn new(source: &'a mut dyn Source, path: &Path) -> anyhow::Result<Self> {
        let writer = Writer::new(BufWriter::new(create(path)?), PROGRAM, source.start(), &source.attachments());
        let writer = writer.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { source, writer, path: path.to_owned(), flushed: Instant::now() })
    }

    /// Ends the recording.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let accounting = self.source.accounting();
        let written = self.writer.finish(&accounting).and_then(|mut file| file.flush());
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Source for Recorder<'_> {
    fn start(&self) -> Timestamp {
        self.source.start()
    }

    fn attachments(&self) -> Vec<Arc<Attachment>> {
        self.source.attachments()
    }

    fn poll(&mut self, timeout: Duration) -> io::Result<Polled> {
        let polled = self.source.poll(timeout)?;
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot write the recording: {error}"));
        match &polled {
            Polled::Event(event) => self.writer.event(event).map_err(failed)?,
            Polled::Process(process) => self.writer.process(*process).map_err(failed)?,
            Polled::Idle { .. } | Polled::End => {}
        }
        if self.flushed.elapsed() > FLUSH_INTERVAL {
            self.writer.flush().map_err(failed)?;
            self.flushed = Instant::now();
        }
        Ok(polled)
    }

    fn stop(&mut self) {
        self.source.stop();
    }

    fn notices(&mut self) -> Vec<String> {
        self.source.notices()
    }

    fn accounting(&mut self) -> Accounting {
        self.source.accounting()
    }
}

/// Copies the selected events. The accounting of the copy is that of the recording.
pub(super) fn copy(from: &Path, to: &Path, selection: &Selection) -> anyhow::Result<()> {
    let mut recording = Recording::open(from)?;
    // An existing file may be the recording itself.
    let file = create(to)?;
    let writing = || format!("cannot write {}", to.display());
    let start = recording.start();
    let mut writer = Writer::new(BufWriter::new(file), PROGRAM, start, &[]).with_context(writing)?;
    let (mut copied, mut seen) = (0_u64, 0_u64);
    let ended = loop {
        match recording.reader.item() {
            // Also of those of which no event is selected: which ones have some is not known yet.
            Ok(Some(Item::Process(process))) => writer.process(process).with_context(writing)?,
            Ok(Some(Item::Event(event))) => {
                seen += 1;
                if selection.matches(&event) {
                    writer.event(&event).with_context(writing)?;
                    copied += 1;
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let mut file = writer.finish(&recording.accounting()).with_context(writing)?;
    file.flush().with_context(writing)?;
    terminal::note(&format!("{copied} of {seen} events copied"));
    recording.check_ending();
    ended.with_context(|| from.display().to_string())
}
