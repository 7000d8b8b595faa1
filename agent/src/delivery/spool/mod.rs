//! The spool: records on disk until the aggregator has them, a lane a node.
//!
//! ```text
//!   lanes (memory) ──▶ writer ──▶ │ acknowledged ▏ may have been sent ▏ never sent      ▏ being written │
//!                                    deleted        *-FIRST.out, kept    *.seg, may be     last file,
//!                                                   whatever happens     dropped for room  not always synced
//! ```
//!
//! `agent/spool/EPOCH/NUMBER/` is a lane: `node` names it, the other files are its segments ([`segment`]).
//!
//! **When a record counts.** The writer takes what gathered in memory, at most 100 ms or 1 MiB, appends it and syncs the
//! file; only then the record has entered the spool, and only what has entered is sent. So whatever an aggregator or a
//! network still holds is on this disk, the same bytes under the same number, after a kill or a power cut too. What had
//! not entered is the interval of the loss `agent restarted`.
//!
//! **Numbers.** A record's number is its segment's first number plus its place. The first number is in the file's name,
//! which is changed, and the folder synced, before anything of the segment is sent: from then on the segment is kept
//! until it is acknowledged. Segments before that have no numbers, so the oldest of them can go when the disk's share is
//! used up: a segment of losses takes their place (one rename; its header says which segments it stands for), and the
//! numbers go on behind it without a hole. At most a window of bytes is numbered and not acknowledged, so there is nearly
//! always something that can go. A lane whose segments are all acknowledged and deleted asks the aggregator for its
//! number.
//!
//! **What cannot be read.** The last file is cut behind its last whole record: what follows was never synced. In the
//! middle, where the numbers of a damaged part are known, each lost record becomes a loss under its own number, so that
//! it is right whether the aggregator has the original or not; where it has no numbers yet, one loss of unknown amount
//! takes its place.
//!
//! **Whose turn.** Each lane is sure of its share, the limit divided by the number of lanes; more is lent as long as
//! nobody needs it. What does not fit takes the oldest of the largest lane above its share, or of the lane itself. Lanes
//! of nodes that are configured no more are kept, for only they know that the aggregator has to be asked for their
//! number; once they are empty they have no share.

mod content;
mod files;
mod lane;
mod reading;
mod recover;
mod segment;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::{Batch, LaneMark, Record};
use content::Content;
use lane::Lane;

use crate::{
    Error,
    delivery::lanes::{AckError, BATCH_BYTES, LaneStatus, after},
    folder::Epoch,
};

/// Size at which a segment is closed, at most.
const SEGMENT: u64 = 4 << 20;
/// Most bytes of a lane that are numbered and not acknowledged.
const WINDOW: u64 = 16 << 20;

/// The spool of one agent.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    limit: u64,
    lanes: BTreeMap<String, Lane>,
    /// Nodes that records are expected of: their lanes have a share, whatever they hold.
    expected: BTreeSet<String>,
    next_number: u32,
    /// Nodes of which an earlier epoch left records, to be told in their lanes.
    left_behind: BTreeSet<String>,
    served: String,
    now_ns: i64,
}

impl Spool {
    /// Whether a spool was ever opened in a folder.
    pub(crate) fn is_in(folder: &Path) -> bool {
        folder.join("spool").exists()
    }

    /// Opens the spool in a folder, whatever ended the last process.
    pub(crate) fn open(folder: &Path, epoch: &Epoch, limit: u64, now_ns: i64) -> Result<Self, Error> {
        let root = folder.join("spool");
        let name: String = epoch.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = root.join(&name);
        files::make_dir(&dir).map_err(Error::file(&dir))?;
        let mut spool = Self {
            dir: dir.clone(),
            limit,
            lanes: BTreeMap::new(),
            expected: BTreeSet::new(),
            next_number: 0,
            left_behind: BTreeSet::new(),
            served: String::new(),
            now_ns,
        };
        spool.leave_behind(&root, &name).map_err(Error::file(&root))?;
        spool.load().map_err(Error::file(&dir))?;
        Ok(spool)
    }

    /// Spools of other epochs: nobody could tell their numbers from this one's.
    fn leave_behind(&mut self, root: &Path, own: &str) -> io::Result<()> {
        for item in fs::read_dir(root)? {
            let item = item?;
            if item.file_name().to_str() == Some(own) || !item.file_type()?.is_dir() {
                continue;
            }
            tracing::warn!(path = %item.path().display(), "the spool of another epoch is removed");
            for lane in fs::read_dir(item.path())? {
                let lane = lane?.path();
                if files::has_segments(&lane) {
                    self.left_behind.extend(node_of(&lane));
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
            let (Some(number), Some(node)) = (number, node_of(&path)) else {
                // A lane that was not finished to be made.
                fs::remove_dir_all(&path)?;
                continue;
            };
            self.next_number = self.next_number.max(number.saturating_add(1));
            let lane = match Lane::open(node.clone(), path.clone(), false, self.now_ns) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::error!(%error, node, "the spool of this node cannot be used: it begins anew");
                    fs::remove_dir_all(&path)?;
                    make_lane(&self.dir, &path, &node)?;
                    let mut lane = Lane::open(node.clone(), path, false, self.now_ns)?;
                    lane.owe(Content::unknown("spool damaged", self.now_ns), "");
                    lane
                }
                other => other?,
            };
            self.add(lane);
        }
        Ok(())
    }

    fn add(&mut self, mut lane: Lane) {
        if self.left_behind.remove(&lane.node) {
            lane.owe(Content::unknown("spool of another epoch", self.now_ns), "");
        }
        self.expected.insert(lane.node.clone());
        self.lanes.insert(lane.node.clone(), lane);
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.lanes.contains_key(node)
    }

    /// Adds a lane. `is_known`: the epoch had it before, so that only the aggregator knows where it stands.
    pub(crate) fn open_lane(&mut self, node: &str, is_known: bool) -> Result<(), Error> {
        if self.has(node) {
            return Ok(());
        }
        let path = self.dir.join(format!("{:08x}", self.next_number));
        let made = make_lane(&self.dir, &path, node);
        let lane = made.and_then(|()| Lane::open(node.to_owned(), path.clone(), !is_known, self.now_ns));
        self.add(lane.map_err(Error::file(&path))?);
        self.next_number = self.next_number.saturating_add(1);
        Ok(())
    }

    /// Says which nodes records are expected of, from now on; until then it is every node with a lane.
    pub(crate) fn expect(&mut self, nodes: &BTreeSet<String>) {
        self.expected.clone_from(nodes);
        for lane in self.lanes.iter_mut().filter(|(node, _)| !nodes.contains(*node)).map(|(_, lane)| lane) {
            lane.vacate();
        }
    }

    fn share(&self) -> u64 {
        let has_share =
            |(node, lane): &(&String, &Lane)| self.expected.contains(*node) || lane.bytes() > 0 || !lane.is_empty();
        self.limit / self.lanes.iter().filter(has_share).count().max(1) as u64
    }

    fn segment_bytes(&self) -> u64 {
        (self.share() / 8).min(SEGMENT)
    }

    fn window(&self) -> u64 {
        (self.share() / 4).min(WINDOW)
    }

    fn bytes(&self) -> u64 {
        self.lanes.values().map(Lane::bytes).sum()
    }

    /// Takes records in, or counts them as lost. They count once [`Self::synced`] is told so.
    pub(crate) fn append(&mut self, node: &str, records: &[Record]) {
        if !self.has(node) {
            return;
        }
        if !self.expected.contains(node) {
            // It comes all the same: it has a share at least until it is empty again.
            self.expected.insert(node.to_owned());
        }
        let size: usize = records.iter().map(|record| prost::Message::encoded_len(record) + segment::ENTRY).sum();
        let has_room = self.make_room(node, size as u64);
        let segment_bytes = self.segment_bytes();
        let Some(lane) = self.lanes.get_mut(node) else { return };
        if !has_room {
            lane.lose(records, "spool full");
            return;
        }
        if let Err(error) = lane.append(records, segment_bytes) {
            let reason = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "disk full",
                _ => "write error",
            };
            warn_limited!(node, %error, "records are dropped: the spool cannot be written");
            lane.lose(records, reason);
        }
    }

    /// Writes losses that are not told yet, as far as the disk takes them.
    pub(crate) fn tell_owed(&mut self) {
        let owing = self.lanes.values().filter(|lane| lane.owed_ns().is_some()).map(|lane| lane.node.clone());
        for node in owing.collect::<Vec<_>>() {
            self.append(&node, &[]);
        }
    }

    /// Lets the oldest records go until so many bytes more are within the limit.
    fn make_room(&mut self, node: &str, more: u64) -> bool {
        let share = self.share();
        while self.bytes() + more > self.limit {
            let excess = self.bytes() + more - self.limit;
            let mut candidates: Vec<(u64, String)> = self
                .lanes
                .iter()
                .filter(|(name, lane)| *name == node || lane.bytes() > share)
                .map(|(name, lane)| (lane.bytes(), name.clone()))
                .collect();
            candidates.sort_by(|a, b| b.cmp(a));
            let freed = candidates.iter().find_map(|(_, name)| {
                let lane = self.lanes.get_mut(name)?;
                let freed = lane.drop_oldest(excess.max(share / 16)).unwrap_or_else(|error| {
                    warn_limited!(node = %name, %error, "the oldest of the spool cannot be dropped");
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

    /// What was written and is not synced, by node.
    pub(crate) fn unsynced(&self) -> Vec<(String, lane::Unsynced)> {
        self.lanes.iter().filter_map(|(node, lane)| Some((node.clone(), lane.unsynced()?))).collect()
    }

    pub(crate) fn synced(&mut self, node: &str, is_done: bool) {
        if let Some(lane) = self.lanes.get_mut(node) {
            lane.synced(is_done);
        }
    }

    /// The next batch to send in this stream, of the next lane in turn.
    pub(crate) fn next_batch(&mut self, aside: &BTreeSet<String>) -> Option<Batch> {
        let window = self.window();
        for node in after(&self.lanes, &self.served) {
            let Some(lane) = self.lanes.get_mut(&node).filter(|_| !aside.contains(&node)) else { continue };
            match lane.take(BATCH_BYTES - node.len() - 64, window) {
                Ok(Some((first_sequence, records))) => {
                    self.served.clone_from(&node);
                    return Some(Batch { node, first_sequence, records });
                }
                Ok(None) => {}
                Err(error) => warn_limited!(node, %error, "the spool cannot be read"),
            }
        }
        None
    }

    pub(crate) fn acknowledge(&mut self, node: &str, next: u64) -> Result<(), AckError> {
        let Some(lane) = self.lanes.get_mut(node) else { return Ok(()) };
        lane.acknowledge(next).map_err(|sent| AckError { node: node.to_owned(), next, sent })
    }

    /// As of the lanes in memory.
    pub(crate) fn welcome(&mut self, marks: &[LaneMark], asked: &[String]) -> Vec<String> {
        let mut others = Vec::new();
        for (node, lane) in &mut self.lanes {
            let mark = match marks.iter().find(|mark| mark.node == *node) {
                Some(mark) => mark.next_sequence,
                None if asked.contains(node) => 0,
                None => lane.base().unwrap_or(0),
            };
            match lane.welcome(mark) {
                Ok(is_other) if is_other => others.push(node.clone()),
                Ok(_) => {}
                Err(error) => warn_limited!(node, %error, "the spool cannot be numbered anew"),
            }
        }
        others
    }

    /// Sends what is not acknowledged of a lane again.
    pub(crate) fn rewind(&mut self, node: &str) {
        if let Some(lane) = self.lanes.get_mut(node) {
            lane.rewind();
        }
    }

    /// Time of the oldest record that is not acknowledged, about.
    pub(crate) fn oldest_ns(&self) -> Option<i64> {
        self.lanes.values().filter_map(Lane::oldest_ns).min()
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        self.lanes.keys().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.values().all(Lane::is_empty)
    }

    /// Time of the earliest loss that is not on disk yet.
    pub(crate) fn owed_ns(&self) -> Option<i64> {
        self.lanes.values().filter_map(Lane::owed_ns).min()
    }

    /// Records that were dropped since the process began, by node, where there are any.
    pub(crate) fn dropped(&self) -> BTreeMap<String, u64> {
        let dropped = self.lanes.iter().map(|(node, lane)| (node.clone(), lane.dropped().records));
        dropped.filter(|(_, records)| *records > 0).collect()
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        let status = |(node, lane): (&String, &Lane)| LaneStatus {
            node: node.clone(),
            next_sequence: lane.next_sequence(),
            pending_records: usize::try_from(lane.pending()).unwrap_or(usize::MAX),
            pending_bytes: usize::try_from(lane.bytes()).unwrap_or(usize::MAX),
            dropped: lane.dropped(),
        };
        self.lanes.iter().map(status).collect()
    }
}

fn node_of(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join("node")).ok().filter(|node| !node.is_empty())
}

/// Makes the folder of a lane: whole, or one that is recognised as not finished.
fn make_lane(root: &Path, path: &Path, node: &str) -> io::Result<()> {
    files::make_dir(path)?;
    files::replace(path, "node", node.as_bytes())?;
    files::sync_dir(root)
}
