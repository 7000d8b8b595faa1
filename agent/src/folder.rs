//! The agent's data folder `<data_dir>/agent`: its persistent state.
//!
//! | file | holds |
//! | --- | --- |
//! | `lock` | nothing; an advisory lock while an agent runs |
//! | `epoch` | 16 random bytes, created once: identifies the record streams of this folder |
//! | `streams` | nodes that have had a record stream in this epoch, one a line: any other stream begins at sequence 0 |
//! | `journal` | the session journal, `chainscope.v1.Journal` |
//! | `configuration` | the last configuration of the operator, without identities |
//! | `log_positions` | positions up to which log files are recorded, JSON |
//! | `settled` | nanoseconds since 1970, decimal: every earlier record is acknowledged or in the spool |
//! | `spool/` | records that are not acknowledged, where there is a spool |
//!
//! Files are replaced by renaming and have mode 0600; the folder has mode 0700.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// Maximum bytes that are read of a file; a journal of 65,536 sessions has about 25 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Identifies the data folder from its creation to its deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) [u8; 16]);

/// The folder, locked for this process.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Holds the lock while any clone lives.
    _lock: Arc<File>,
}

impl Folder {
    /// Creates the folder if it is missing and locks it.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join("agent");
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(Error::file(&path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(Error::file(&lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::Damaged { path: lock_path, what: "another agent uses this folder".to_owned() });
        }
        Ok(Self { path, _lock: Arc::new(lock) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The epoch, created at the first call.
    pub(crate) fn epoch(&self) -> Result<Epoch, Error> {
        if let Some(bytes) = self.read("epoch")? {
            return bytes.as_slice().try_into().map(Epoch).map_err(|_| Error::Damaged {
                path: self.path.join("epoch"),
                what: format!("{} bytes instead of 16", bytes.len()),
            });
        }
        let epoch: [u8; 16] = rand::random();
        self.write("epoch", &epoch, Durability::Synced)?;
        Ok(Epoch(epoch))
    }

    /// Nodes that have had a stream in this epoch.
    pub(crate) fn streams(&self) -> Result<Vec<String>, Error> {
        let bytes = self.read("streams")?.unwrap_or_default();
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::Damaged { path: self.path.join("streams"), what: "not UTF-8".to_owned() })?;
        Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// Adds a node to [`Self::streams`].
    pub(crate) fn add_stream(&self, node: &str) -> Result<(), Error> {
        let mut names = self.streams()?;
        names.push(node.to_owned());
        self.write("streams", (names.join("\n") + "\n").as_bytes(), Durability::Synced)
    }

    /// Time before which every record of an earlier run is acknowledged or in the spool; none without an earlier run.
    pub(crate) fn settled_ns(&self) -> Result<Option<i64>, Error> {
        let Some(bytes) = self.read("settled")? else { return Ok(None) };
        // A damaged file does not prevent the start: the loss then begins at 0, which means unknown.
        Ok(Some(std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)))
    }

    pub(crate) fn set_settled_ns(&self, time: i64) -> Result<(), Error> {
        self.write("settled", time.to_string().as_bytes(), Durability::Renamed)
    }

    /// The session journal.
    pub(crate) fn journal(&self) -> Result<Option<Vec<u8>>, Error> {
        self.read("journal")
    }

    pub(crate) fn set_journal(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write("journal", bytes, Durability::Renamed)
    }

    /// The last configuration of the operator.
    pub(crate) fn configuration(&self) -> Result<Option<Vec<u8>>, Error> {
        self.read("configuration")
    }

    pub(crate) fn set_configuration(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write("configuration", bytes, Durability::Synced)
    }

    /// Positions in log files.
    pub(crate) fn log_positions(&self) -> Result<Option<Vec<u8>>, Error> {
        self.read("log_positions")
    }

    pub(crate) fn set_log_positions(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write("log_positions", bytes, Durability::Renamed)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(Error::file(path)(cause)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(Error::file(&path))?;
        Ok(Some(bytes))
    }

    fn write(&self, name: &str, bytes: &[u8], durability: Durability) -> Result<(), Error> {
        let beside = self.path.join(format!("{name}.new"));
        let path = self.path.join(name);
        let written = || -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
            file.write_all(bytes)?;
            if durability == Durability::Synced {
                file.sync_all()?;
            }
            fs::rename(&beside, &path)?;
            if durability == Durability::Synced {
                File::open(&self.path)?.sync_all()?;
            }
            Ok(())
        };
        written().map_err(Error::file(&path))
    }
}

/// Events that written data survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// A kill of the process. Sufficient for the journal: sockets do not survive a reboot either.
    Renamed,
    /// A power cut.
    Synced,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn epoch_and_streams_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path()).unwrap();
        let epoch = first.epoch().unwrap();
        first.add_stream("default/octez").unwrap();
        first.add_stream("9732@4026531840").unwrap();
        drop(first);
        let second = Folder::open(dir.path()).unwrap();
        assert_eq!(second.epoch().unwrap(), epoch);
        assert_eq!(second.streams().unwrap(), ["default/octez", "9732@4026531840"]);
        let mode = fs::metadata(dir.path().join("agent/epoch")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_second_agent_cannot_open_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path()).unwrap();
        let error = Folder::open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("another agent uses this folder"), "{error}");
        drop(first);
        Folder::open(dir.path()).unwrap();
    }

    #[test]
    fn a_damaged_epoch_is_an_error_and_a_damaged_time_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.settled_ns().unwrap(), None);
        fs::write(dir.path().join("agent/settled"), "soon").unwrap();
        assert_eq!(folder.settled_ns().unwrap(), Some(0));
        fs::write(dir.path().join("agent/epoch"), "short").unwrap();
        assert!(folder.epoch().unwrap_err().to_string().ends_with("5 bytes instead of 16"));
    }
}
