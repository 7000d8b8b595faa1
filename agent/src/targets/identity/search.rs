//! The search for an identity: reads the files where it may be. These are of another process, so that a read may never
//! return; [`super::IdentityReader`] calls this on threads for that.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use chainscope_tezos::Identity;

use super::{
    Source,
    locate::{PathHints, data_dir_of_config},
    read::{ReadError, Root, Stamp, open_in},
};
use crate::targets::proc::{self, Proc};

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
        let environment = proc::strings(&process, "environ");
        let folder = |name: &str| {
            let value = |variable: &Vec<u8>| Some(variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
            environment.iter().find_map(value).map(|value| PathBuf::from(OsString::from_vec(value)))
        };
        let arguments = proc::strings(&process, "cmdline");
        // From outside, the directory of a process with another root has that root in front.
        let cwd = process.cwd().ok().map(|cwd| match process.root() {
            Ok(root) => cwd.strip_prefix(&root).map_or(cwd.clone(), |inside| Path::new("/").join(inside)),
            Err(_) => cwd,
        });
        PathHints {
            arguments: arguments.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect(),
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use chainscope_testing::wait;

    use super::*;

    /// A shell that waits, with `HOME`.
    fn shell(edit: impl FnOnce(&mut Command)) -> (Child, PathHints) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read line", "sh"]).env_clear().env("HOME", "/near").stdin(Stdio::piped());
        edit(&mut command);
        let child = command.spawn().unwrap();
        let proc = Proc::default();
        let start = proc.start_of(child.id()).unwrap();
        let process = Process { proc, pid: child.id(), start };
        // The call returns before the kernel has recorded where they are.
        let hints = wait::until("arguments and variables", || {
            let hints = process.path_hints();
            (!hints.arguments.is_empty() && hints.home.is_some()).then_some(hints)
        });
        (child, hints)
    }

    /// Longer together than what is read, each shorter than what the kernel accepts.
    fn long() -> impl Iterator<Item = String> {
        std::iter::repeat_n("x".repeat(100_000), 12)
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn arguments_beyond_the_limit_are_not_read() {
        let (child, hints) = shell(|command| {
            command.args(["--data-dir", "/near"]).args(long()).args(["--config-file", "/far"]);
        });
        end(child);
        let args = hints.cli_args();
        assert_eq!((args.data_dir.as_deref(), args.config), (Some(Path::new("/near")), None));
        let read = hints.arguments.iter().map(String::len).sum::<usize>() as u64;
        assert!(read > proc::MAX_STRINGS / 2 && read < proc::MAX_STRINGS, "{read}");
    }

    #[test]
    fn variables_beyond_the_limit_are_not_read() {
        let (child, hints) = shell(|command| {
            // In the order of their names.
            long().enumerate().for_each(|(number, value)| {
                command.env(format!("M{number}"), value);
            });
            command.env("TEZOS_NODE_DIR", "/far");
        });
        end(child);
        assert_eq!((hints.home.as_deref(), hints.node_dir), (Some(Path::new("/near")), None));
    }
}
