//! The search for an identity: reads the files where it may be. These are of another process, so that a read may never
//! return; [`super::IdentityReader`] calls this on threads for that.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use chainscope_tezos::Identity;

use super::{
    Source,
    locate::{PathHints, data_dir_of_config},
    read::{ReadError, Root, Stamp, open_in},
};
use crate::targets::proc::Proc;

/// The content of a file when it was last read.
#[derive(Debug, Clone)]
struct Read {
    stamp: Stamp,
    content: Result<Arc<Identity>, String>,
}

/// The files of one process, as they were read last.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// By root (true: the host's) and path in it.
    read: HashMap<(bool, PathBuf), Read>,
    /// Identities that were read since [`Self::take_new`].
    new: Vec<Arc<Identity>>,
}

#[cfg(test)]
impl Files {
    pub(super) fn count(&self) -> usize {
        self.read.len()
    }
}

/// A process whose identity is searched for.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) proc: Proc,
    pub(super) pid: u32,
    /// Clock ticks from boot to its start: a later process with the same id is another one.
    pub(super) start: u64,
}

enum LookupError {
    Missing,
    Other(String),
}

impl Files {
    /// The first usable identity, with the given public key if one is given; else why there is none.
    pub(super) fn search(
        &mut self,
        process: &Process,
        source: &Source,
        wanted: Option<&[u8; 32]>,
    ) -> Result<Arc<Identity>, String> {
        let places = process.places(source);
        // Those of an earlier working directory or configuration.
        self.read.retain(|(is_host, path), _| {
            places.iter().any(|(root, place)| (*root == Root::Host, place) == (*is_host, path))
        });
        let mut troubles = Vec::new();
        let mut other = None;
        for (root, path) in &places {
            match self.identity_in(&process.proc, *root, path) {
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

    /// Identities that were read since the last call.
    pub(super) fn take_new(&mut self) -> Vec<Arc<Identity>> {
        std::mem::take(&mut self.new)
    }

    fn identity_in(&mut self, proc: &Proc, root: Root, path: &Path) -> Result<Arc<Identity>, LookupError> {
        let key = (root == Root::Host, path.to_owned());
        let trouble = |cause: ReadError| match cause {
            ReadError::Missing => LookupError::Missing,
            other => LookupError::Other(format!("{}: {other}", shown(path))),
        };
        let opened = open_in(proc, root, path).map_err(trouble)?;
        let stamp = opened.stamp;
        if let Some(read) = self.read.get(&key).filter(|read| read.stamp == stamp) {
            return read.content.clone().map_err(LookupError::Other);
        }
        let content = opened.content().map_err(trouble)?;
        let content = Identity::from_json(&content).map(Arc::new).map_err(|cause| format!("{}: {cause}", shown(path)));
        self.new.extend(content.clone());
        self.read.insert(key, Read { stamp, content: content.clone() });
        content.map_err(LookupError::Other)
    }
}

impl Process {
    /// The places to try now: a process may have changed its directory, and its configuration file may have appeared.
    fn places(&self, source: &Source) -> Vec<(Root, PathBuf)> {
        let own = Root::Of { pid: self.pid, start: Some(self.start) };
        match source {
            // A path from the configuration may be the host's view of a container's volume.
            Source::Path(path) => return vec![(own, path.clone()), (Root::Host, path.clone())],
            Source::InRoot(path) => return vec![(own, path.clone())],
            Source::Detect => {}
            Source::Given(_) | Source::Missing(_) => return Vec::new(),
        }
        let hints = self.path_hints();
        let config = hints.cli_args().config.or_else(|| hints.node_dir.as_ref().map(|dir| dir.join("config.json")));
        let folder = config
            .and_then(|path| open_in(&self.proc, own, &path).ok()?.content().ok())
            .and_then(|json| data_dir_of_config(&json));
        hints.candidates(folder.as_deref()).into_iter().map(|path| (own, path)).collect()
    }

    fn path_hints(&self) -> PathHints {
        // A descriptor: what is read through it is of one process.
        let process = self.proc.open(self.pid);
        let Some(process) = process.filter(|process| process.stat().is_ok_and(|stat| stat.starttime == self.start))
        else {
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
}

/// A path as it may appear in a record or a log line.
fn shown(path: &Path) -> String {
    chainscope_hygiene::EscapedTruncated(&path.to_string_lossy()).to_string()
}
