//! The thread that indexes rows once they are readable.
//!
//! It goes round the nodes by turns. A turn takes some rows of the newest segment of a node that is not fully indexed, and some
//! of the oldest one, so that new rows are searched quickly while old indexes are made anew; then it commits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tantivy::TantivyError;

use super::{
    SegmentKey, TextIndexes,
    index::{self, Writer},
    remove_dir,
};
use crate::{
    Error,
    engine::Engine,
    keys,
    kind::{FactKind, decode_row},
    schema::Schema,
    view::{NodeView, Reader, Views},
    watch::{Subscription, Watch},
};

/// Time between two rounds over the nodes, if all is indexed.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// Time until something that failed is tried again, and until an index that a query could not read is noticed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Indexes that are open for writing.
pub(super) const MAX_WRITERS: usize = 4;

/// Bytes of text in a turn. They wait in memory for the thread that splits them into words.
const TURN_BYTES: usize = 4 << 20;

/// What a row counts besides its text.
const ROW_BYTES: usize = 64;

/// The running thread; it ends when this is dropped.
pub(crate) struct Indexer {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    _subscription: Subscription,
}

#[derive(Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_stopping: bool,
    has_news: bool,
}

impl Signal {
    fn set(&self, set: impl FnOnce(&mut SignalState)) {
        set(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().is_stopping
    }

    /// Waits for [`INTERVAL`], then for news, at most for [`RETRY_INTERVAL`]. Gives whether to go on.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.is_stopping, INTERVAL);
        let is_idle = |state: &mut SignalState| !state.is_stopping && !state.has_news;
        self.changed.wait_while_for(&mut state, is_idle, RETRY_INTERVAL);
        state.has_news = false;
        !state.is_stopping
    }
}

impl Indexer {
    /// Starts the thread for the kinds that have text, at most one of each retention class. It writes nothing while fewer bytes
    /// than `min_free_bytes` are free.
    pub(crate) fn start(
        (engine, views, indexes): (Arc<dyn Engine>, Arc<Views>, Arc<TextIndexes>),
        watch: &Arc<Watch>,
        schema: Schema,
        min_free_bytes: u64,
    ) -> Result<Self, Error> {
        let signal = Arc::new(Signal::default());
        let news = Arc::clone(&signal);
        let subscription = watch.subscribe(Arc::new(move || news.set(|state| state.has_news = true)));
        let kinds: Vec<_> = schema.iter().copied().filter(|kind| kind.text.is_some()).collect();
        let of_view = |view: &Arc<NodeView>| kinds.iter().flat_map(|kind| segments(view, kind)).collect::<Vec<_>>();
        let left = views.all().iter().flat_map(of_view).map(|(key, ids)| (key, ids.end)).collect();
        let mut rounds = Rounds {
            engine,
            views,
            indexes,
            kinds,
            left,
            min_free_bytes,
            writers: Vec::new(),
            signal: Arc::clone(&signal),
            is_swept: false,
            is_failing: false,
        };
        let thread = thread::Builder::new()
            .name("text-indexer".to_owned())
            .spawn(move || rounds.run())
            .map_err(|error| Error::Engine(format!("a thread cannot be started: {error}")))?;
        Ok(Self { signal, thread: Some(thread), _subscription: subscription })
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.signal.set(|state| state.is_stopping = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the full-text indexer has panicked");
        }
    }
}

/// Why rows were not indexed.
#[derive(Debug, thiserror::Error)]
enum IndexError {
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Index(#[from] TantivyError),
}

struct Rounds {
    engine: Arc<dyn Engine>,
    views: Arc<Views>,
    indexes: Arc<TextIndexes>,
    kinds: Vec<&'static FactKind>,
    min_free_bytes: u64,
    /// Segments of which an earlier process may have left an index, with the end of their ids at that time.
    left: BTreeMap<SegmentKey, u64>,
    /// The one that was used last is the last one.
    writers: Vec<(SegmentKey, Writer)>,
    signal: Arc<Signal>,
    /// What an earlier process left over is removed.
    is_swept: bool,
    /// The last round failed, and it was logged.
    is_failing: bool,
}

/// What a turn did.
enum Turn {
    /// Nothing: the segment is gone.
    Stuck,
    /// More rows are to be indexed.
    Partial,
    /// All rows are indexed.
    Complete,
}

/// What a round found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundOutcome {
    /// All is indexed.
    Done,
    /// More rows or segments than there were turns.
    More,
    /// Something failed.
    Failed,
}

impl Rounds {
    fn run(&mut self) {
        loop {
            let goes_on = match self.round() {
                RoundOutcome::More => !self.signal.is_stopping(),
                RoundOutcome::Done | RoundOutcome::Failed => self.signal.wait(),
            };
            if !goes_on {
                return;
            }
        }
    }

    fn round(&mut self) -> RoundOutcome {
        let views = self.views.all();
        let (mut round, mut has_more) = (RoundOutcome::Done, false);
        if let Err(error) = self.remove_evicted(&views) {
            round = self.failed(None, &error);
        }
        let free_bytes = self.engine.free_bytes();
        if let Err(error) = free_bytes.and_then(|free_bytes| match free_bytes < self.min_free_bytes {
            true => Err(Error::DiskFull { free_bytes }),
            false => Ok(()),
        }) {
            return self.failed(None, &error.into());
        }
        for view in &views {
            for kind in self.kinds.clone() {
                let pending = self.pending(view, kind);
                let (oldest, newest) = (pending.first(), pending.get(1..).and_then(<[_]>::last));
                for (key, ids) in newest.into_iter().chain(oldest) {
                    if self.signal.is_stopping() {
                        return RoundOutcome::Done;
                    }
                    match self.turn(view, kind, *key, ids.clone()) {
                        Ok(Turn::Stuck) => {}
                        Ok(Turn::Complete) if pending.len() <= 2 => {}
                        Ok(Turn::Partial | Turn::Complete) => has_more = true,
                        Err(error) => round = self.failed(Some(*key), &error),
                    }
                }
            }
        }
        self.is_failing = round == RoundOutcome::Failed;
        if round == RoundOutcome::Done && has_more { RoundOutcome::More } else { round }
    }

    fn failed(&mut self, key: Option<SegmentKey>, error: &IndexError) -> RoundOutcome {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(?key, %error, "full-text indexes fall behind; searches read the rows instead");
        }
        self.indexes.count_error();
        self.writers.retain(|(open, _)| Some(*open) != key);
        RoundOutcome::Failed
    }

    /// The segments of a node that are not fully indexed, oldest first.
    fn pending(&self, view: &NodeView, kind: &FactKind) -> Vec<(SegmentKey, Range<u64>)> {
        segments(view, kind).filter(|(key, ids)| self.indexes.pending(*key, ids) > 0).collect()
    }

    /// Drops the indexes whose segment is gone; at the beginning, those that an earlier process left, too.
    fn remove_evicted(&mut self, views: &[Arc<NodeView>]) -> Result<(), IndexError> {
        let of_view = |view: &Arc<NodeView>| {
            let segments = self.kinds.iter().flat_map(|kind| view.segments(kind.retention));
            (view.number, segments.map(|segment| segment.number).collect::<BTreeSet<_>>())
        };
        let live: BTreeMap<u32, BTreeSet<u32>> = views.iter().map(of_view).collect();
        let is_live = |(node, segment): &SegmentKey| live.get(node).is_some_and(|segments| segments.contains(segment));
        self.writers.retain(|(key, _)| is_live(key));
        for key in self.indexes.known().into_iter().filter(|key| !is_live(key)) {
            self.indexes.remove(key)?;
        }
        let Some(dir) = self.indexes.dir.as_ref().filter(|_| !self.is_swept) else { return Ok(()) };
        for node in numbered(dir)? {
            let of_node = dir.join(node.to_string());
            for segment in numbered(&of_node)?.into_iter().filter(|segment| !is_live(&(node, *segment))) {
                remove_dir(&of_node.join(segment.to_string()))?;
            }
            if live.get(&node).is_none_or(BTreeSet::is_empty) {
                remove_dir(&of_node)?;
            }
        }
        self.is_swept = true;
        Ok(())
    }

    /// Indexes some rows of a segment.
    fn turn(&mut self, view: &NodeView, kind: &FactKind, key: SegmentKey, ids: Range<u64>) -> Result<Turn, IndexError> {
        let engine = Arc::clone(&self.engine);
        let Some(reader) = self.views.reader(&*engine, &view.name) else { return Ok(Turn::Stuck) };
        let is_open = || segments(view, kind).last().is_some_and(|(last, _)| last == key);
        let indexed = match self.indexes.indexed(key) {
            Some(indexed) => indexed,
            None => self.adopt(key, &ids, is_open())?,
        };
        if indexed >= ids.end {
            return Ok(Turn::Complete);
        }
        let writer = self.writer(key)?;
        let next_id = add_rows(&reader, kind, key, indexed..ids.end, writer)?;
        writer.commit(next_id)?;
        self.indexes.publish(key, next_id, None)?;
        Ok(if next_id == ids.end {
            Turn::Complete
        } else if next_id > indexed {
            Turn::Partial
        } else {
            Turn::Stuck
        })
    }

    /// Takes over the index that an earlier process left, or begins one; gives the id up to which it has the rows.
    fn adopt(&mut self, key: SegmentKey, ids: &Range<u64>, is_open: bool) -> Result<u64, IndexError> {
        self.writers.retain(|(open, _)| *open != key);
        let Some(dir) = self.indexes.dir_of(key) else {
            self.indexes.remove(key)?;
            self.indexes.publish(key, ids.start, Some(&index::in_memory()))?;
            return Ok(ids.start);
        };
        let found = self.left.remove(&key).and_then(|end| Some((index::open(&dir).ok()?, end)));
        let indexed = found.and_then(|(index, end)| {
            let indexed = index::indexed(&index, ids.start).filter(|indexed| (ids.start..=end).contains(indexed))?;
            // One that was being written when its process ended is read whole.
            let is_complete = indexed == ids.end && !is_open;
            (is_complete || index::is_intact(&index)).then_some(indexed)
        });
        if indexed.is_none() {
            self.indexes.remove(key)?;
            fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
            index::create(&dir)?;
        }
        let indexed = indexed.unwrap_or(ids.start);
        self.indexes.publish(key, indexed, None)?;
        Ok(indexed)
    }

    /// The writer of an index. Another one is closed for it if there are too many.
    fn writer(&mut self, key: SegmentKey) -> Result<&mut Writer, IndexError> {
        let writer = match self.writers.iter().position(|(open, _)| *open == key) {
            Some(at) => self.writers.remove(at).1,
            None => {
                if self.writers.len() >= MAX_WRITERS {
                    self.writers.remove(0).1.close()?;
                }
                let index = self.indexes.open(key).inspect_err(|error| self.indexes.note_damage(key, error))?;
                Writer::new(&index)?
            }
        };
        let at = self.writers.len();
        self.writers.push((key, writer));
        Ok(&mut self.writers[at].1)
    }
}

/// The segments of a node, with the ids of a kind.
fn segments(view: &NodeView, kind: &FactKind) -> impl Iterator<Item = (SegmentKey, Range<u64>)> {
    let segments = view.segments(kind.retention).iter();
    segments.map(|segment| ((view.number, segment.number), segment.ids(kind.table)))
}

/// Adds rows to an index, up to the bytes of a turn; gives the id of the first one that is not added.
fn add_rows(
    reader: &Reader<'_>,
    kind: &FactKind,
    (node, segment): SegmentKey,
    ids: Range<u64>,
    writer: &Writer,
) -> Result<u64, IndexError> {
    let range = keys::table_range(node, segment, kind.table);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    cursor.seek(&keys::row(node, segment, kind.table, ids.start))?;
    let mut bytes = 0;
    for id in ids.clone() {
        // A segment that was evicted meanwhile has no rows.
        let Some((_, value)) = cursor.entry().filter(|(key, _)| keys::last_number(key) == Some(id)) else {
            return Ok(id);
        };
        let (_, record) = decode_row(value)?;
        let text = kind.text.map(|text| text(&record)).unwrap_or_default();
        writer.add(id, &text)?;
        bytes += text.len() + ROW_BYTES;
        if bytes >= TURN_BYTES {
            return Ok(id + 1);
        }
        cursor.next()?;
    }
    Ok(ids.end)
}

/// The entries of a directory that are numbers; none if it is absent.
fn numbered(dir: &Path) -> Result<Vec<u32>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(dir)(error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io(dir))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}
