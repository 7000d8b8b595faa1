//! Output of the demo node: events as JSON lines on standard output, and a transcript of messages in a file.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::log::{Level, NodeLog};

/// Writer of events, transcript and log. Clones share the files.
#[derive(Clone, Default)]
pub struct Report {
    transcript: Option<Rc<RefCell<BufWriter<File>>>>,
    log: Option<Rc<NodeLog>>,
}

/// A line of the transcript: one whole message, sent or received.
#[derive(Debug, Clone, Serialize, serde::Deserialize, PartialEq, Eq)]
pub struct TranscriptLine {
    /// Number of the connection in this process.
    pub connection: u64,
    /// This process sent it.
    pub sent: bool,
    /// Filter string of the kind: "operation".
    pub kind: String,
    /// Counter of the first encrypted chunk; metadata is 0.
    pub chunk: u64,
    /// Plain bytes, framing included.
    pub length: usize,
    /// SHA-256 of these bytes, in hexadecimal.
    pub sha256: String,
}

impl Report {
    /// A report that also keeps a transcript.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn with_transcript(self, path: &Path) -> std::io::Result<Self> {
        Ok(Self { transcript: Some(Rc::new(RefCell::new(BufWriter::new(File::create(path)?)))), ..self })
    }

    /// A report that also appends to a log.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn with_log(self, path: &Path) -> std::io::Result<Self> {
        Ok(Self { log: Some(Rc::new(NodeLog::open(path)?)), ..self })
    }

    /// Writes the log message that `message` makes, if a log is kept.
    pub fn log(&self, message: impl FnOnce() -> Option<(Level, String)>) {
        if let Some(log) = &self.log
            && let Some((level, text)) = message()
        {
            log.write(level, &text);
        }
    }

    /// Prints an event. A closed standard output is ignored.
    pub fn event(&self, event: &Value) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{event}").and_then(|()| out.flush());
    }

    /// Whether a transcript is kept; without one no message needs to be hashed.
    #[must_use]
    pub fn keeps_transcript(&self) -> bool {
        self.transcript.is_some()
    }

    /// Adds a message to the transcript.
    pub fn message(&self, line: &TranscriptLine) {
        if let Some(file) = &self.transcript
            && let Ok(text) = serde_json::to_string(line)
        {
            let _ = writeln!(file.borrow_mut(), "{text}");
        }
    }

    /// Flushes the transcript. Errors, such as a full disk, go to standard error.
    pub fn flush(&self) {
        if let Some(file) = &self.transcript
            && let Err(error) = file.borrow_mut().flush()
        {
            eprintln!("transcript: {error}");
        }
    }
}

/// Counters and digest of the bytes of one direction.
#[derive(Clone, Default)]
pub struct Tally {
    /// Bytes in all.
    pub bytes: u64,
    /// System calls that moved bytes.
    pub calls: u64,
    /// Short writes among them.
    pub short: u64,
    /// System calls that returned `EAGAIN`.
    pub again: u64,
    digest: Sha256,
}

impl Tally {
    /// Counts the bytes that one system call moved.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.calls += 1;
        self.digest.update(bytes);
    }

    /// The `sent` or `received` field of a "closed" event.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::json!({
            "bytes": self.bytes, "calls": self.calls, "short": self.short, "again": self.again,
            "sha256": hex::encode(self.digest.clone().finalize()),
        })
    }
}
