//! Authentication by a file of tokens, for a program outside of a cluster.
//!
//! ```text
//! # token            user     nodes; `*` stands for any sequence of characters, also an empty one
//! 8Jx…               grafana  *
//! sha256:5e884898…   alice    default/* octez-0
//! ```
//!
//! Instead of a token its SHA-256 may be given. A line without nodes is malformed: `*` allows all. The file is read again when
//! it has changed; while it cannot be read no token is accepted.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use chainscope_hygiene::warn_limited;
use globset::{GlobBuilder, GlobMatcher};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::review::ReviewError;

/// Interval at which the file is checked for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// A line of the file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) user: String,
    digest: [u8; 32],
    nodes: Nodes,
}

/// The nodes that a caller may read.
#[derive(Debug, Clone)]
enum Nodes {
    All,
    Matching(Vec<GlobMatcher>),
}

impl Entry {
    /// Whether the caller may read the node.
    pub(crate) fn may_read(&self, node: &str) -> bool {
        match &self.nodes {
            Nodes::All => true,
            Nodes::Matching(patterns) => patterns.iter().any(|pattern| pattern.is_match(node)),
        }
    }

    /// Whether the caller may read every node.
    pub(crate) fn may_read_all(&self) -> bool {
        matches!(self.nodes, Nodes::All)
    }
}

/// The file, and its last content.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    polled: Instant,
    stamp: Option<Stamp>,
    entries: Result<Arc<[Entry]>, ReviewError>,
}

/// Modification time and size.
type Stamp = (Option<SystemTime>, u64);

impl TokenFile {
    /// Reads the file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let stamp = stamp(path)?;
        let (entries, malformed) = load(path)?;
        if let Some(line) = malformed.first() {
            let text = format!("line {line} is not: token, user, names of nodes (`*` for all)");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let read = Read { polled: Instant::now(), stamp: Some(stamp), entries: Ok(entries) };
        Ok(Self { path: path.to_owned(), read: Mutex::new(read) })
    }

    /// The entry of the token.
    pub(super) fn authenticate(&self, token: &str) -> Result<Option<Entry>, ReviewError> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        // Without early exit and in constant time: the duration depends on the number of entries alone.
        let mut found = None;
        for entry in self.entries()?.iter() {
            if bool::from(entry.digest.ct_eq(&digest)) && found.is_none() {
                found = Some(entry.clone());
            }
        }
        Ok(found)
    }

    fn entries(&self) -> Result<Arc<[Entry]>, ReviewError> {
        let mut read = self.read.lock();
        if read.polled.elapsed() >= POLL_INTERVAL {
            read.polled = Instant::now();
            self.poll(&mut read);
        }
        read.entries.clone()
    }

    fn poll(&self, read: &mut Read) {
        let stamp = stamp(&self.path);
        if let (Ok(now), Some(before), Ok(_)) = (&stamp, &read.stamp, &read.entries)
            && now == before
        {
            return;
        }
        read.entries = stamp.and_then(|stamp| Ok((stamp, load(&self.path)?))).map_or_else(
            |error| {
                warn_limited!(%error, file = %self.path.display(), "the tokens cannot be read: no token is accepted");
                Err(ReviewError(format!("the file of tokens cannot be read: {error}")))
            },
            |(stamp, (entries, malformed))| {
                for line in malformed {
                    warn_limited!(line, file = %self.path.display(), "a line of the tokens is malformed and ignored");
                }
                tracing::info!(tokens = entries.len(), "tokens loaded");
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
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {MAX_BYTES} bytes")));
    }
    let (entries, malformed) = parse(&fs::read_to_string(path)?);
    Ok((entries.into(), malformed))
}

/// The entries, and the numbers of malformed lines.
fn parse(text: &str) -> (Vec<Entry>, Vec<usize>) {
    let (mut entries, mut malformed) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(token) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let mut words = words.take_while(|word| !word.starts_with('#'));
        let user = words.next();
        let patterns: Vec<&str> = words.collect();
        match (digest(token), user) {
            (Some(digest), Some(user)) if !patterns.is_empty() => {
                let nodes = match patterns.contains(&"*") {
                    true => Nodes::All,
                    false => Nodes::Matching(patterns.into_iter().filter_map(compile).collect()),
                };
                entries.push(Entry { user: user.to_owned(), digest, nodes });
            }
            _ => malformed.push(at + 1),
        }
    }
    (entries, malformed)
}

fn digest(token: &str) -> Option<[u8; 32]> {
    match token.strip_prefix("sha256:") {
        Some(digits) => hex::decode(digits).ok()?.try_into().ok(),
        None => Some(Sha256::digest(token.as_bytes()).into()),
    }
}

/// Compiles a pattern in which `*` stands for any sequence of characters, also `/`, and every other character for itself.
fn compile(pattern: &str) -> Option<GlobMatcher> {
    // Between components `**` is special to globset; here it is the same as `*`.
    let pieces: Vec<&str> = pattern.split('*').collect();
    let last = pieces.len().saturating_sub(1);
    let is_needed = |(at, piece): &(usize, &&str)| *at == 0 || *at == last || !piece.is_empty();
    let pieces = pieces.iter().enumerate().filter(is_needed).map(|(_, piece)| globset::escape(piece));
    let glob = GlobBuilder::new(&pieces.collect::<Vec<_>>().join("*")).backslash_escape(false).build().ok()?;
    Some(glob.compile_matcher())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{compile, parse};

    fn fits(pattern: &str, name: &str) -> bool {
        compile(pattern).unwrap().is_match(name)
    }

    #[test]
    fn lines_are_token_user_and_nodes() {
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // of "secret"
        let (entries, malformed) = parse(&format!(
            "# tokens\n\n abc  alice default/* 9732 # hers\nsha256:{hash} bob *\nonly-a-token\nsha256:xyz carol *\nsecret dan *\r\n"
        ));
        assert_eq!(malformed, [5, 6]);
        assert_eq!(entries.iter().map(|entry| entry.user.as_str()).collect::<Vec<_>>(), ["alice", "bob", "dan"]);
        assert!(entries[0].may_read("default/octez-0") && entries[0].may_read("9732"));
        assert!(!entries[0].may_read("other/octez-0") && !entries[0].may_read("hers") && !entries[0].may_read_all());
        assert!(entries[1].may_read_all() && entries[2].may_read_all());
        assert_eq!(entries[1].digest, entries[2].digest, "a hash is that of the token");
    }

    #[test]
    fn a_line_without_nodes_grants_nothing() {
        let (entries, malformed) = parse("t1 eve\nt2 eve # ns/*\nt3 # eve ns/*\nt4 eve #*\nt5 eve #a b\n");
        assert_eq!((entries.len(), malformed), (0, vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in
            [("*", ""), ("a*c", "ac"), ("a*c", "abcbc"), ("*/o*-0", "ns/octez-0"), ("a", "a"), ("**", "x")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a*c", "abcb"), ("ns/*", "nsx/a"), ("a", "A"), ("?", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn a_name_with_some_of_it_replaced_by_a_star_fits(name in "[a-c/]{0,12}", from in 0usize..13, to in 0usize..13) {
            let (from, to) = (from.min(name.len()), to.min(name.len()));
            let (from, to) = (from.min(to), from.max(to));
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(fits(&pattern, &name));
            let longer = format!("{pattern}x");
            prop_assert!(!fits(&longer, &name));
        }

        #[test]
        fn any_text_is_read(text in "(.|\n){0,80}") {
            let (entries, malformed) = parse(&text);
            prop_assert!(entries.len() + malformed.len() <= text.lines().count());
        }
    }
}
