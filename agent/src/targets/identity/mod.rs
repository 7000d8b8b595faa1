//! The identity of an observed process: found, read, and read again when it changes.
//!
//! A file is opened when a session needs a key; its content is read only if the file is another than the last time
//! (device, inode, size, time of change). Keys stay in the `Identity` values, which are wiped when dropped. Errors name
//! the path and the kind of fault, never the content.
//!
//! ```text
//!   interpreter's thread:  ProcessKeys ── read ──▶ IdentityReader: threads, one call of a node at a time ── search
//!                              ▲                                            │
//!                              └────────────── IdentityAnswer ◀─────────────┘
//! ```
//!
//! A file may be on a file system that never answers, so that [`ProcessKeys`] itself does no I/O: it answers "not known
//! yet" until the read has returned, and after [`READ_TIMEOUT`] that there is none.

mod locate;
mod read;
mod search;
#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use chainscope_tezos::{Identity, Keyring};
use crossbeam_channel::Sender;
use search::{Files, Process};

use super::{ProcessFacts, proc::Proc};
use crate::blocking::{BlockingPool, Refused};

/// How long sessions wait for a read.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Identities kept for one process; a node has one and rarely changes it.
const MAX_KNOWN: usize = 8;

/// A change of a target's identity, for records and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentityEvent {
    /// A usable identity was read: its peer id.
    Found(String),
    /// There is none: the cause.
    Failed(String),
}

/// Where the identity of a process comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Found from the process's command line, its environment and the usual directories.
    Detect,
    /// A file from the configuration: as the process sees it, or as the host does.
    Path(PathBuf),
    /// A file as the process sees it.
    InRoot(PathBuf),
    /// From the operator.
    Given(Arc<Identity>),
    /// There is none: the cause.
    Missing(String),
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Detect, Self::Detect) => true,
            (Self::Path(one), Self::Path(other)) | (Self::InRoot(one), Self::InRoot(other)) => one == other,
            (Self::Given(one), Self::Given(other)) => one.public_key() == other.public_key(),
            (Self::Missing(one), Self::Missing(other)) => one == other,
            _ => false,
        }
    }
}

/// Reads identities on threads of its own. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct IdentityReader {
    proc: Proc,
    pool: BlockingPool,
    answers: Sender<IdentityAnswer>,
    reads: Arc<AtomicU64>,
}

/// The result of one read.
#[derive(Debug)]
pub(crate) struct IdentityAnswer {
    /// The process.
    pub(crate) pid: u32,
    /// Number of the read.
    read: u64,
    files: Files,
    found: Result<Arc<Identity>, String>,
}

impl IdentityReader {
    /// `pool` runs the reads, with the node as their key.
    pub(crate) fn new(proc: Proc, pool: BlockingPool, answers: Sender<IdentityAnswer>) -> Self {
        Self { proc, pool, answers, reads: Arc::default() }
    }
}

/// A read that has not returned.
#[derive(Debug)]
struct Reading {
    number: u64,
    since: Instant,
    /// The public key that is searched for.
    wanted: Option<[u8; 32]>,
    /// A session needs the identity.
    is_for_session: bool,
    /// A session asked for this key after the read began: if it is not found the files are read once more.
    asked: Option<[u8; 32]>,
    /// Sessions do not wait for it any more.
    is_overdue: bool,
}

/// The identities of one process.
#[derive(Debug)]
pub(crate) struct ProcessKeys {
    reader: IdentityReader,
    /// The node: reads of one node are made one after the other.
    node: Arc<str>,
    process: Process,
    source: Source,
    /// The files as they were read last.
    files: Files,
    reading: Option<Reading>,
    /// Identities read before, also of files that are gone or changed: sessions that began with them go on, and the
    /// root of a process disappears with it.
    known: Vec<Arc<Identity>>,
    /// The public key that the last session had, if its identity was not found: any other identity is another node's.
    missed: Option<[u8; 32]>,
    events: Vec<IdentityEvent>,
    last_event: Option<IdentityEvent>,
    state: Result<String, String>,
}

impl ProcessKeys {
    pub(crate) fn new(reader: IdentityReader, node: Arc<str>, facts: &ProcessFacts, source: Source) -> Self {
        let process = Process { proc: reader.proc.clone(), pid: facts.pid, start: facts.start };
        let (files, known, events) = (Files::default(), Vec::new(), Vec::new());
        let (reading, missed, last_event, state) = (None, None, None, Err(String::new()));
        Self { reader, node, process, source, files, reading, known, missed, events, last_event, state }
    }

    /// Changes the source. Sessions that began with identities known before go on with them.
    pub(crate) fn set_source(&mut self, source: Source) {
        if self.source != source {
            self.source = source;
            // The answer of a read of the earlier source is ignored.
            let asked = self.reading.take().and_then(|reading| reading.asked.or(reading.wanted));
            match asked {
                Some(key) => self.begin(Some(key), true),
                None => self.reload(),
            }
        }
    }

    /// The peer id of the identity that was found last, or why there is none.
    pub(crate) fn state(&self) -> &Result<String, String> {
        &self.state
    }

    /// The identity with this public key, if it was read.
    pub(crate) fn known(&self, public_key: &[u8; 32]) -> Option<Arc<Identity>> {
        self.known.iter().find(|known| known.public_key() == public_key).cloned()
    }

    /// Whether the first answer of a read is awaited.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| !reading.is_overdue)
    }

    /// Reads the identity before a session needs it: a process may exit, and its root with it, while its bytes are still
    /// to be interpreted. A missing file is no event: a node generates its identity in its first seconds.
    pub(crate) fn reload(&mut self) {
        if self.reading.is_none() {
            self.begin(self.missed, false);
        }
    }

    /// Begins a read; a source without files answers at once.
    fn begin(&mut self, wanted: Option<[u8; 32]>, is_for_session: bool) {
        let found = match &self.source {
            Source::Given(identity) => {
                let identity = Arc::clone(identity);
                self.remember(&identity);
                if wanted.is_none_or(|key| key == *identity.public_key()) {
                    Ok(identity)
                } else {
                    Err(format!("the one in the Secret is of another node, {}", identity.peer_id()))
                }
            }
            Source::Missing(reason) => Err(reason.clone()),
            Source::Detect | Source::Path(_) | Source::InRoot(_) => match self.submit(wanted) {
                Ok(number) => {
                    let (since, is_overdue) = (Instant::now(), false);
                    self.reading = Some(Reading { number, since, wanted, is_for_session, asked: None, is_overdue });
                    return;
                }
                Err(Refused) => Err("too many reads of other files do not return".to_owned()),
            },
        };
        self.conclude(wanted, is_for_session, &found);
    }

    fn submit(&mut self, wanted: Option<[u8; 32]>) -> Result<u64, Refused> {
        let read = self.reader.reads.fetch_add(1, Ordering::Relaxed);
        let (process, source, answers) = (self.process.clone(), self.source.clone(), self.reader.answers.clone());
        let mut files = std::mem::take(&mut self.files);
        let search = move || {
            let found = files.search(&process, &source, wanted.as_ref());
            IdentityAnswer { pid: process.pid, read, files, found }
        };
        let deliver = move |answer| {
            // The interpreter ended.
            let _ = answers.send(answer);
        };
        self.reader.pool.submit(&self.node, search, deliver).map(|()| read)
    }

    /// Takes the answer of a read. None: it is not the one that sessions wait for, or another one has begun. The error is
    /// for the sessions whose identity is not [known](Self::known) now.
    pub(crate) fn take_answer(&mut self, answer: IdentityAnswer) -> Option<Result<(), String>> {
        let reading = self.reading.take_if(|reading| reading.number == answer.read)?;
        self.files = answer.files;
        for identity in self.files.take_new() {
            self.remember(&identity);
        }
        self.conclude(reading.wanted, reading.is_for_session, &answer.found);
        if let Some(key) = reading.asked.filter(|_| !reading.is_overdue) {
            match self.known(&key) {
                Some(identity) => self.conclude(Some(key), true, &Ok(identity)),
                None => {
                    self.begin(Some(key), true);
                    if self.reading.is_some() {
                        return None;
                    }
                }
            }
        }
        Some(answer.found.map(drop))
    }

    /// Gives up the wait for a read that takes longer than [`READ_TIMEOUT`]; returns the reason.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<String> {
        let is_late = |reading: &&mut Reading| {
            !reading.is_overdue && now.saturating_duration_since(reading.since) >= READ_TIMEOUT
        };
        self.reading.as_mut().filter(is_late)?.is_overdue = true;
        let reason = overdue();
        self.state = Err(reason.clone());
        self.emit(IdentityEvent::Failed(reason.clone()));
        Some(reason)
    }

    /// Notes the result of a search.
    fn conclude(&mut self, wanted: Option<[u8; 32]>, is_for_session: bool, found: &Result<Arc<Identity>, String>) {
        self.state = found.as_ref().map(|identity| identity.peer_id().to_owned()).map_err(Clone::clone);
        match found {
            Ok(identity) => {
                self.missed = None;
                self.emit(IdentityEvent::Found(identity.peer_id().to_owned()));
            }
            Err(trouble) if is_for_session => {
                self.missed = wanted;
                self.emit(IdentityEvent::Failed(trouble.clone()));
            }
            // The operator sent none: that does not change within seconds.
            Err(trouble) if matches!(self.source, Source::Missing(_)) => {
                self.emit(IdentityEvent::Failed(trouble.clone()));
            }
            Err(_) => {}
        }
    }

    /// Events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<IdentityEvent> {
        std::mem::take(&mut self.events)
    }

    fn emit(&mut self, event: IdentityEvent) {
        if self.last_event.as_ref() != Some(&event) {
            self.last_event = Some(event.clone());
            self.events.push(event);
        }
    }

    fn remember(&mut self, identity: &Arc<Identity>) {
        self.known.retain(|known| known.public_key() != identity.public_key());
        self.known.push(Arc::clone(identity));
        if self.known.len() > MAX_KNOWN {
            self.known.remove(0);
        }
    }
}

impl Keyring for ProcessKeys {
    fn identity(&mut self, public_key: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        if let Some(identity) = self.known(public_key) {
            if self.missed.take().is_some() {
                self.reload();
            }
            return Poll::Ready(Ok(identity));
        }
        match &mut self.reading {
            Some(reading) if reading.is_overdue => return Poll::Ready(Err(overdue())),
            Some(reading) if reading.is_for_session && reading.wanted == Some(*public_key) => {}
            Some(reading) => reading.asked = Some(*public_key),
            None => self.begin(Some(*public_key), true),
        }
        match (&self.reading, &self.state) {
            (Some(_), _) => Poll::Pending,
            (None, Err(trouble)) => Poll::Ready(Err(trouble.clone())),
            (None, Ok(_)) => Poll::Ready(self.known(public_key).ok_or_else(|| "not known".to_owned())),
        }
    }
}

fn overdue() -> String {
    format!("its file system has not answered for {} seconds", READ_TIMEOUT.as_secs())
}
