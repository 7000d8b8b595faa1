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
use procfs::process::Process;
use read::{ReadError, Root, Stamp, open_in};

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

/// The identities of one process.
#[derive(Debug)]
pub(crate) struct ProcessKeys {
    pid: u32,
    configured: Option<PathBuf>,
    /// By place: the root and the path in it.
    read: HashMap<(bool, PathBuf), Read>,
    /// Identities read before, also of files that are gone or changed: sessions that began with them go on, and a
    /// process that ended takes its root with it.
    known: Vec<Arc<Identity>>,
    news: Vec<News>,
    last_news: Option<News>,
}

/// Identities kept for one process; a node has one and changes it hardly ever.
const MAX_KNOWN: usize = 8;

impl ProcessKeys {
    pub(crate) fn new(pid: u32, configured: Option<PathBuf>) -> Self {
        Self { pid, configured, read: HashMap::new(), known: Vec::new(), news: Vec::new(), last_news: None }
    }

    /// Reads what is there, before a session needs it: a process may end with its root while its bytes are still to be
    /// read. That there is nothing yet is no news: a node makes its identity in its first seconds.
    pub(crate) fn look(&mut self) {
        let places = self.places();
        if let Ok(identity) = self.search(&places, None) {
            self.tell(News::Found(identity.peer_id().to_owned()));
        }
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
        if let Some(path) = &self.configured {
            // A path that a person wrote down may mean the host's view of a container's volume.
            return vec![(own, path.clone()), (Root::Host, path.clone())];
        }
        let habits = habits(self.pid);
        let config = habits.said().config.or_else(|| habits.node_dir.as_ref().map(|dir| dir.join("config.json")));
        let folder =
            config.and_then(|path| open_in(own, &path).ok()?.content().ok()).and_then(|json| data_dir_of_config(&json));
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
        let opened = open_in(root, path).map_err(trouble)?;
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
        if let Some(identity) = self.known.iter().find(|known| known.public_key() == public_key) {
            return Ok(Arc::clone(identity));
        }
        let places = self.places();
        let found = self.search(&places, Some(public_key));
        match &found {
            Ok(identity) => self.tell(News::Found(identity.peer_id().to_owned())),
            Err(trouble) => self.tell(News::Trouble(trouble.clone())),
        }
        found
    }
}

/// A path as it may appear in a record or a log line.
fn shown(path: &Path) -> String {
    chainscope_quiet::Clean(&path.to_string_lossy()).to_string()
}

fn habits(pid: u32) -> Habits {
    let Some(process) = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).ok()) else {
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
