//! Reads the writing side of a node back from the database: lanes, segments, the block being filled, live connections.

use chainscope_proto::v1::{Record, record::Kind};
use prost::Message as _;

use crate::{
    Error,
    engine::Snapshot,
    fold, keys,
    meta::{NodeMeta, SegmentMeta},
    node::{Lane, Node},
};

impl Node {
    /// The node as the last durable batch left it.
    pub(crate) fn load(snapshot: &dyn Snapshot, number: u32, meta: NodeMeta) -> Result<Self, Error> {
        let mut node = Self::new(number, meta);
        node.load_lanes(snapshot)?;
        node.load_segments(snapshot)?;
        if let Some(open) = node.segments.last().copied() {
            node.load_block(snapshot, &open)?;
            node.load_live(snapshot, &open)?;
        }
        Ok(node)
    }

    fn load_lanes(&mut self, snapshot: &dyn Snapshot) -> Result<(), Error> {
        let prefix = keys::node(keys::LANE, self.number);
        let mut cursor = snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            let next = keys::last_number(value).ok_or_else(|| damaged("lane", self.number))?;
            self.lanes.insert(key.to_vec(), Lane { next, durable: next, changed: false });
            cursor.next()?;
        }
        Ok(())
    }

    fn load_segments(&mut self, snapshot: &dyn Snapshot) -> Result<(), Error> {
        let prefix = keys::node(keys::SEGMENT, self.number);
        let mut cursor = snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
        cursor.first()?;
        while let Some((_, value)) = cursor.entry() {
            self.segments.push(SegmentMeta::decode(value).map_err(|_| damaged("segment", self.number))?);
            cursor.next()?;
        }
        Ok(())
    }

    fn load_block(&mut self, snapshot: &dyn Snapshot, open: &SegmentMeta) -> Result<(), Error> {
        let start = crate::posting::block_of(self.meta.next_id);
        let range = keys::segment_range(keys::MESSAGE, self.number, open.number);
        let mut cursor = snapshot.cursor(&range.start..&range.end);
        cursor.seek(&keys::row(keys::MESSAGE, self.number, open.number, start))?;
        while let Some((key, value)) = cursor.entry() {
            let record = Record::decode(value).map_err(|_| damaged("message", self.number))?;
            let (Some(id), Some(Kind::Message(message))) = (keys::last_number(key), &record.kind) else {
                return Err(damaged("message", self.number));
            };
            self.block.add(id, record.time_ns, &record.target, message);
            cursor.next()?;
        }
        self.block.settle();
        Ok(())
    }

    /// The events of the open segment are enough: it began with a summary of every live connection.
    fn load_live(&mut self, snapshot: &dyn Snapshot, open: &SegmentMeta) -> Result<(), Error> {
        let range = keys::segment_range(keys::CONNECTION, self.number, open.number);
        let mut cursor = snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            let (connection, _) = keys::event_of(key).ok_or_else(|| damaged("connection event", self.number))?;
            let record = Record::decode(value).map_err(|_| damaged("connection event", self.number))?;
            fold::fold(self.live.entry(connection).or_default(), &record);
            cursor.next()?;
        }
        Ok(())
    }
}

fn damaged(what: &str, node: u32) -> Error {
    Error::Corrupt(format!("a {what} of node number {node} cannot be read"))
}
