//! Reads the writing side of a node back from the database: streams, positions in files, accounts, segments, the blocks being filled, live
//! connections.

use std::sync::Arc;

use prost::Message as _;

use crate::{
    Error,
    engine::Snapshot,
    keys,
    kind::{RetentionClass, decode, decode_row},
    meta::{KindRows, NodeMeta, SegmentMeta},
    network::{Accounts, LiveConnections},
    node::{KindState, Node},
    posting::block_of,
    schema::Schema,
};

/// Every node of the database, in the order of their numbers, and the next free number.
pub(crate) fn load(snapshot: &dyn Snapshot, schema: Schema) -> Result<(Vec<Node>, u32), Error> {
    let next = match snapshot.get(keys::NEXT_NODE)? {
        None => 1,
        Some(value) => value.try_into().map(u32::from_be_bytes).map_err(|_| damaged("next number", keys::DATABASE))?,
    };
    let mut nodes = Vec::new();
    for number in 1..next {
        if let Some(value) = snapshot.get(&keys::state(number, keys::NODE, &[]))? {
            let meta = NodeMeta::decode(&*value).map_err(|_| damaged("name", number))?;
            nodes.push(Node::load(snapshot, number, meta, schema)?);
        }
    }
    Ok((nodes, next))
}

impl Node {
    /// The node as the last durable batch left it.
    fn load(snapshot: &dyn Snapshot, number: u32, meta: NodeMeta, schema: Schema) -> Result<Self, Error> {
        let mut node = Self::new(number, meta, schema);
        node.each_state(snapshot, keys::STREAM, |node, key, value| node.streams.load(key, value))?;
        node.each_state(snapshot, keys::POSITION, |node, key, value| node.positions.load(key, value))?;
        node.each_state(snapshot, keys::AGENT, |node, key, value| {
            let name = String::from_utf8(key.get(keys::PREFIX..)?.to_vec()).ok()?;
            node.agents.insert(name, u32::from_be_bytes(value.try_into().ok()?));
            Some(())
        })?;
        node.each_state(snapshot, keys::SEGMENT, |node, _, value| {
            let segment = SegmentMeta::decode(value).ok()?;
            node.segments.get_mut(segment.class as usize)?.push(Arc::new(segment));
            Some(())
        })?;
        let mut accounts = Vec::new();
        node.each_state(snapshot, keys::ACCOUNT, |_, key, value| {
            accounts.push((key.to_vec(), decode(value).ok()?));
            Some(())
        })?;
        node.accounts = Accounts::load(number, accounts);
        node.add_unknown_kinds();
        node.load_blocks(snapshot)?;
        let open = node.open(RetentionClass::Records);
        node.live = LiveConnections::load(snapshot, number, open)?;
        Ok(node)
    }

    fn each_state(
        &mut self,
        snapshot: &dyn Snapshot,
        table: u8,
        mut each: impl FnMut(&mut Self, &[u8], &[u8]) -> Option<()>,
    ) -> Result<(), Error> {
        let range = keys::table_range(self.number, keys::STATE, table);
        let mut cursor = snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            each(self, key, value).ok_or_else(|| damaged(&format!("key {key:02x?}"), self.number))?;
            cursor.next()?;
        }
        Ok(())
    }

    /// Adds kinds to the segments that a build opened which did not know them: an older one, before an upgrade or after a rollback.
    fn add_unknown_kinds(&mut self) {
        for KindState { kind, next_id, .. } in &self.kinds {
            let mut next = *next_id;
            for segment in self.segments[kind.retention as usize].iter_mut().rev() {
                match segment.kind(kind.table) {
                    Some(rows) => next = rows.first_id,
                    None => Arc::make_mut(segment).kinds.push(KindRows::none(kind.table, next)),
                }
            }
        }
    }

    /// Builds zone and postings of the last block of each kind anew, from its rows in the open segment.
    fn load_blocks(&mut self, snapshot: &dyn Snapshot) -> Result<(), Error> {
        for at in 0..self.kinds.len() {
            let kind = self.kinds[at].kind;
            if kind.group.is_some() {
                continue;
            }
            let open = self.open(kind.retention);
            let state = &mut self.kinds[at];
            let range = keys::table_range(self.number, open, kind.table);
            let mut cursor = snapshot.cursor(&range.start..&range.end);
            cursor.seek(&keys::row(self.number, open, kind.table, block_of(state.next_id)))?;
            while let Some((key, value)) = cursor.entry() {
                let id = keys::last_number(key).ok_or_else(|| damaged(kind.name, self.number))?;
                state.block.add(id, &decode_row(value)?.1);
                cursor.next()?;
            }
            state.block.mark_written();
        }
        Ok(())
    }
}

fn damaged(what: &str, node: u32) -> Error {
    Error::Corrupt(format!("the {what} of node number {node} cannot be read"))
}
