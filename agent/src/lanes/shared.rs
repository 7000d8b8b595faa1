//! The lanes as the interpreter and the uplink share them, and what of them lives in the data folder.

use std::sync::Arc;

use chainscope_proto::v1::{Batch, LaneMark, Record};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{AckError, LaneStatus, Lanes};
use crate::{
    Error,
    folder::{Epoch, Folder},
};

/// Lanes behind a lock, with a bell for the uplink.
#[derive(Debug, Clone)]
pub(crate) struct SharedLanes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lanes: Mutex<Lanes>,
    /// Rung when there may be something to send, and at closing.
    bell: Notify,
    folder: Folder,
    epoch: Epoch,
    closing: std::sync::atomic::AtomicBool,
}

impl SharedLanes {
    /// The lanes of this epoch so far, and those of `nodes`.
    pub(crate) fn open<'a>(
        folder: &Folder,
        limit_bytes: usize,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        let epoch = folder.epoch()?;
        let mut lanes = Lanes::new(limit_bytes);
        for node in folder.lanes()? {
            lanes.open(&node, None);
        }
        let shared = Self(Arc::new(Inner {
            lanes: Mutex::new(lanes),
            bell: Notify::new(),
            folder: folder.clone(),
            epoch,
            closing: false.into(),
        }));
        for node in nodes {
            shared.open_lane(node)?;
        }
        Ok(shared)
    }

    /// Makes sure that a node has a lane. The name is on disk before the lane is used: only so is it known after a
    /// restart that the aggregator must be asked where the lane stands.
    pub(crate) fn open_lane(&self, node: &str) -> Result<(), Error> {
        let mut lanes = self.0.lanes.lock();
        if lanes.has(node) {
            return Ok(());
        }
        self.0.folder.add_lane(node)?;
        lanes.open(node, Some(0));
        Ok(())
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.0.epoch
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lanes.lock().names()
    }

    /// Takes a fact; false if there was no room.
    pub(crate) fn push(&self, node: &str, record: Record) -> bool {
        let is_taken = self.0.lanes.lock().push(node, record);
        self.0.bell.notify_one();
        is_taken
    }

    pub(crate) fn merge(&self, node: &str, record: Record) {
        self.0.lanes.lock().merge(node, record);
        self.0.bell.notify_one();
    }

    pub(crate) fn next_batch(&self) -> Option<Batch> {
        self.0.lanes.lock().next_batch()
    }

    pub(crate) fn acknowledge(&self, node: &str, next: u64) -> Result<(), AckError> {
        let result = self.0.lanes.lock().acknowledge(node, next);
        // Room may have let a loss be told.
        self.0.bell.notify_one();
        result
    }

    pub(crate) fn welcome(&self, marks: &[LaneMark], asked: &[String]) -> Vec<String> {
        self.0.lanes.lock().welcome(marks, asked)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lanes.lock().is_empty()
    }

    pub(crate) fn oldest_ns(&self) -> Option<i64> {
        self.0.lanes.lock().oldest_ns()
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        self.0.lanes.lock().status()
    }

    /// Waits for something that may be worth another [`Self::next_batch`].
    pub(crate) async fn rung(&self) {
        self.0.bell.notified().await;
    }

    /// Nothing more will be pushed.
    pub(crate) fn close(&self) {
        self.0.closing.store(true, std::sync::atomic::Ordering::Release);
        self.0.bell.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.0.closing.load(std::sync::atomic::Ordering::Acquire)
    }
}
