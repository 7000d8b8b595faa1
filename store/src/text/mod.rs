//! Full-text search: one Tantivy index for each segment of a kind with text, derived from its rows.
//!
//! ```text
//!  rows become readable ──▶ indexer thread ── commit, reload ──▶ TextIndexes: of each segment, the id up to which it is indexed
//!                             │                                        │
//!                             ╰─▶ text/<node>/<segment>                ╰──▶ query: candidates in index ∪ rows not indexed yet
//!                                 or memory                                  ──▶ filters, zones ──▶ the row itself decides
//! ```
//!
//! - The rows are the truth. An index only tells which rows need not be read, so that an answer is the same with an index that is
//!   behind, damaged or absent, just slower, and the budget of the query bounds that.
//! - Nothing waits for the indexer. It follows the rows within about [`indexer::INTERVAL`], of up to [`indexer::MAX_WRITERS`] nodes at
//!   once; with more that are busy each turn takes a few tens of milliseconds a node longer.
//! - Memory: 15 MB for the one index that is being written, what merging takes (one thread for each open writer), and
//!   [`MAX_READERS`] open indexes, whose files are mapped. Nothing grows with the number of nodes or segments but a few dozen
//!   bytes each.
//! - An index is dropped with its segment. What a crash leaves is continued after the last id that was committed; one that
//!   cannot be read is written anew. A backup has none: they are made when it is opened.

mod expr;
mod index;
mod indexer;
mod parse;
mod query;

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
};

pub(crate) use index::Candidates;
pub(crate) use indexer::Indexer;
use parking_lot::Mutex;
pub use query::TextQuery;
use tantivy::{Index, IndexReader, TantivyError};

use self::index::FindError;
use crate::{Error, query::Meter};

/// Indexes on disk that are open for queries.
const MAX_READERS: usize = 64;

/// Node number and segment number.
type SegmentKey = (u32, u32);

/// How far the full-text index of a node is. Rows that are not indexed are found, too, more slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextIndexState {
    /// Rows that can be indexed.
    pub rows: u64,
    /// Those that are not indexed yet.
    pub pending: u64,
}

/// The indexes of a store, for its queries.
pub(crate) struct TextIndexes {
    /// None: in memory.
    dir: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    segments: BTreeMap<SegmentKey, Segment>,
    /// Increases with each use of a reader.
    uses: u64,
    errors: u64,
}

/// The index of a segment.
struct Segment {
    /// Rows below are indexed.
    indexed: u64,
    /// The index itself, if it is in memory.
    in_memory: Option<Index>,
    reader: Option<IndexReader>,
    last_use: u64,
    /// A query could not read it.
    is_damaged: bool,
}

impl TextIndexes {
    /// No index yet; [`Indexer`] makes them. `dir` is that of the database.
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        Self { dir: dir.map(|dir| dir.join("text")), state: Mutex::default() }
    }

    /// Rows of a segment that may match; none if there is no index of it: any may.
    pub(crate) fn candidates(
        &self,
        key: SegmentKey,
        ids: Range<u64>,
        query: &TextQuery,
        meter: &mut Meter<'_>,
    ) -> Result<Option<Candidates>, Error> {
        // Tantivy checks the sums of its files only when it is asked to, and can panic on what a bad disk made of them.
        let found = panic::catch_unwind(AssertUnwindSafe(|| match self.reader(key)? {
            Some((reader, indexed)) => Candidates::find(&reader.searcher(), indexed, ids, query, meter).map(Some),
            None => Ok(None),
        }));
        let found = found.unwrap_or_else(|_| Err(TantivyError::InternalError("it panicked".to_owned()).into()));
        found.or_else(|error| match error {
            FindError::Ended(error) => Err(error),
            FindError::Index(error) => {
                self.note_damage(key, &error);
                Ok(None)
            }
        })
    }

    /// A reader of an index, and the id up to which it has the rows.
    fn reader(&self, key: SegmentKey) -> Result<Option<(IndexReader, u64)>, TantivyError> {
        let mut state = self.state.lock();
        state.uses += 1;
        let now = state.uses;
        let open = state.segments.values().filter(|segment| segment.reader.is_some());
        let oldest = open.clone().map(|segment| segment.last_use).min().filter(|_| open.count() >= MAX_READERS);
        let Some(segment) = state.segments.get_mut(&key).filter(|segment| !segment.is_damaged) else { return Ok(None) };
        segment.last_use = now;
        let indexed = segment.indexed;
        if let Some(reader) = &segment.reader {
            return Ok(Some((reader.clone(), indexed)));
        }
        // Opened with the lock held, so that a commit meanwhile is not missed.
        let reader = index::reader(&self.open_locked(key, segment)?)?;
        segment.reader = Some(reader.clone());
        for segment in state.segments.values_mut().filter(|segment| Some(segment.last_use) == oldest) {
            segment.reader = None;
        }
        Ok(Some((reader, indexed)))
    }

    /// The index of a known segment.
    fn open(&self, key: SegmentKey) -> Result<Index, TantivyError> {
        let state = self.state.lock();
        let segment =
            state.segments.get(&key).ok_or_else(|| TantivyError::InternalError("no such index".to_owned()))?;
        self.open_locked(key, segment)
    }

    fn open_locked(&self, key: SegmentKey, segment: &Segment) -> Result<Index, TantivyError> {
        match (&segment.in_memory, self.dir_of(key)) {
            (Some(index), _) => Ok(index.clone()),
            (None, Some(dir)) => index::open(&dir),
            (None, None) => Err(TantivyError::InternalError("no such index".to_owned())),
        }
    }

    fn note_damage(&self, key: SegmentKey, error: &TantivyError) {
        let mut state = self.state.lock();
        state.errors += 1;
        if let Some(segment) = state.segments.get_mut(&key) {
            tracing::warn!(node = key.0, segment = key.1, %error, "a full-text index cannot be read and is made anew");
            segment.is_damaged = true;
            segment.reader = None;
        }
    }

    /// Makes known up to which id a segment is indexed, all of it committed.
    fn publish(&self, key: SegmentKey, indexed: u64, in_memory: Option<&Index>) -> Result<(), TantivyError> {
        let mut state = self.state.lock();
        let segment = state.segments.entry(key).or_insert_with(|| Segment {
            indexed,
            in_memory: in_memory.cloned(),
            reader: None,
            last_use: 0,
            is_damaged: false,
        });
        if let Some(reader) = &segment.reader {
            reader.reload()?;
        }
        segment.indexed = indexed;
        Ok(())
    }

    /// Rows of a segment below this id are indexed; none if nothing is known of it, or it is damaged.
    fn indexed(&self, key: SegmentKey) -> Option<u64> {
        let state = self.state.lock();
        state.segments.get(&key).filter(|segment| !segment.is_damaged).map(|segment| segment.indexed)
    }

    /// Forgets the index of a segment, and deletes its files.
    fn remove(&self, key: SegmentKey) -> Result<(), Error> {
        self.state.lock().segments.remove(&key);
        match self.dir_of(key) {
            Some(dir) => remove_dir(&dir),
            None => Ok(()),
        }
    }

    /// The segments with an index.
    fn known(&self) -> Vec<SegmentKey> {
        self.state.lock().segments.keys().copied().collect()
    }

    fn dir_of(&self, (node, segment): SegmentKey) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(node.to_string()).join(segment.to_string()))
    }

    /// How many of the rows of a segment are not indexed.
    pub(crate) fn pending(&self, key: SegmentKey, ids: &Range<u64>) -> u64 {
        ids.end.saturating_sub(self.indexed(key).unwrap_or(0).max(ids.start))
    }

    fn count_error(&self) {
        self.state.lock().errors += 1;
    }

    /// Failures of writing or reading an index. Each is tried again.
    pub(crate) fn errors(&self) -> u64 {
        self.state.lock().errors
    }
}

/// Removes a directory that may be absent.
fn remove_dir(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(dir)(error)),
        _ => Ok(()),
    }
}
