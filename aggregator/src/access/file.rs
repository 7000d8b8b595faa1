//! Callers from a file of tokens, for a program outside of a cluster.
//!
//! ```text
//! # token            user     nodes; `*` stands for anything, also for nothing
//! 8Jx…               grafana  *
//! sha256:5e884898…   alice    default/* octez-0
//! ```
//!
//! Instead of a token its SHA-256 may be given. Who has no nodes named reads all. The file is looked at again when it has
//! changed; while it cannot be read nobody gets in.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use chainscope_hygiene::warn_limited;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::review::NoAnswer;

/// Time between two looks at whether the file has changed.
const LOOK: Duration = Duration::from_secs(1);

/// Largest file, in bytes.
const LARGEST: u64 = 4 << 20;

/// Someone in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) user: String,
    digest: [u8; 32],
    /// Empty: all.
    nodes: Vec<String>,
}

impl Entry {
    /// Whether its patterns fit the name.
    pub(crate) fn sees(&self, node: &str) -> bool {
        self.sees_all() || self.nodes.iter().any(|pattern| fits(pattern.as_bytes(), node.as_bytes()))
    }

    pub(crate) fn sees_all(&self) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|pattern| pattern == "*")
    }
}

/// The file, and what was in it last.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    looked: Instant,
    stamp: Option<Stamp>,
    entries: Result<Arc<[Entry]>, NoAnswer>,
}

/// What changes when a file does.
type Stamp = (Option<SystemTime>, u64);

impl TokenFile {
    /// Reads the file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let stamp = stamp(path)?;
        let (entries, wrong) = load(path)?;
        if let Some(line) = wrong.first() {
            let text = format!("line {line} is not: token, user, names of nodes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let read = Read { looked: Instant::now(), stamp: Some(stamp), entries: Ok(entries) };
        Ok(Self { path: path.to_owned(), read: Mutex::new(read) })
    }

    /// Whose token it is.
    pub(super) fn identify(&self, token: &str) -> Result<Option<Entry>, NoAnswer> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        // All of them are compared, each as a whole: time tells nothing.
        for entry in self.entries()?.iter() {
            let differ = entry.digest.iter().zip(&digest).fold(0, |differ, (left, right)| differ | (left ^ right));
            if differ == 0 && found.is_none() {
                found = Some(entry.clone());
            }
        }
        Ok(found)
    }

    fn entries(&self) -> Result<Arc<[Entry]>, NoAnswer> {
        let mut read = self.read.lock();
        if read.looked.elapsed() >= LOOK {
            read.looked = Instant::now();
            self.look(&mut read);
        }
        read.entries.clone()
    }

    fn look(&self, read: &mut Read) {
        let stamp = stamp(&self.path);
        if let (Ok(now), Some(before), Ok(_)) = (&stamp, &read.stamp, &read.entries)
            && now == before
        {
            return;
        }
        read.entries = stamp.and_then(|stamp| Ok((stamp, load(&self.path)?))).map_or_else(
            |error| {
                warn_limited!(%error, file = %self.path.display(), "the tokens cannot be read: nobody gets in");
                Err(NoAnswer(format!("the file of tokens cannot be read: {error}")))
            },
            |(stamp, (entries, wrong))| {
                for line in wrong {
                    warn_limited!(line, file = %self.path.display(), "a line of the tokens is not understood: it is left out");
                }
                tracing::info!(tokens = entries.len(), "the tokens were read");
                read.stamp = Some(stamp);
                Ok(entries)
            },
        );
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(path)?;
    Ok((meta.modified().ok(), meta.len()))
}

fn load(path: &Path) -> io::Result<(Arc<[Entry]>, Vec<usize>)> {
    if fs::metadata(path)?.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {LARGEST} bytes")));
    }
    let (entries, wrong) = parse(&fs::read_to_string(path)?);
    Ok((entries.into(), wrong))
}

/// The entries, and the numbers of lines that are not understood.
fn parse(text: &str) -> (Vec<Entry>, Vec<usize>) {
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(token) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        match (digest(token), words.next()) {
            (Some(digest), Some(user)) => {
                let nodes = words.take_while(|word| !word.starts_with('#')).map(str::to_owned).collect();
                entries.push(Entry { user: user.to_owned(), digest, nodes });
            }
            _ => wrong.push(at + 1),
        }
    }
    (entries, wrong)
}

fn digest(token: &str) -> Option<[u8; 32]> {
    match token.strip_prefix("sha256:") {
        Some(digits) => hex::decode(digits).ok()?.try_into().ok(),
        None => Some(Sha256::digest(token.as_bytes()).into()),
    }
}

/// Whether a name fits a pattern in which `*` stands for any run of characters.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // Where to go on if what follows the last star does not fit.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(here) {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, here));
                at += 1;
            }
            Some(wanted) if wanted == byte => (at, here) = (at + 1, here + 1),
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (at, here) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{fits, parse};

    #[test]
    fn lines_are_token_user_and_nodes() {
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // of "secret"
        let (entries, wrong) = parse(&format!(
            "# tokens\n\n abc  alice default/* 9732 # hers\nsha256:{hash} bob\nonly-a-token\nsha256:xyz carol\nsecret dan *\r\n"
        ));
        assert_eq!(wrong, [5, 6]);
        assert_eq!(entries.iter().map(|entry| entry.user.as_str()).collect::<Vec<_>>(), ["alice", "bob", "dan"]);
        assert!(entries[0].sees("default/octez-0") && entries[0].sees("9732"));
        assert!(!entries[0].sees("other/octez-0") && !entries[0].sees("hers") && !entries[0].sees_all());
        assert!(entries[1].sees_all() && entries[2].sees_all());
        assert_eq!(entries[1].digest, entries[2].digest, "a hash is that of the token");
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in
            [("*", ""), ("a*c", "ac"), ("a*c", "abcbc"), ("*/o*-0", "ns/octez-0"), ("a", "a"), ("**", "x")]
        {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a*c", "abcb"), ("ns/*", "nsx/a"), ("a", "A"), ("?", "a")] {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_with_some_of_it_replaced_by_a_star_fits(name in "[a-c/]{0,12}", from in 0usize..13, to in 0usize..13) {
            let (from, to) = (from.min(name.len()), to.min(name.len()));
            let (from, to) = (from.min(to), from.max(to));
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(fits(pattern.as_bytes(), name.as_bytes()));
            let longer = format!("{pattern}x");
            prop_assert!(!fits(longer.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn any_text_is_read(text in "(.|\n){0,80}") {
            let (entries, wrong) = parse(&text);
            prop_assert!(entries.len() + wrong.len() <= text.lines().count());
        }
    }
}
