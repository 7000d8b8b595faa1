//! The spool: record streams on disk until the aggregator has acknowledged them.
//!
//! ```text
//!   memory queue ──▶ spool writer ──▶ │ acknowledged ▏ may have been sent ▏ never sent     ▏ being written │
//!                                       deleted        *-FIRST.out, kept    *.seg, may be    last file,
//!                                                      until acknowledged   dropped          not always synced
//! ```
//!
//! `agent/spool/EPOCH/NUMBER/` is the directory of a stream: the file `node` has its name, the other files are its
//! segments ([`format`]).
//!
//! **Durability.** The spool writer appends the records that gathered in memory, for at most 100 ms or about 1 MiB, and
//! syncs the file. Only synced records are sent. Records that an aggregator or a network still holds are therefore on this
//! disk, with the same bytes and sequence numbers, after a kill or a power cut. Records that were not synced are in the
//! interval of the loss `agent restarted`.
//!
//! **Sequence numbers.** The sequence of a record is the first sequence of its segment plus its position. The first
//! sequence is in the name of the file. The file is renamed and the directory synced before any record of the segment is
//! sent; from then on the segment is kept until it is acknowledged. Segments that were never sent have no sequence numbers.
//! The oldest of them can be dropped when the spool is full: one segment of losses replaces them (a rename; its header
//! names the segments that it replaces), and the sequence stays dense. At most a window of bytes has sequence numbers and
//! is not acknowledged, so that there are nearly always segments that can be dropped. A stream without segments continues
//! at the aggregator's high-water mark.
//!
//! **Damage.** The last file is cut after its last valid record: the rest was never synced. In other files each unreadable
//! record becomes a loss under its own sequence number, where the number is known: that is right whether the aggregator
//! has the original or not. Where there are no sequence numbers yet, one loss of unknown amount takes the place of the
//! unreadable records ([`recover`]). What the disk cannot read is unreadable too. Other errors of reading, such as too many
//! open files, damage nothing: the file is read again for the next batch, or the start of the agent fails.
//!
//! **Shares.** The share of a stream is the limit divided by the number of streams. A stream may exceed its share as long
//! as the spool is not full. A full spool drops the oldest segments of the largest stream above its share, or of the
//! stream that is appended to. The directory of a stream whose node is not configured any more is kept, because it records
//! that the stream continues at the aggregator's mark; an empty one has no share.

mod files;
mod format;
pub mod fuzzing;
mod reading;
mod recover;
mod segment;
mod stream;
mod summary;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::{Batch, HighWaterMark, Record};
use recover::DAMAGED;
use stream::SpooledStream;
use summary::RecordSummary;

use crate::{
    Error,
    delivery::{
        batch::max_record_bytes,
        stream::{AckError, BufferedStream, StreamBuffer, StreamStatus, StreamTable, continue_at},
    },
    folder::Epoch,
};

/// Length at which a segment is closed, at most.
const MAX_SEGMENT_BYTES: u64 = 4 << 20;
/// Maximum bytes of a stream that have sequence numbers and are not acknowledged.
const MAX_WINDOW_BYTES: u64 = 16 << 20;

/// The spool of one agent.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    limit: u64,
    streams: StreamTable<SpooledStream>,
    next_number: u32,
    /// Nodes whose records of an earlier epoch were removed; their streams get a loss when they are opened.
    abandoned: BTreeSet<String>,
    /// Among them is one whose name could not be read: it can be any, so that each stream gets the loss.
    has_abandoned_unnamed: bool,
    /// Records of a node whose name could not be read were removed: the streams that were there before and are not now get a
    /// loss when they are opened.
    has_lost_name: bool,
    now_ns: i64,
}

impl Spool {
    /// Whether a spool was ever opened in the folder.
    pub(crate) fn is_in(folder: &Path) -> bool {
        folder.join("spool").exists()
    }

    /// Opens and repairs the spool in the folder.
    pub(crate) fn open(folder: &Path, epoch: &Epoch, limit: u64, now_ns: i64) -> Result<Self, Error> {
        let root = folder.join("spool");
        let name: String = epoch.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = root.join(&name);
        files::make_dir(&dir).map_err(Error::file(&dir))?;
        let mut spool = Self {
            dir: dir.clone(),
            limit,
            streams: StreamTable::new(),
            next_number: 0,
            abandoned: BTreeSet::new(),
            has_abandoned_unnamed: false,
            has_lost_name: false,
            now_ns,
        };
        spool.remove_other_epochs(&root, &name).map_err(Error::file(&root))?;
        spool.load().map_err(Error::file(&dir))?;
        Ok(spool)
    }

    /// Removes the spools of other epochs: their sequence numbers are of other streams.
    fn remove_other_epochs(&mut self, root: &Path, own: &str) -> io::Result<()> {
        for item in fs::read_dir(root)? {
            let item = item?;
            if item.file_name().to_str() == Some(own) || !item.file_type()?.is_dir() {
                continue;
            }
            tracing::warn!(path = %item.path().display(), "the spool of another epoch is removed");
            for stream in fs::read_dir(item.path())? {
                let stream = stream?.path();
                if files::has_segments(&stream) {
                    let node = node_of(&stream)?;
                    self.has_abandoned_unnamed |= node.is_none();
                    self.abandoned.extend(node);
                }
            }
            fs::remove_dir_all(item.path())?;
        }
        Ok(())
    }

    fn load(&mut self) -> io::Result<()> {
        for item in fs::read_dir(&self.dir)? {
            let path = item?.path();
            let number =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| u32::from_str_radix(name, 16).ok());
            let (Some(number), Some(node)) = (number, node_of(&path)?) else {
                // Without segments the process ended before the directory was complete.
                self.has_lost_name |= files::has_segments(&path);
                fs::remove_dir_all(&path)?;
                continue;
            };
            self.next_number = self.next_number.max(number.saturating_add(1));
            let stream = match SpooledStream::open(node.clone(), path.clone(), false, self.now_ns) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::error!(%error, node, "the spool of this node cannot be used and is replaced by an empty one");
                    fs::remove_dir_all(&path)?;
                    create_stream_dir(&self.dir, &path, &node)?;
                    let mut stream = SpooledStream::open(node.clone(), path, false, self.now_ns)?;
                    stream.add_loss(RecordSummary::unknown_loss(DAMAGED, self.now_ns), "");
                    stream
                }
                other => other?,
            };
            self.add(stream);
        }
        Ok(())
    }

    fn add(&mut self, mut stream: SpooledStream) {
        if self.abandoned.remove(&stream.node) || self.has_abandoned_unnamed {
            stream.add_loss(RecordSummary::unknown_loss("spool of another epoch", self.now_ns), "");
        }
        let node = stream.node.clone();
        self.streams.insert(&node, || stream);
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.streams.contains(node)
    }

    /// Adds a stream. `is_known`: the epoch had it before, so that only the aggregator knows its high-water mark.
    pub(crate) fn open_stream(&mut self, node: &str, is_known: bool) -> Result<(), Error> {
        if self.has(node) {
            return Ok(());
        }
        let path = self.dir.join(format!("{:08x}", self.next_number));
        let created = create_stream_dir(&self.dir, &path, node);
        let stream = created.and_then(|()| SpooledStream::open(node.to_owned(), path.clone(), !is_known, self.now_ns));
        let mut stream = stream.map_err(Error::file(&path))?;
        if is_known && self.has_lost_name {
            stream.add_loss(RecordSummary::unknown_loss(DAMAGED, self.now_ns), "");
        }
        self.add(stream);
        self.next_number = self.next_number.saturating_add(1);
        Ok(())
    }

    /// Bytes that each stream may use whatever the others hold.
    fn share(&self) -> u64 {
        self.limit / self.streams.shares() as u64
    }

    /// Whether less than half of the node's share is in use, or all of it is acknowledged.
    pub(crate) fn has_room(&self, node: &str) -> bool {
        let stream = self.streams.by_node.get(node);
        stream.is_some_and(|stream| stream.is_empty() || stream.bytes() < self.share() / 2)
    }

    fn segment_bytes(&self) -> u64 {
        (self.share() / 8).min(MAX_SEGMENT_BYTES)
    }

    fn window(&self) -> u64 {
        (self.share() / 4).min(MAX_WINDOW_BYTES)
    }

    fn bytes(&self) -> u64 {
        self.streams.values().map(SpooledStream::bytes).sum()
    }

    /// Appends records, or drops them and adds a loss. They may be sent after [`Self::finish_sync`].
    pub(crate) fn append(&mut self, node: &str, records: &[Record]) {
        if !self.has(node) {
            return;
        }
        self.streams.expect_also(node);
        let size: usize =
            records.iter().map(|record| prost::Message::encoded_len(record) + format::ENTRY_HEADER_BYTES).sum();
        let fits = self.evict_for_space(node, size as u64);
        let segment_bytes = self.segment_bytes();
        let Some(stream) = self.streams.get_mut(node) else { return };
        if !fits {
            stream.drop_records(records, "spool full");
            return;
        }
        if let Err(error) = stream.append(records, segment_bytes) {
            let reason = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "disk full",
                _ => "write error",
            };
            warn_limited!(node, %error, "records are dropped: the spool cannot be written");
            stream.drop_records(records, reason);
        }
    }

    /// Writes the losses that are not written yet, unless the disk is full.
    pub(crate) fn write_pending_losses(&mut self) {
        let owing =
            self.streams.values().filter(|stream| stream.pending_loss_ns().is_some()).map(|stream| stream.node.clone());
        for node in owing.collect::<Vec<_>>() {
            self.append(&node, &[]);
        }
    }

    /// Drops the oldest records until `more` bytes fit within the limit. Returns false if that is impossible.
    fn evict_for_space(&mut self, node: &str, more: u64) -> bool {
        let share = self.share();
        while self.bytes() + more > self.limit {
            let excess = self.bytes() + more - self.limit;
            let mut candidates: Vec<(u64, String)> = self
                .streams
                .by_node
                .iter()
                .filter(|(name, stream)| *name == node || stream.bytes() > share)
                .map(|(name, stream)| (stream.bytes(), name.clone()))
                .collect();
            candidates.sort_by(|a, b| b.cmp(a));
            let freed = candidates.iter().find_map(|(_, name)| {
                let stream = self.streams.get_mut(name)?;
                let freed = stream.drop_oldest(excess.max(share / 16)).unwrap_or_else(|error| {
                    warn_limited!(node = %name, %error, "the oldest segments of the spool cannot be dropped");
                    0
                });
                (freed > 0).then_some(freed)
            });
            if freed.is_none() {
                return false;
            }
            warn_limited!(node, "the spool is full: the oldest records are dropped");
        }
        true
    }

    /// The syncs that the appended records need, by node.
    pub(crate) fn unsynced(&self) -> Vec<(String, segment::PendingSync)> {
        self.streams.by_node.iter().filter_map(|(node, stream)| Some((node.clone(), stream.unsynced()?))).collect()
    }

    /// Ends a sync: `is_done` is false if it failed.
    pub(crate) fn finish_sync(&mut self, node: &str, is_done: bool) {
        if let Some(stream) = self.streams.get_mut(node) {
            stream.finish_sync(is_done);
        }
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        self.streams.by_node.keys().cloned().collect()
    }

    /// Time of the earliest loss that is not written yet.
    pub(crate) fn pending_loss_ns(&self) -> Option<i64> {
        self.streams.values().filter_map(SpooledStream::pending_loss_ns).min()
    }

    /// Records that were dropped since the process started, by node, if there are any.
    pub(crate) fn dropped(&self) -> BTreeMap<String, u64> {
        let dropped = self.streams.by_node.iter().map(|(node, stream)| (node.clone(), stream.dropped().records));
        dropped.filter(|(_, records)| *records > 0).collect()
    }
}

impl BufferedStream for SpooledStream {
    fn is_in_use(&self) -> bool {
        self.bytes() > 0 || !self.is_empty()
    }
}

impl StreamBuffer for Spool {
    fn next_batch(&mut self, suspended: &BTreeSet<String>) -> Option<Batch> {
        let window = self.window();
        self.streams.next_batch(suspended, |node, stream| {
            stream.take(max_record_bytes(node), window).unwrap_or_else(|error| {
                warn_limited!(node, %error, "the spool cannot be read");
                None
            })
        })
    }

    fn acknowledge(&mut self, node: &str, next: u64) -> Result<(), AckError> {
        let Some(stream) = self.streams.get_mut(node) else { return Ok(()) };
        stream.acknowledge(next).map_err(|sent| AckError { node: node.to_owned(), next, sent })
    }

    fn begin_session(&mut self, marks: &[HighWaterMark], requested: &[String]) -> Vec<String> {
        let mut renumbered = Vec::new();
        for (node, stream) in &mut self.streams.by_node {
            match stream.restart(continue_at(node, marks, requested, stream.base())) {
                Ok(true) => renumbered.push(node.clone()),
                Ok(false) => {}
                Err(error) => warn_limited!(node, %error, "the spool cannot be renumbered"),
            }
        }
        renumbered
    }

    fn rewind(&mut self, node: &str) {
        if let Some(stream) = self.streams.get_mut(node) {
            stream.rewind();
        }
    }

    fn expect(&mut self, nodes: &BTreeSet<String>) {
        self.streams.expect(nodes);
        for stream in self.streams.by_node.iter_mut().filter(|(node, _)| !nodes.contains(*node)).map(|(_, s)| s) {
            stream.release();
        }
    }

    fn is_empty(&self) -> bool {
        self.streams.values().all(SpooledStream::is_empty)
    }

    fn oldest_ns(&self) -> Option<i64> {
        self.streams.values().filter_map(SpooledStream::oldest_ns).min()
    }

    fn status(&self) -> Vec<StreamStatus> {
        let status = |(node, stream): (&String, &SpooledStream)| StreamStatus {
            node: node.clone(),
            next_sequence: stream.next_sequence(),
            pending_records: usize::try_from(stream.pending()).unwrap_or(usize::MAX),
            pending_bytes: usize::try_from(stream.bytes()).unwrap_or(usize::MAX),
            dropped: stream.dropped(),
        };
        self.streams.by_node.iter().map(status).collect()
    }
}

/// The node in the file `node` of a stream's directory; none if the file is not there, incomplete or damaged.
fn node_of(dir: &Path) -> io::Result<Option<String>> {
    use io::ErrorKind as Kind;
    match fs::read_to_string(dir.join("node")) {
        Ok(node) => Ok(Some(node).filter(|node| !node.is_empty())),
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotADirectory | Kind::InvalidData) => Ok(None),
        Err(error) if files::is_disk_error(&error) => {
            tracing::error!(path = %dir.display(), %error, "the spool of a node cannot be used: its name cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Creates the directory of a stream. An incomplete one has no file `node` and is removed at the next start.
fn create_stream_dir(root: &Path, path: &Path, node: &str) -> io::Result<()> {
    files::make_dir(path)?;
    files::replace(path, "node", node.as_bytes())?;
    files::sync_dir(root)
}
