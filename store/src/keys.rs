//! The layout of the database: one ordered key space, every number big-endian.
//!
//! ```text
//!  node u32 | segment u32 | table u8 | rest of the key                          -> value
//!
//!  0        | 0           | 1        | name                                     -> number u32
//!  ╰ the database: schema version, next node number
//!
//!  n        | 0           |          ╭ state of node n
//!           |             | 1 node                                              -> NodeMeta (name, next ids, totals)
//!           |             | 2 stream | length u8, agent | length u8, epoch      -> time i64, next sequence u64
//!           |             | 3 segment| segment u32                              -> SegmentMeta
//!           |             | 4 agent  | name                                     -> number u32
//!           |             | 5 account| agent | epoch | target, each with length -> Record; all empty: the retired
//!           |             | 6 file   | length u8, agent | file u64              -> order u64, position u64
//!
//!  n        | s > 0       |          ╭ segment s: dropped by one range delete
//!           |             | k        | id u64                                   -> row of kind k
//!           |             | k        | group u64 | id u64                       -> row of kind k, if it is grouped
//!           |             | k + 1    | block u64                                -> zone: least, greatest time, 2 × i64
//!           |             | k + 2 …  | length u8, value | block u64             -> posting of an index of kind k
//!
//!   16 messages              32 connection events (by connection)     48 losses     64 target events
//!      17 zones                                                          49 zones      65 zones
//!      18 by kind
//!      19 by incoming: 0, 1
//!      20 by initiator: number of the enum
//!      21 by remote: 16 bytes of address, port u16
//!      22 by peer
//!      23 by target
//!
//!   80 chunks                | connection u64 | counter u64 | incoming u8 | agent u32  -> Record
//!
//!  112 log messages, 113 zones, 114 by level, 115 by target
//!
//!  128 trace events, 129 zones, 130 by provider, 131 by name, 132 by pid, 133 by peer, 134 by target
//!
//!  144 latency blocks, 145 zones, 146 by run, 147 that describe their run, 148 by target
//!
//!  160 transactions, 161 zones, 162 by run, 163 by id, 164 by type, 165 by result, 166 by octave of the duration, 167 by target
//!
//!   96 memory snapshot                                                          -> MemorySnapshot
//!   97 part of it            | part u32                                         -> MemoryState
//! ```
//!
//! - A *kind* of fact ([`crate::kind`]) owns 16 tables, from the number of its rows on. A row is the number of its agent
//!   (u32) and its `Record`. Ids are dense per node and kind.
//! - A *block* is 1,024 consecutive ids of a kind, named by the least id it can hold. The zone map keeps the least and the
//!   greatest time of a block; a *posting* (see [`crate::posting`]) says which ids of a block have the value of its key.
//!   So a batch of a thousand messages writes one posting for each value that occurs, not six index entries a message,
//!   and filters meet by AND-ing bits.
//! - All of a segment lies together, so that it is dropped by one range delete and an engine can keep it in files of its
//!   own. Segments of all retention classes of a node share one sequence of numbers. Segment numbers, node numbers and
//!   agent numbers start at 1 and are never used again.
//! - Values longer than 255 bytes are cut in a key; the row itself decides.

use std::ops::Range;

/// The node number of keys that belong to the whole database.
pub(crate) const DATABASE: u32 = 0;
/// The segment number of keys that belong to no segment.
pub(crate) const STATE: u32 = 0;

/// Tables of [`STATE`].
pub(crate) const NODE: u8 = 1;
pub(crate) const STREAM: u8 = 2;
pub(crate) const SEGMENT: u8 = 3;
pub(crate) const AGENT: u8 = 4;
pub(crate) const ACCOUNT: u8 = 5;
pub(crate) const POSITION: u8 = 6;

/// Length of node, segment and table.
pub(crate) const PREFIX: usize = 9;

/// Key of the schema version.
pub(crate) const SCHEMA: &[u8] = b"\0\0\0\0\0\0\0\0\x01schema";
/// Key of the schema version in a database of version 1.
pub(crate) const SCHEMA_OF_VERSION_1: &[u8] = b"\x01schema";
/// Key of the next free node number.
pub(crate) const NEXT_NODE: &[u8] = b"\0\0\0\0\0\0\0\0\x01next node";

/// Node and segment.
pub(crate) fn segment(node: u32, segment: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&node.to_be_bytes());
    key[4..].copy_from_slice(&segment.to_be_bytes());
    key
}

/// All keys of some segments of a node.
pub(crate) fn segments(node: u32, numbers: Range<u32>) -> Range<[u8; 8]> {
    segment(node, numbers.start)..segment(node, numbers.end)
}

/// All keys of all segments of a node. The last node number is never given.
pub(crate) fn all_segments(node: u32) -> Range<[u8; 8]> {
    segment(node, STATE + 1)..segment(node.saturating_add(1), 0)
}

/// Node, segment and table.
pub(crate) fn table(node: u32, number: u32, table: u8) -> [u8; PREFIX] {
    let mut key = [table; PREFIX];
    key[..8].copy_from_slice(&segment(node, number));
    key
}

/// All keys of one table of one segment. The last table number is never given.
pub(crate) fn table_range(node: u32, number: u32, of: u8) -> Range<[u8; PREFIX]> {
    table(node, number, of)..table(node, number, of.saturating_add(1))
}

/// A row or zone: all but the id or block is the prefix.
pub(crate) fn row(node: u32, number: u32, of: u8, id: u64) -> [u8; PREFIX + 8] {
    let mut key = [0; PREFIX + 8];
    key[..PREFIX].copy_from_slice(&table(node, number, of));
    key[PREFIX..].copy_from_slice(&id.to_be_bytes());
    key
}

/// A row of a kind whose rows are grouped.
pub(crate) fn grouped_row(node: u32, number: u32, of: u8, group: u64, id: u64) -> [u8; PREFIX + 16] {
    let mut key = [0; PREFIX + 16];
    key[..PREFIX + 8].copy_from_slice(&row(node, number, of, group));
    key[PREFIX + 8..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Node, segment, table and value of a posting: all but the block.
pub(crate) fn posting_prefix(node: u32, number: u32, of: u8, value: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX + 1 + value.len() + 8);
    key.extend_from_slice(&table(node, number, of));
    push_value(&mut key, value);
    key
}

/// A state key: node, table and the rest.
pub(crate) fn state(node: u32, of: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = table(node, STATE, of).to_vec();
    key.extend_from_slice(rest);
    key
}

/// The stream of an agent's epoch or, with a target, its account.
pub(crate) fn of_stream(node: u32, of: u8, agent: &str, epoch: &[u8], target: Option<&str>) -> Vec<u8> {
    let mut key = of_agent(node, of, agent);
    push_value(&mut key, epoch);
    if let Some(target) = target {
        push_value(&mut key, target.as_bytes());
    }
    key
}

/// A state key that begins with the name of an agent.
pub(crate) fn of_agent(node: u32, of: u8, agent: &str) -> Vec<u8> {
    let mut key = table(node, STATE, of).to_vec();
    push_value(&mut key, agent.as_bytes());
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

/// The segment of a key.
pub(crate) fn segment_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(4..8)?.try_into().ok()?))
}

/// The group of a key made by [`grouped_row`].
pub(crate) fn group_of(key: &[u8]) -> Option<u64> {
    key.get(PREFIX..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Value and block of the key of a posting.
pub(crate) fn posting_of(key: &[u8]) -> Option<(&[u8], u64)> {
    let (&length, rest) = key.get(PREFIX..)?.split_first()?;
    let (value, block) = rest.split_at_checked(usize::from(length))?;
    Some((value, u64::from_be_bytes(block.try_into().ok()?)))
}

/// Agent and epoch of a key made by [`of_stream`].
pub(crate) fn stream_of(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = key.get(PREFIX..)?.split_first()?;
    let (agent, rest) = rest.split_at_checked(usize::from(length))?;
    let (&length, rest) = rest.split_first()?;
    Some((agent, rest.get(..usize::from(length))?))
}
