//! The lanes as the interpreter and the uplink share them, with a spool between the two or without, and what of them
//! lives in the data folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use chainscope_proto::v1::{Batch, LaneMark, Record};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::{AckError, LaneStatus, Lanes};
use crate::{
    Error,
    clock::realtime_ns,
    delivery::spool::{Spool, writer},
    folder::{Epoch, Folder},
};

/// Lanes behind a lock, with a bell for the uplink.
#[derive(Debug, Clone)]
pub(crate) struct SharedLanes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inner: Arc<Inner>,
    folder: Folder,
    epoch: Epoch,
    /// Lanes that the aggregator does not take at present.
    aside: Mutex<BTreeSet<String>>,
    /// Writes to the spool.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the spool's writer works with.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) lanes: Mutex<Lanes>,
    pub(crate) spool: Option<Mutex<Spool>>,
    /// Told when there may be something for the spool, and at closing.
    pub(crate) staged: Condvar,
    /// Rung when there may be something to send, and at closing.
    pub(crate) bell: Notify,
    closing: AtomicBool,
}

impl Inner {
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

impl SharedLanes {
    /// The lanes of this epoch so far, and those of `nodes`; with a spool of so many bytes, or in memory only.
    pub(crate) fn open<'a>(
        folder: &Folder,
        limit_bytes: usize,
        spool_bytes: Option<u64>,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        let epoch = folder.epoch()?;
        let mut lanes = Lanes::new(limit_bytes);
        let mut spool = match spool_bytes {
            Some(limit) => Some(Spool::open(folder.path(), &epoch, limit, realtime_ns())?),
            None => {
                if Spool::is_in(folder.path()) {
                    tracing::warn!("this run is without a spool: what an earlier one left there is not sent");
                }
                None
            }
        };
        for node in folder.lanes()? {
            match &mut spool {
                Some(spool) => {
                    spool.open_lane(&node, true)?;
                    lanes.open(&node, Some(0));
                }
                None => lanes.open(&node, None),
            }
        }
        let inner = Arc::new(Inner {
            lanes: Mutex::new(lanes),
            spool: spool.map(Mutex::new),
            staged: Condvar::new(),
            bell: Notify::new(),
            closing: AtomicBool::new(false),
        });
        let writer = match &inner.spool {
            Some(_) => Some(start_writer(&inner)?),
            None => None,
        };
        let (aside, writer) = (Mutex::default(), Mutex::new(writer));
        let shared = Self(Arc::new(Shared { inner, folder: folder.clone(), epoch, aside, writer }));
        for node in nodes {
            shared.open_lane(node)?;
        }
        Ok(shared)
    }

    /// Makes sure that a node has a lane. The name is on disk before the lane is used: only so is it known after a
    /// restart that the aggregator must be asked where the lane stands.
    pub(crate) fn open_lane(&self, node: &str) -> Result<(), Error> {
        let mut lanes = self.0.inner.lanes.lock();
        if lanes.has(node) {
            return Ok(());
        }
        self.0.folder.add_lane(node)?;
        if let Some(spool) = &self.0.inner.spool {
            spool.lock().open_lane(node, false)?;
        }
        lanes.open(node, Some(0));
        Ok(())
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.0.epoch
    }

    /// Says which nodes records are expected of: the room is shared among them, and lanes that hold something.
    pub(crate) fn expect(&self, nodes: &BTreeSet<String>) {
        self.0.inner.lanes.lock().expect(nodes);
        if let Some(spool) = &self.0.inner.spool {
            spool.lock().expect(nodes);
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.inner.lanes.lock().names()
    }

    /// Takes a fact; false if there was no room.
    pub(crate) fn push(&self, node: &str, record: Record) -> bool {
        let is_taken = self.0.inner.lanes.lock().push(node, record);
        self.tell();
        is_taken
    }

    pub(crate) fn merge(&self, node: &str, record: Record) {
        self.0.inner.lanes.lock().merge(node, record);
        self.tell();
    }

    /// There is something for whoever comes next.
    fn tell(&self) {
        match self.0.inner.spool {
            Some(_) => {
                self.0.inner.staged.notify_one();
            }
            None => self.0.inner.bell.notify_one(),
        }
    }

    pub(crate) fn next_batch(&self) -> Option<Batch> {
        let aside = self.0.aside.lock();
        match &self.0.inner.spool {
            Some(spool) => spool.lock().next_batch(&aside),
            None => self.0.inner.lanes.lock().next_batch(&aside),
        }
    }

    pub(crate) fn acknowledge(&self, node: &str, next: u64) -> Result<(), AckError> {
        let result = match &self.0.inner.spool {
            Some(spool) => spool.lock().acknowledge(node, next),
            None => self.0.inner.lanes.lock().acknowledge(node, next),
        };
        // Room may have let a loss be told, or more be sent.
        self.0.inner.bell.notify_one();
        result
    }

    /// A new stream begins: see [`Lanes::welcome`].
    pub(crate) fn welcome(&self, marks: &[LaneMark], asked: &[String]) -> Vec<String> {
        self.0.aside.lock().clear();
        match &self.0.inner.spool {
            Some(spool) => spool.lock().welcome(marks, asked),
            None => self.0.inner.lanes.lock().welcome(marks, asked),
        }
    }

    /// The aggregator does not take this lane at present; true if that is new.
    pub(crate) fn set_aside(&self, node: &str) -> bool {
        self.0.aside.lock().insert(node.to_owned())
    }

    #[cfg(test)]
    pub(crate) fn is_aside(&self, node: &str) -> bool {
        self.0.aside.lock().contains(node)
    }

    /// Tries the lanes that were set aside again: what was refused was dropped unread.
    pub(crate) fn resume_aside(&self) {
        let aside = std::mem::take(&mut *self.0.aside.lock());
        for node in &aside {
            match &self.0.inner.spool {
                Some(spool) => spool.lock().rewind(node),
                None => self.0.inner.lanes.lock().rewind(node),
            }
        }
        if !aside.is_empty() {
            self.0.inner.bell.notify_one();
        }
    }

    /// Nothing waits for an acknowledgement.
    pub(crate) fn is_empty(&self) -> bool {
        let is_staged = !self.0.inner.lanes.lock().is_empty();
        !is_staged && self.0.inner.spool.as_ref().is_none_or(|spool| spool.lock().is_empty())
    }

    /// Time of the oldest record that a kill would lose.
    pub(crate) fn oldest_ns(&self) -> Option<i64> {
        let staged = self.0.inner.lanes.lock().oldest_ns();
        let owed = self.0.inner.spool.as_ref().and_then(|spool| spool.lock().owed_ns());
        staged.into_iter().chain(owed).min()
    }

    /// Time of the oldest record that is not acknowledged, about.
    pub(crate) fn oldest_pending_ns(&self) -> Option<i64> {
        let spooled = self.0.inner.spool.as_ref().and_then(|spool| spool.lock().oldest_ns());
        self.oldest_ns().into_iter().chain(spooled).min()
    }

    /// Records that the spool dropped, by node. What memory had no room for is told to whoever pushes it.
    pub(crate) fn spool_dropped(&self) -> BTreeMap<String, u64> {
        self.0.inner.spool.as_ref().map_or_else(BTreeMap::new, |spool| spool.lock().dropped())
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        let staged = self.0.inner.lanes.lock().status();
        let Some(spool) = &self.0.inner.spool else { return staged };
        let mut lanes = spool.lock().status();
        for lane in &mut lanes {
            if let Some(staged) = staged.iter().find(|staged| staged.node == lane.node) {
                lane.pending_records += staged.pending_records;
                lane.pending_bytes += staged.pending_bytes;
                lane.dropped.records += staged.dropped.records;
                lane.dropped.bytes += staged.dropped.bytes;
            }
        }
        lanes
    }

    /// Waits for something that may be worth another [`Self::next_batch`].
    pub(crate) async fn rung(&self) {
        self.0.inner.bell.notified().await;
    }

    /// Nothing more will be pushed. With a spool: returns when everything is on disk.
    pub(crate) fn close(&self) {
        {
            // Under the lock, so that the writer does not miss it between its look and its wait.
            let _lanes = self.0.inner.lanes.lock();
            self.0.inner.closing.store(true, Ordering::Release);
        }
        self.0.inner.staged.notify_one();
        let writer = self.0.writer.lock().take();
        if let Some(writer) = writer
            && let Err(panic) = writer.join()
        {
            std::panic::resume_unwind(panic);
        }
        self.0.inner.bell.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.0.inner.is_closing()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Of lanes that were never closed, as after a failed start.
        self.inner.closing.store(true, Ordering::Release);
        self.inner.staged.notify_one();
        if let Some(writer) = self.writer.get_mut().take() {
            // A panic was printed where it happened.
            let _ = writer.join();
        }
    }
}

fn start_writer(inner: &Arc<Inner>) -> Result<JoinHandle<()>, Error> {
    let name = "chainscope-spool";
    let inner = Arc::clone(inner);
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || writer::run(&inner));
    thread.map_err(|source| Error::Thread { name, source })
}
