//! Questions about messages: any combination of filters, newest or oldest first, from a cursor on.
//!
//! A query goes through the segments in the order of its answer, and in each through the blocks that every filter's
//! postings have in common: each filter is a stream of (block, bits) that can be moved to a block, the streams leap
//! after one another, and where they meet their bits are AND-ed. Time goes by the zone map. What is left is read, and
//! the row itself has the last word.

use std::{
    net::SocketAddr,
    ops::{ControlFlow, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use chainscope_proto::v1::{Initiator, Message, Record, record::Kind};
use prost::Message as _;

use crate::{
    Error,
    engine::{Cursor, Snapshot},
    entries::BlockEntries,
    index, keys,
    meta::{SegmentMeta, Zone},
    posting::{BLOCK, Bits, block_of},
    view::Reader,
};

/// Rows read at once. A row can be as large as a gRPC frame, so that this bounds the memory of a query.
const MAX_ROWS_PER_READ: usize = 32;

/// The order of an answer. Ids follow arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Descending ids.
    #[default]
    NewestFirst,
    /// Ascending ids.
    OldestFirst,
}

/// How much a query may do.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// When it must be done.
    pub deadline: Option<Instant>,
    /// Rows and index blocks that it may look at.
    pub rows: Option<u64>,
    /// Set by whoever no longer wants the answer.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// Which messages, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub struct MessageQuery {
    /// Where to begin, included: the greatest id (newest first) or the least (oldest first).
    pub cursor: Option<u64>,
    /// Most messages to give; 0 gives none.
    pub limit: u64,
    /// The order of the answer.
    pub order: Order,
    /// Any of these kinds; empty for all.
    pub kinds: Vec<String>,
    /// Sent by the remote (true) or by the observed node (false).
    pub incoming: Option<bool>,
    /// Who opened the connection.
    pub initiator: Option<Initiator>,
    /// The remote's address; IPv4 and the IPv6 address that stands for it are the same.
    pub remote: Option<SocketAddr>,
    /// The remote's identity.
    pub peer_id: Option<String>,
    /// The observed process.
    pub target: Option<String>,
    /// Least time, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest time, excluded.
    pub to_ns: Option<i64>,
    /// How much work it may be.
    pub budget: Budget,
}

impl Default for MessageQuery {
    fn default() -> Self {
        Self {
            cursor: None,
            limit: 100,
            order: Order::NewestFirst,
            kinds: Vec::new(),
            incoming: None,
            initiator: None,
            remote: None,
            peer_id: None,
            target: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl MessageQuery {
    /// Whether a row is an answer, bounds of ids aside.
    pub(crate) fn matches(&self, record: &Record, message: &Message) -> bool {
        let remote = || message.remote.as_ref().and_then(index::remote_value);
        (self.kinds.is_empty() || self.kinds.contains(&message.kind))
            && self.incoming.is_none_or(|incoming| incoming == message.incoming)
            && self.initiator.is_none_or(|initiator| initiator == message.initiator())
            && self.remote.is_none_or(|wanted| remote() == Some(index::socket_value(wanted)))
            && self.peer_id.as_ref().is_none_or(|peer| *peer == message.peer_id)
            && self.target.as_ref().is_none_or(|target| *target == record.target)
            && self.from_ns.is_none_or(|from| from <= record.time_ns)
            && self.to_ns.is_none_or(|to| record.time_ns < to)
    }

    fn has_time(&self) -> bool {
        self.from_ns.is_some() || self.to_ns.is_some()
    }

    /// Whether a message with a time between these can be an answer.
    fn meets(&self, least_ns: i64, greatest_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| from <= greatest_ns) && self.to_ns.is_none_or(|to| least_ns < to)
    }

    /// Table and values of every filter that has an index.
    fn filters(&self) -> Vec<(u8, Vec<Vec<u8>>)> {
        let mut filters = Vec::new();
        let text = |text: &String| keys::cut(text.as_bytes()).to_vec();
        if !self.kinds.is_empty() {
            let mut kinds: Vec<_> = self.kinds.iter().map(text).collect();
            kinds.sort();
            kinds.dedup();
            filters.push((keys::BY_KIND, kinds));
        }
        if let Some(incoming) = self.incoming {
            filters.push((keys::BY_INCOMING, vec![vec![u8::from(incoming)]]));
        }
        if let Some(initiator) = self.initiator {
            filters.push((keys::BY_INITIATOR, vec![vec![initiator as u8]]));
        }
        if let Some(remote) = self.remote {
            filters.push((keys::BY_REMOTE, vec![index::socket_value(remote).to_vec()]));
        }
        if let Some(peer_id) = &self.peer_id {
            filters.push((keys::BY_PEER, vec![text(peer_id)]));
        }
        if let Some(target) = &self.target {
            filters.push((keys::BY_TARGET, vec![text(target)]));
        }
        filters
    }
}

/// Counts what a query looks at, and ends it when that is too much.
pub(crate) struct Meter<'a> {
    budget: &'a Budget,
    examined: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Self {
        Self { budget, examined: 0 }
    }

    pub(crate) fn step(&mut self) -> Result<(), Error> {
        let examined = self.examined;
        if self.budget.rows.is_some_and(|most| examined >= most) {
            return Err(Error::Budget { examined });
        }
        // The clock is asked now and then: a step takes a microsecond or so.
        if examined.is_multiple_of(64) {
            if self.budget.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::Deadline { examined });
            }
            if self.budget.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(Error::Cancelled);
            }
        }
        self.examined += 1;
        Ok(())
    }
}

/// Gives the messages that a query asks for, one by one, until there are no more or `each` breaks off.
pub(crate) fn run(
    reader: &Reader<'_>,
    query: &MessageQuery,
    each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut ids = reader.view.first_id..reader.view.next_id;
    match (query.order, query.cursor) {
        (_, None) => {}
        (Order::OldestFirst, Some(cursor)) => ids.start = ids.start.max(cursor),
        (Order::NewestFirst, Some(cursor)) => ids.end = ids.end.min(cursor.saturating_add(1)),
    }
    let mut search = Search { reader, query, meter: Meter::new(&query.budget), left: query.limit, each };
    let mut segments = reader.view.segments.iter();
    while search.left > 0 {
        let segment = match query.order {
            Order::OldestFirst => segments.next(),
            Order::NewestFirst => segments.next_back(),
        };
        let Some(segment) = segment else { break };
        let within = ids.start.max(segment.first_id)..ids.end.min(segment.end_id());
        if within.is_empty() || !query.meets(segment.least_ns, segment.greatest_ns) {
            continue;
        }
        if search.segment(segment, within)?.is_break() {
            break;
        }
    }
    Ok(())
}

struct Search<'a, 'e> {
    reader: &'a Reader<'e>,
    query: &'a MessageQuery,
    meter: Meter<'a>,
    left: u64,
    each: &'a mut dyn FnMut(u64, Record) -> ControlFlow<()>,
}

impl Search<'_, '_> {
    fn segment(&mut self, segment: &SegmentMeta, ids: Range<u64>) -> Result<ControlFlow<()>, Error> {
        let (snapshot, order, node) = (&*self.reader.snapshot, self.query.order, self.reader.view.number);
        let mut filters: Vec<Vec<BlockEntries<'_>>> = self
            .query
            .filters()
            .iter()
            .map(|(table, values)| {
                values
                    .iter()
                    .map(|value| {
                        let prefix = keys::posting_prefix(*table, node, segment.number, value);
                        BlockEntries::new(snapshot, prefix, order, block_of(segment.first_id))
                    })
                    .collect()
            })
            .collect();
        let mut zones = self.query.has_time().then(|| {
            let prefix = keys::segment(keys::ZONE, node, segment.number).to_vec();
            BlockEntries::new(snapshot, prefix, order, block_of(segment.first_id))
        });
        let mut rows = Rows { snapshot, node, segment: segment.number, scan: None };
        let mut at = match order {
            Order::OldestFirst => block_of(ids.start),
            Order::NewestFirst => block_of(ids.end - 1), // not empty
        };
        loop {
            self.meter.step()?;
            let mut bits = Bits::between(at, ids.start, ids.end);
            if bits.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            match meet(&mut filters, at, &mut bits)? {
                Meeting::Here => {}
                Meeting::Later(block) => {
                    at = block;
                    continue;
                }
                Meeting::Never => return Ok(ControlFlow::Continue(())),
            }
            if let Some(zones) = &mut zones {
                match zones.seek(at)? {
                    Some(block) if block == at => {
                        let zone = Zone::decode(zones.value()).ok_or_else(|| zones.damaged("zone"))?;
                        if !self.query.meets(zone.least_ns, zone.greatest_ns) {
                            bits = Bits::default();
                        }
                    }
                    _ => return Err(Error::Corrupt(format!("no zone for block {at} of node number {node}"))),
                }
            }
            if self.rows(&mut rows, at, bits)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let next = match order {
                Order::OldestFirst => at.checked_add(BLOCK),
                Order::NewestFirst => at.checked_sub(BLOCK),
            };
            match next {
                Some(block) => at = block,
                None => return Ok(ControlFlow::Continue(())),
            }
        }
    }

    /// Reads the rows of a block that the filters agree on.
    fn rows(&mut self, rows: &mut Rows<'_>, block: u64, mut bits: Bits) -> Result<ControlFlow<()>, Error> {
        let mut ids = Vec::new();
        loop {
            ids.clear();
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(MAX_ROWS_PER_READ);
            while ids.len() < wanted {
                let place = match self.query.order {
                    Order::OldestFirst => bits.pop_first(),
                    Order::NewestFirst => bits.pop_last(),
                };
                let Some(place) = place else { break };
                ids.push(block + place);
            }
            if ids.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            for (id, value) in rows.read(&ids)? {
                self.meter.step()?;
                let record = Record::decode(&*value).map_err(|error| Error::Corrupt(format!("row {id}: {error}")))?;
                let Some(Kind::Message(message)) = &record.kind else {
                    return Err(Error::Corrupt(format!("row {id} is not a message")));
                };
                if !self.query.matches(&record, message) {
                    continue;
                }
                self.left -= 1;
                if (self.each)(id, record).is_break() || self.left == 0 {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
}

enum Meeting {
    /// All filters have ids in this block (their bits were AND-ed; they may have none in common).
    Here,
    /// Some filter has nothing before this block.
    Later(u64),
    /// Some filter has nothing any more.
    Never,
}

/// Moves every filter to block `at` and AND-s their bits.
fn meet(filters: &mut [Vec<BlockEntries<'_>>], at: u64, bits: &mut Bits) -> Result<Meeting, Error> {
    for filter in filters {
        let mut any = Bits::default();
        let mut nearest: Option<u64> = None;
        for entries in filter.iter_mut() {
            let Some(block) = entries.seek(at)? else { continue };
            if block == at {
                any.or(&Bits::decode(entries.value()).ok_or_else(|| entries.damaged("posting"))?);
            }
            nearest = Some(match nearest {
                Some(other) if entries.before(other, block) => other,
                _ => block,
            });
        }
        match nearest {
            None => return Ok(Meeting::Never),
            Some(block) if block == at => bits.and(&any),
            Some(block) => return Ok(Meeting::Later(block)),
        }
    }
    Ok(Meeting::Here)
}

/// Reads rows of one segment by id.
struct Rows<'a> {
    snapshot: &'a dyn Snapshot,
    node: u32,
    segment: u32,
    /// A cursor for runs of consecutive ids, and the id it is at.
    scan: Option<(Box<dyn Cursor + 'a>, u64)>,
}

impl Rows<'_> {
    /// The rows of these ids, in their order: ascending or descending.
    fn read(&mut self, ids: &[u64]) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return Ok(Vec::new()) };
        let (least, greatest) = (first.min(last), first.max(last));
        let mut ascending = ids.to_vec();
        ascending.sort_unstable();
        // Neighbours lie in the same block of the file: passing over a few is cheaper than looking each up.
        let mut rows =
            if (greatest - least) < 2 * ids.len() as u64 { self.scan(&ascending)? } else { self.get(&ascending)? };
        if first > last {
            rows.reverse();
        }
        Ok(rows)
    }

    fn get(&self, ids: &[u64]) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let key = |id: &u64| keys::row(keys::MESSAGE, self.node, self.segment, *id).to_vec();
        let values = self.snapshot.get_many(&ids.iter().map(key).collect::<Vec<_>>())?;
        let found = ids.iter().zip(values);
        found.map(|(&id, value)| Ok((id, value.ok_or_else(|| missing(id))?))).collect()
    }

    fn scan(&mut self, ids: &[u64]) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let range = keys::segment_range(keys::MESSAGE, self.node, self.segment);
        let (cursor, at) = self.scan.get_or_insert_with(|| (self.snapshot.cursor(&range.start..&range.end), u64::MAX));
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            // The cursor is at the last row that was read: forward by steps if this one is near, else by a search.
            if *at < id && id - *at <= 2 {
                (*at..id).try_for_each(|_| cursor.next())?;
            } else {
                cursor.seek(&keys::row(keys::MESSAGE, self.node, self.segment, id))?;
            }
            *at = u64::MAX;
            let (key, value) = cursor.entry().ok_or_else(|| missing(id))?;
            if keys::last_number(key) != Some(id) {
                return Err(missing(id));
            }
            *at = id;
            rows.push((id, value.to_vec()));
        }
        Ok(rows)
    }
}

fn missing(id: u64) -> Error {
    Error::Corrupt(format!("row {id} is missing"))
}
