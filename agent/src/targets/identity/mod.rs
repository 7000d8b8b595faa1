//! The identity of an observed process: found, read, and read again when it changes.
//!
//! A file is opened when a session needs a key; its content is read only if the file is another than the last time
//! (device, inode, size, time of change). Keys stay in the `Identity` values, which are wiped when dropped. Errors name
//! the path and the kind of fault, never the content.
//!
//! Reads happen where [`Keyring::identity`] is called, on the interpreter's thread, behind its trait `Keys`.

mod locate;
mod read;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use chainscope_tezos::{Identity, Keyring};
use locate::{PathHints, data_dir_of_config};
use read::{ReadError, Root, Stamp, open_in};

use crate::targets::proc::Proc;

/// The content of a file when it was last read.
#[derive(Debug, Clone)]
struct Read {
    stamp: Stamp,
    content: Result<Arc<Identity>, String>,
}

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

/// The identities of one process.
#[derive(Debug)]
pub(crate) struct ProcessKeys {
    proc: Proc,
    pid: u32,
    source: Source,
    /// By root (true: the host's) and path in it.
    read: HashMap<(bool, PathBuf), Read>,
    /// Identities read before, also of files that are gone or changed: sessions that began with them go on, and the
    /// root of a process disappears with it.
    known: Vec<Arc<Identity>>,
    /// The public key that the last session had, if its identity was not found: any other identity is another node's.
    missed: Option<[u8; 32]>,
    events: Vec<IdentityEvent>,
    last_event: Option<IdentityEvent>,
    state: Result<String, String>,
}

/// Identities kept for one process; a node has one and rarely changes it.
const MAX_KNOWN: usize = 8;

impl ProcessKeys {
    pub(crate) fn new(proc: Proc, pid: u32, source: Source) -> Self {
        let (read, known, events) = (HashMap::new(), Vec::new(), Vec::new());
        Self { proc, pid, source, read, known, missed: None, events, last_event: None, state: Err(String::new()) }
    }

    /// Changes the source. Sessions that began with identities known before go on with them.
    pub(crate) fn set_source(&mut self, source: Source) {
        if self.source != source {
            self.source = source;
            self.reload();
        }
    }

    /// The peer id of the identity that was found last, or why there is none.
    pub(crate) fn state(&self) -> &Result<String, String> {
        &self.state
    }

    /// Reads the identity before a session needs it: a process may exit, and its root with it, while its bytes are still
    /// to be interpreted. A missing file is no event: a node generates its identity in its first seconds.
    pub(crate) fn reload(&mut self) {
        match self.find(self.missed) {
            Ok(identity) => {
                self.missed = None;
                self.emit(IdentityEvent::Found(identity.peer_id().to_owned()));
            }
            // The operator sent none: that does not change within seconds.
            Err(trouble) if matches!(self.source, Source::Missing(_)) => self.emit(IdentityEvent::Failed(trouble)),
            Err(_) => {}
        }
    }

    /// The identity of the source, with the given public key if one is given.
    fn find(&mut self, wanted: Option<[u8; 32]>) -> Result<Arc<Identity>, String> {
        let found = match self.source.clone() {
            Source::Given(identity) => {
                self.remember(&identity);
                if wanted.is_none_or(|key| key == *identity.public_key()) {
                    Ok(identity)
                } else {
                    Err(format!("the one in the Secret is of another node, {}", identity.peer_id()))
                }
            }
            Source::Missing(reason) => Err(reason),
            Source::Detect | Source::Path(_) | Source::InRoot(_) => {
                let places = self.places();
                self.search(&places, wanted.as_ref())
            }
        };
        self.state = found.as_ref().map(|identity| identity.peer_id().to_owned()).map_err(Clone::clone);
        found
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

    /// The places to try now: a process may have changed its directory, and its configuration file may have appeared.
    fn places(&self) -> Vec<(Root, PathBuf)> {
        let own = Root::Of(self.pid);
        match &self.source {
            // A path from the configuration may be the host's view of a container's volume.
            Source::Path(path) => return vec![(own, path.clone()), (Root::Host, path.clone())],
            Source::InRoot(path) => return vec![(own, path.clone())],
            _ => {}
        }
        let hints = path_hints(&self.proc, self.pid);
        let config = hints.cli_args().config.or_else(|| hints.node_dir.as_ref().map(|dir| dir.join("config.json")));
        let folder = config
            .and_then(|path| open_in(&self.proc, own, &path).ok()?.content().ok())
            .and_then(|json| data_dir_of_config(&json));
        hints.candidates(folder.as_deref()).into_iter().map(|path| (own, path)).collect()
    }

    /// The first usable identity, with the given public key if one is given; else why there is none.
    fn search(&mut self, places: &[(Root, PathBuf)], wanted: Option<&[u8; 32]>) -> Result<Arc<Identity>, String> {
        let mut troubles = Vec::new();
        let mut other = None;
        for (root, path) in places {
            match self.identity_in(*root, path) {
                Ok(identity) if wanted.is_none_or(|key| key == identity.public_key()) => return Ok(identity),
                Ok(identity) => other = other.or(Some((path.clone(), identity))),
                Err(LookupError::Missing) => {}
                Err(LookupError::Other(trouble)) => troubles.push(trouble),
            }
        }
        if let Some((path, identity)) = other {
            let file = identity.peer_id();
            return Err(format!("{} is of another node, {file}", shown(&path)));
        }
        troubles.into_iter().next().map_or_else(
            || {
                // The connection's state has "identity: " before it.
                let tried: Vec<String> = places.iter().map(|(_, path)| shown(path)).collect();
                let first = tried.first().cloned().unwrap_or_default();
                Err(match tried.len() {
                    0..=2 => format!("not found at {first}"),
                    count => format!("not found at {first} and {} other places", count - 1),
                })
            },
            Err,
        )
    }

    fn identity_in(&mut self, root: Root, path: &Path) -> Result<Arc<Identity>, LookupError> {
        let key = (root == Root::Host, path.to_owned());
        let trouble = |cause: ReadError| match cause {
            ReadError::Missing => LookupError::Missing,
            other => LookupError::Other(format!("{}: {other}", shown(path))),
        };
        let opened = open_in(&self.proc, root, path).map_err(trouble)?;
        let stamp = opened.stamp;
        if let Some(read) = self.read.get(&key).filter(|read| read.stamp == stamp) {
            return read.content.clone().map_err(LookupError::Other);
        }
        let content = opened.content().map_err(trouble)?;
        let content = Identity::from_json(&content).map(Arc::new).map_err(|cause| format!("{}: {cause}", shown(path)));
        if let Ok(identity) = &content {
            self.remember(identity);
        }
        self.read.insert(key, Read { stamp, content: content.clone() });
        content.map_err(LookupError::Other)
    }

    fn remember(&mut self, identity: &Arc<Identity>) {
        self.known.retain(|known| known.public_key() != identity.public_key());
        self.known.push(Arc::clone(identity));
        if self.known.len() > MAX_KNOWN {
            self.known.remove(0);
        }
    }
}

enum LookupError {
    Missing,
    Other(String),
}

impl Keyring for ProcessKeys {
    fn identity(&mut self, public_key: &[u8; 32]) -> Result<Arc<Identity>, String> {
        if let Some(identity) = self.known.iter().find(|known| known.public_key() == public_key).cloned() {
            if self.missed.take().is_some() {
                self.reload();
            }
            return Ok(identity);
        }
        let found = self.find(Some(*public_key));
        self.missed = found.is_err().then_some(*public_key);
        match &found {
            Ok(identity) => self.emit(IdentityEvent::Found(identity.peer_id().to_owned())),
            Err(trouble) => self.emit(IdentityEvent::Failed(trouble.clone())),
        }
        found
    }
}

/// A path as it may appear in a record or a log line.
fn shown(path: &Path) -> String {
    chainscope_hygiene::EscapedTruncated(&path.to_string_lossy()).to_string()
}

fn path_hints(proc: &Proc, pid: u32) -> PathHints {
    let Some(process) = proc.open(pid) else {
        return PathHints::default();
    };
    let environment = process.environ().unwrap_or_default();
    let folder = |name: &str| environment.get(std::ffi::OsStr::new(name)).map(PathBuf::from);
    // From outside, the directory of a process with another root has that root in front.
    let cwd = process.cwd().ok().map(|cwd| match process.root() {
        Ok(root) => cwd.strip_prefix(&root).map_or(cwd.clone(), |inside| Path::new("/").join(inside)),
        Err(_) => cwd,
    });
    PathHints {
        arguments: process.cmdline().unwrap_or_default(),
        cwd,
        node_dir: folder("TEZOS_NODE_DIR"),
        home: folder("HOME"),
    }
}
