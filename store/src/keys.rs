//! The layout of the database: one ordered key space, every number big-endian.
//!
//! ```text
//! facts of a segment        table u8 | node u32 | segment u32 | …
//!
//!   16 message              … | id u64                                        -> Record
//!   17 zone                 … | block u64                                     -> least, greatest time: 2 × i64
//!   18 chunk                … | connection u64 | counter u64 | incoming u8    -> Record
//!   19 connection event     … | connection u64 | event u64                    -> Record
//!   20 loss                 … | id u64                                        -> Record
//!   21 target event         … | id u64                                        -> Record
//!   32 by kind              … | length u8, value | block u64                  -> posting
//!   33 by incoming          …        value: 0 or 1
//!   34 by initiator         …        value: number of the enum
//!   35 by remote            …        value: 16 bytes of address, port u16
//!   36 by peer              …
//!   37 by target            …
//!
//! state                     table u8 | node u32 | …
//!
//!    1 store                name                                              -> number u32
//!    2 node                 node u32                                          -> NodeMeta (name, ids, totals)
//!    3 lane                 node u32 | length u8, agent | length u8, epoch    -> next sequence u64
//!    4 segment              node u32 | segment u32                            -> SegmentMeta
//!    5 account              node u32 | agent | epoch | target, each with its length -> Record
//!    6 memory snapshot      node u32 | time u64                               -> MemorySnapshot
//!    7 part of a snapshot   node u32 | time u64 | part u32                    -> MemoryState
//! ```
//!
//! A *block* is 1,024 consecutive message ids, named by the least id it can hold. The zone map keeps the least and the
//! greatest time of a block; a *posting* (see [`crate::posting`]) says which ids of a block have the value of its key.
//! So a batch of a thousand messages writes one posting for each value that occurs, not six index entries a message,
//! and filters meet by AND-ing bits.
//!
//! Every fact carries the number of its segment behind table and node: a segment is dropped by one range delete a
//! table. Segment numbers and node numbers are never used again. Values longer than 255 bytes are cut in a key; the row
//! itself decides.

use std::ops::Range;

pub(crate) const STORE: u8 = 1;
pub(crate) const NODE: u8 = 2;
pub(crate) const LANE: u8 = 3;
pub(crate) const SEGMENT: u8 = 4;
pub(crate) const ACCOUNT: u8 = 5;
pub(crate) const MEMORY: u8 = 6;
pub(crate) const MEMORY_PART: u8 = 7;

pub(crate) const MESSAGE: u8 = 16;
pub(crate) const ZONE: u8 = 17;
pub(crate) const CHUNK: u8 = 18;
pub(crate) const CONNECTION: u8 = 19;
pub(crate) const LOSS: u8 = 20;
pub(crate) const TARGET_EVENT: u8 = 21;

pub(crate) const BY_KIND: u8 = 32;
pub(crate) const BY_INCOMING: u8 = 33;
pub(crate) const BY_INITIATOR: u8 = 34;
pub(crate) const BY_REMOTE: u8 = 35;
pub(crate) const BY_PEER: u8 = 36;
pub(crate) const BY_TARGET: u8 = 37;

/// The tables of postings, in order.
pub(crate) const INDEXES: [u8; 6] = [BY_KIND, BY_INCOMING, BY_INITIATOR, BY_REMOTE, BY_PEER, BY_TARGET];

/// Every table whose keys carry a segment: what an eviction empties.
pub(crate) const SEGMENTED: [u8; 12] = [
    MESSAGE,
    ZONE,
    CHUNK,
    CONNECTION,
    LOSS,
    TARGET_EVENT,
    BY_KIND,
    BY_INCOMING,
    BY_INITIATOR,
    BY_REMOTE,
    BY_PEER,
    BY_TARGET,
];

/// Length of table, node and segment.
pub(crate) const PREFIX: usize = 9;

/// Name of the schema version in the table [`STORE`].
pub(crate) const SCHEMA: &[u8] = &[STORE, b's', b'c', b'h', b'e', b'm', b'a'];
/// Name of the next free node number.
pub(crate) const NEXT_NODE: &[u8] = &[STORE, b'n', b'o', b'd', b'e'];

/// Table and node.
pub(crate) fn node(table: u8, node: u32) -> [u8; 5] {
    let mut key = [table; 5];
    key[1..].copy_from_slice(&node.to_be_bytes());
    key
}

/// Table, node and time, nanoseconds since 1970: a snapshot, or the start of its parts. What is before 1970 is at 1970.
pub(crate) fn moment(table: u8, node: u32, time_ns: i64) -> [u8; 13] {
    let mut key = [table; 13];
    key[1..5].copy_from_slice(&node.to_be_bytes());
    key[5..].copy_from_slice(&u64::try_from(time_ns).unwrap_or(0).to_be_bytes());
    key
}

/// A part of a memory snapshot.
pub(crate) fn memory_part(node: u32, time_ns: i64, part: u32) -> [u8; 17] {
    let mut key = [0; 17];
    key[..13].copy_from_slice(&moment(MEMORY_PART, node, time_ns));
    key[13..].copy_from_slice(&part.to_be_bytes());
    key
}

/// Table, node and segment.
pub(crate) fn segment(table: u8, node: u32, segment: u32) -> [u8; PREFIX] {
    let mut key = [table; PREFIX];
    key[1..5].copy_from_slice(&node.to_be_bytes());
    key[5..].copy_from_slice(&segment.to_be_bytes());
    key
}

/// All keys of one segment in one table. The last segment number is never given.
pub(crate) fn segment_range(table: u8, node: u32, number: u32) -> Range<[u8; PREFIX]> {
    segment(table, node, number)..segment(table, node, number.saturating_add(1))
}

/// A message, zone, loss or target event.
pub(crate) fn row(table: u8, node: u32, number: u32, id: u64) -> [u8; PREFIX + 8] {
    let mut key = [0; PREFIX + 8];
    key[..PREFIX].copy_from_slice(&segment(table, node, number));
    key[PREFIX..].copy_from_slice(&id.to_be_bytes());
    key
}

/// A chunk.
pub(crate) fn chunk(node: u32, number: u32, place: ChunkPlace) -> [u8; PREFIX + 17] {
    let mut key = [0; PREFIX + 17];
    key[..PREFIX].copy_from_slice(&segment(CHUNK, node, number));
    key[PREFIX..PREFIX + 8].copy_from_slice(&place.connection.to_be_bytes());
    key[PREFIX + 8..PREFIX + 16].copy_from_slice(&place.counter.to_be_bytes());
    key[PREFIX + 16] = u8::from(place.incoming);
    key
}

/// Which chunk of a node it is, in the order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkPlace {
    pub(crate) connection: u64,
    pub(crate) counter: u64,
    pub(crate) incoming: bool,
}

/// A connection event.
pub(crate) fn event(node: u32, number: u32, connection: u64, event: u64) -> [u8; PREFIX + 16] {
    let mut key = [0; PREFIX + 16];
    key[..PREFIX].copy_from_slice(&segment(CONNECTION, node, number));
    key[PREFIX..PREFIX + 8].copy_from_slice(&connection.to_be_bytes());
    key[PREFIX + 8..].copy_from_slice(&event.to_be_bytes());
    key
}

/// Table, node, segment and value of a posting: all but the block.
pub(crate) fn posting_prefix(table: u8, node: u32, number: u32, value: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX + 1 + value.len() + 8);
    key.extend_from_slice(&segment(table, node, number));
    push_value(&mut key, value);
    key
}

/// The lane of an agent's epoch, or (with a target) its account.
pub(crate) fn of_lane(table: u8, node_number: u32, agent: &str, epoch: &[u8], target: Option<&str>) -> Vec<u8> {
    let mut key = node(table, node_number).to_vec();
    push_value(&mut key, agent.as_bytes());
    push_value(&mut key, epoch);
    if let Some(target) = target {
        push_value(&mut key, target.as_bytes());
    }
    key
}

/// The part of an index value or name that fits a key.
pub(crate) fn cut(value: &[u8]) -> &[u8] {
    value.get(..usize::from(u8::MAX)).unwrap_or(value)
}

fn push_value(key: &mut Vec<u8>, value: &[u8]) {
    let value = cut(value);
    key.push(value.len() as u8); // at most 255 after the cut
    key.extend_from_slice(value);
}

/// The first key behind all that start with `prefix`.
pub(crate) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            break;
        }
    }
    key
}

/// The number that a key ends with.
pub(crate) fn last_number(key: &[u8]) -> Option<u64> {
    key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The segment of a key of a table of [`SEGMENTED`].
pub(crate) fn segment_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(5..PREFIX)?.try_into().ok()?))
}

/// The place of a key of the table [`CHUNK`].
pub(crate) fn chunk_place(key: &[u8]) -> Option<ChunkPlace> {
    let rest = key.get(PREFIX..)?;
    let (connection, rest) = rest.split_first_chunk()?;
    let (counter, rest) = rest.split_first_chunk()?;
    let &[incoming] = rest else { return None };
    Some(ChunkPlace {
        connection: u64::from_be_bytes(*connection),
        counter: u64::from_be_bytes(*counter),
        incoming: incoming != 0,
    })
}

/// Connection and event number of a key of the table [`CONNECTION`].
pub(crate) fn event_of(key: &[u8]) -> Option<(u64, u64)> {
    let (connection, rest) = key.get(PREFIX..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*connection), u64::from_be_bytes(rest.try_into().ok()?)))
}

/// Value and block of a key of a table of [`INDEXES`].
pub(crate) fn posting_of(key: &[u8]) -> Option<(&[u8], u64)> {
    let (&length, rest) = key.get(PREFIX..)?.split_first()?;
    let (value, block) = rest.split_at_checked(usize::from(length))?;
    Some((value, u64::from_be_bytes(block.try_into().ok()?)))
}

/// Agent and epoch of a key of the table [`LANE`] or [`ACCOUNT`].
pub(crate) fn lane_of(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = key.get(5..)?.split_first()?;
    let (agent, rest) = rest.split_at_checked(usize::from(length))?;
    let (&length, rest) = rest.split_first()?;
    Some((agent, rest.get(..usize::from(length))?))
}
