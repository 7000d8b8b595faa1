//! The identity of an observed process: found, read, and read again when it changes.
//!
//! A file is opened when a session needs a key; its content is read only if the file is another than the last time
//! (device, inode, size, time of change). Keys stay in the `Identity` values, which wipe themselves. What is wrong is
//! said by path and kind of fault, never by content.

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
use locate::{Habits, data_dir_of_config};
use read::{ReadError, Root, Stamp, open_in};

use crate::targets::proc::Proc;

/// What a file held when it was last read.
#[derive(Debug, Clone)]
struct Read {
    stamp: Stamp,
    content: Result<Arc<Identity>, String>,
}

/// News of an identity, for the records and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// A usable identity was read.
    Found(String),
    /// Why there is none.
    Trouble(String),
}

/// Where the identity of a process comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Looked for where the process keeps its data.
    Habit,
    /// A file that a person wrote down: as the process sees it, or as the host does.
    Path(PathBuf),
    /// A file as the process sees it.
    InRoot(PathBuf),
    /// Handed over.
    Given(Arc<Identity>),
    /// Nowhere, and why.
    Missing(String),
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Habit, Self::Habit) => true,
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
    /// By place: the root and the path in it.
    read: HashMap<(bool, PathBuf), Read>,
    /// Identities read before, also of files that are gone or changed: sessions that began with them go on, and a
    /// process that ended takes its root with it.
    known: Vec<Arc<Identity>>,
    /// The public key that the last session had, if its identity was not found: any other identity is another node's.
    missed: Option<[u8; 32]>,
    news: Vec<News>,
    last_news: Option<News>,
    state: Result<String, String>,
}

/// Identities kept for one process; a node has one and changes it hardly ever.
const MAX_KNOWN: usize = 8;

impl ProcessKeys {
    pub(crate) fn new(proc: Proc, pid: u32, source: Source) -> Self {
        let (read, known, news) = (HashMap::new(), Vec::new(), Vec::new());
        Self { proc, pid, source, read, known, missed: None, news, last_news: None, state: Err(String::new()) }
    }

    /// From now on identities come from elsewhere, or another one was handed over. Sessions that began with those known
    /// before go on with them.
    pub(crate) fn set_source(&mut self, source: Source) {
        if self.source != source {
            self.source = source;
            self.look();
        }
    }

    /// The peer id of the identity that was found last, or why there is none.
    pub(crate) fn state(&self) -> &Result<String, String> {
        &self.state
    }

    /// Reads what is there, before a session needs it: a process may end with its root while its bytes are still to be
    /// read. That there is nothing yet is no news: a node makes its identity in its first seconds.
    pub(crate) fn look(&mut self) {
        match self.find(self.missed) {
            Ok(identity) => {
                self.missed = None;
                self.tell(News::Found(identity.peer_id().to_owned()));
            }
            // What is not there now was not handed over; that is not a matter of seconds.
            Err(trouble) if matches!(self.source, Source::Missing(_)) => self.tell(News::Trouble(trouble)),
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
            Source::Habit | Source::Path(_) | Source::InRoot(_) => {
                let places = self.places();
                self.search(&places, wanted.as_ref())
            }
        };
        self.state = found.as_ref().map(|identity| identity.peer_id().to_owned()).map_err(Clone::clone);
        found
    }

    /// What is new since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn tell(&mut self, news: News) {
        if self.last_news.as_ref() != Some(&news) {
            self.last_news = Some(news.clone());
            self.news.push(news);
        }
    }

    /// Where to look now: a process may have changed its folder, and its configuration file may have appeared.
    fn places(&self) -> Vec<(Root, PathBuf)> {
        let own = Root::Of(self.pid);
        match &self.source {
            // A path that a person wrote down may mean the host's view of a container's volume.
            Source::Path(path) => return vec![(own, path.clone()), (Root::Host, path.clone())],
            Source::InRoot(path) => return vec![(own, path.clone())],
            _ => {}
        }
        let habits = habits(&self.proc, self.pid);
        let config = habits.said().config.or_else(|| habits.node_dir.as_ref().map(|dir| dir.join("config.json")));
        let folder = config
            .and_then(|path| open_in(&self.proc, own, &path).ok()?.content().ok())
            .and_then(|json| data_dir_of_config(&json));
        habits.candidates(folder.as_deref()).into_iter().map(|path| (own, path)).collect()
    }

    /// The first usable identity, with the given public key if one is given; else what stood in the way.
    fn search(&mut self, places: &[(Root, PathBuf)], wanted: Option<&[u8; 32]>) -> Result<Arc<Identity>, String> {
        let mut troubles = Vec::new();
        let mut other = None;
        for (root, path) in places {
            match self.identity_in(*root, path) {
                Ok(identity) if wanted.is_none_or(|key| key == identity.public_key()) => return Ok(identity),
                Ok(identity) => other = other.or(Some((path.clone(), identity))),
                Err(Trouble::Missing) => {}
                Err(Trouble::Other(trouble)) => troubles.push(trouble),
            }
        }
        if let Some((path, identity)) = other {
            let file = identity.peer_id();
            return Err(format!("{} is of another node, {file}", shown(&path)));
        }
        troubles.into_iter().next().map_or_else(
            || {
                // A clause: the connection's state says "identity: " before it.
                let looked: Vec<String> = places.iter().map(|(_, path)| shown(path)).collect();
                let first = looked.first().cloned().unwrap_or_default();
                Err(match looked.len() {
                    0..=2 => format!("not found at {first}"),
                    count => format!("not found at {first} and {} other places", count - 1),
                })
            },
            Err,
        )
    }

    fn identity_in(&mut self, root: Root, path: &Path) -> Result<Arc<Identity>, Trouble> {
        let key = (root == Root::Host, path.to_owned());
        let trouble = |cause: ReadError| match cause {
            ReadError::Missing => Trouble::Missing,
            other => Trouble::Other(format!("{}: {other}", shown(path))),
        };
        let opened = open_in(&self.proc, root, path).map_err(trouble)?;
        let stamp = opened.stamp;
        if let Some(read) = self.read.get(&key).filter(|read| read.stamp == stamp) {
            return read.content.clone().map_err(Trouble::Other);
        }
        let content = opened.content().map_err(trouble)?;
        let content = Identity::from_json(&content).map(Arc::new).map_err(|cause| format!("{}: {cause}", shown(path)));
        if let Ok(identity) = &content {
            self.remember(identity);
        }
        self.read.insert(key, Read { stamp, content: content.clone() });
        content.map_err(Trouble::Other)
    }

    fn remember(&mut self, identity: &Arc<Identity>) {
        self.known.retain(|known| known.public_key() != identity.public_key());
        self.known.push(Arc::clone(identity));
        if self.known.len() > MAX_KNOWN {
            self.known.remove(0);
        }
    }
}

enum Trouble {
    Missing,
    Other(String),
}

impl Keyring for ProcessKeys {
    fn identity(&mut self, public_key: &[u8; 32]) -> Result<Arc<Identity>, String> {
        if let Some(identity) = self.known.iter().find(|known| known.public_key() == public_key).cloned() {
            if self.missed.take().is_some() {
                self.look();
            }
            return Ok(identity);
        }
        let found = self.find(Some(*public_key));
        self.missed = found.is_err().then_some(*public_key);
        match &found {
            Ok(identity) => self.tell(News::Found(identity.peer_id().to_owned())),
            Err(trouble) => self.tell(News::Trouble(trouble.clone())),
        }
        found
    }
}

/// A path as it may appear in a record or a log line.
fn shown(path: &Path) -> String {
    chainscope_hygiene::EscapedTruncated(&path.to_string_lossy()).to_string()
}

fn habits(proc: &Proc, pid: u32) -> Habits {
    let Some(process) = proc.open(pid) else {
        return Habits::default();
    };
    let environment = process.environ().unwrap_or_default();
    let folder = |name: &str| environment.get(std::ffi::OsStr::new(name)).map(PathBuf::from);
    // Seen from outside, a process below another root shows its folder with that root in front.
    let cwd = process.cwd().ok().map(|cwd| match process.root() {
        Ok(root) => cwd.strip_prefix(&root).map_or(cwd.clone(), |inside| Path::new("/").join(inside)),
        Err(_) => cwd,
    });
    Habits {
        arguments: process.cmdline().unwrap_or_default(),
        cwd,
        node_dir: folder("TEZOS_NODE_DIR"),
        home: folder("HOME"),
    }
}
