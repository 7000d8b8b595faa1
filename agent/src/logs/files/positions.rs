//! Positions up to which log files are recorded, kept over a restart.
//!
//! A position is written once everything before it is durable, and may lag: what is read again has positions that the
//! aggregator knows. What must not lag is written at once: that a file was begun, also anew, and where a message ended only
//! because no further line came.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{Error, clock::realtime_ns, folder::Folder};

/// Files that are remembered; of more, those that were not seen for the longest time are forgotten.
const MAX_FILES: usize = 4096;

/// Positions in one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilePositions {
    /// How often a file with the same identity was found to begin anew.
    pub(crate) generation: u32,
    /// By stream: "file", "stdout", "stderr".
    pub(crate) streams: BTreeMap<String, StreamPosition>,
    /// When the file was last open, seconds since 1970.
    seen: i64,
}

/// Position in one stream of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamPosition {
    /// All messages that begin before it are durable.
    pub(crate) position: u64,
    /// Ends of later messages that were ended because no further line came.
    pub(crate) boundaries: Vec<u64>,
}

/// The file `log_positions` of the agent's folder.
#[derive(Debug)]
pub(crate) struct Positions {
    folder: Folder,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By identity of the file.
    files: BTreeMap<u64, FilePositions>,
    is_changed: bool,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    files: BTreeMap<String, FilePositions>,
}

impl Positions {
    /// Reads the file. One that is damaged is ignored: the log files are read from their beginning.
    pub(crate) fn load(folder: Folder) -> Result<Self, Error> {
        let stored = folder.log_positions()?.map(|bytes| serde_json::from_slice(&bytes));
        let files = match stored {
            Some(Ok(Stored { version: 1, files })) => {
                let key = |(key, file): (String, FilePositions)| Some((u64::from_str_radix(&key, 16).ok()?, file));
                files.into_iter().filter_map(key).collect()
            }
            Some(_) => {
                tracing::warn!("the positions in log files are unreadable: the files are read from their beginning");
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        };
        Ok(Self { folder, state: Mutex::new(State { files, is_changed: false }) })
    }

    pub(crate) fn get(&self, key: u64) -> Option<FilePositions> {
        self.state.lock().files.get(&key).cloned()
    }

    /// Sets the positions of a stream. Boundaries before it are forgotten.
    pub(crate) fn set(&self, key: u64, stream: &str, position: u64) {
        let mut state = self.state.lock();
        let file = state.files.entry(key).or_default();
        file.seen = realtime_ns() / 1_000_000_000;
        let is_new = !file.streams.contains_key(stream);
        let known = file.streams.entry(stream.to_owned()).or_default();
        if is_new || known.position != position {
            known.position = position;
            known.boundaries.retain(|boundary| *boundary > position);
            state.is_changed = true;
        }
    }

    /// Notes that a message ends at `end` whatever follows. It may be sent afterwards.
    pub(crate) fn add_boundary(&self, key: u64, stream: &str, end: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        let known = state.files.entry(key).or_default().streams.entry(stream.to_owned()).or_default();
        known.boundaries.push(end);
        self.write(&mut state)
    }

    /// Notes that the file is begun: when it is rotated while nobody reads it, it is still read. Its messages are not those of
    /// an earlier generation.
    pub(crate) fn begin_generation(&self, key: u64, generation: u32) -> Result<(), Error> {
        let mut state = self.state.lock();
        let seen = realtime_ns() / 1_000_000_000;
        state.files.insert(key, FilePositions { generation, streams: BTreeMap::new(), seen });
        self.write(&mut state)
    }

    /// Writes what has changed.
    pub(crate) fn save(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.is_changed { self.write(&mut state) } else { Ok(()) }
    }

    fn write(&self, state: &mut State) -> Result<(), Error> {
        if state.files.len() > MAX_FILES {
            let mut seen: Vec<i64> = state.files.values().map(|file| file.seen).collect();
            seen.sort_unstable();
            let oldest = seen[state.files.len() - MAX_FILES];
            state.files.retain(|_, file| file.seen >= oldest);
        }
        let files = state.files.iter().map(|(key, file)| (format!("{key:016x}"), file.clone())).collect();
        let bytes = serde_json::to_vec(&Stored { version: 1, files }).unwrap_or_default();
        self.folder.set_log_positions(&bytes)?;
        state.is_changed = false;
        Ok(())
    }
}
