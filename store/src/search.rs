//! Answers a [`Query`] from rows, postings and zones.
//!
//! A search goes through the segments in the order of its answer, and in each through the blocks that every filter's
//! postings have in common: each filter is a list of (block, bits) that can be moved to a block, the lists leap after one
//! another, and where they meet their bits are AND-ed. A text query is one more filter ([`crate::text`]). Time goes by the zone
//! map. What is left is read, and the row itself decides.

use std::ops::{ControlFlow, Range};

use chainscope_proto::v1::Record;

use crate::{
    Error, TextQuery,
    engine::Snapshot,
    entries::BlockEntries,
    keys,
    kind::{FactKind, decode_row},
    meta::{SegmentMeta, Zone},
    posting::{BLOCK, Bits, block_of},
    query::{Meter, Order, Query},
    rows::Rows,
    text::TextIndexes,
    view::Reader,
};

/// Rows read at once. A row can be as large as a gRPC frame, so that this bounds the memory of a query.
const MAX_ROWS_PER_READ: usize = 32;

/// Gives the facts of a kind that a query asks for, one by one, until there are no more or `each` breaks off.
pub(crate) fn run(
    reader: &Reader<'_>,
    texts: &TextIndexes,
    kind: &FactKind,
    query: &Query,
    each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
) -> Result<(), Error> {
    if query.text.as_ref().is_some_and(TextQuery::is_empty) {
        return Ok(());
    }
    let mut ids = reader.view.ids(kind);
    match (query.order, query.cursor) {
        (_, None) => {}
        (Order::OldestFirst, Some(cursor)) => ids.start = ids.start.max(cursor),
        (Order::NewestFirst, Some(cursor)) => ids.end = ids.end.min(cursor.saturating_add(1)),
    }
    let mut search = Search { reader, texts, kind, query, meter: Meter::new(&query.budget), left: query.limit, each };
    let mut segments = reader.view.segments(kind.retention).iter();
    while search.left > 0 {
        let segment = match query.order {
            Order::OldestFirst => segments.next(),
            Order::NewestFirst => segments.next_back(),
        };
        let Some(segment) = segment else { break };
        let of_segment = segment.ids(kind.table);
        let within = ids.start.max(of_segment.start)..ids.end.min(of_segment.end);
        if within.is_empty() || !query.meets(segment.least_ns, segment.greatest_ns) {
            continue;
        }
        if search.segment(segment, within)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// One fact, and the number of the agent that sent it.
pub(crate) fn one(reader: &Reader<'_>, kind: &FactKind, id: u64) -> Result<Option<(u32, u32, Record)>, Error> {
    let Some(segment) = reader.view.segment_of(kind, id) else { return Ok(None) };
    let value = reader.snapshot.get(&keys::row(reader.view.number, segment.number, kind.table, id))?;
    let value = value.ok_or_else(|| Error::Corrupt(format!("{} {id} is missing", kind.name)))?;
    let (agent, record) = decode_row(&value)?;
    Ok(Some((segment.number, agent, record)))
}

struct Search<'a, 'e> {
    reader: &'a Reader<'e>,
    texts: &'a TextIndexes,
    kind: &'a FactKind,
    query: &'a Query,
    meter: Meter<'a>,
    left: u64,
    each: &'a mut dyn FnMut(u64, Record) -> ControlFlow<()>,
}

/// Rows of a segment that the filters agree on and that are read together, whichever blocks they are in: one batched read
/// costs less than a search for each row of a filter that few rows meet.
struct Batch<'a> {
    rows: Rows<'a>,
    /// In the order of the query.
    ids: Vec<u64>,
}

impl<'a> Search<'a, '_> {
    fn segment(&mut self, segment: &SegmentMeta, ids: Range<u64>) -> Result<ControlFlow<()>, Error> {
        let (snapshot, node): (&'a dyn Snapshot, _) = (&*self.reader.snapshot, self.reader.view.number);
        let mut batch = Batch { rows: Rows::new(snapshot, node, segment.number, self.kind), ids: Vec::new() };
        match self.blocks(segment, ids, &mut batch)? {
            ControlFlow::Continue(()) => self.read(&mut batch),
            ended => Ok(ended),
        }
    }

    /// Adds the rows that the filters agree on to the batch, block by block, and reads it whenever it is full.
    fn blocks(
        &mut self,
        segment: &SegmentMeta,
        ids: Range<u64>,
        batch: &mut Batch<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let (order, node) = (self.query.order, self.reader.view.number);
        let candidates = match &self.query.text {
            Some(text) => self.texts.candidates((node, segment.number), ids.clone(), text, &mut self.meter)?,
            None => None,
        };
        let mut filters = self.filters(segment);
        let mut zones = self.query.has_time().then(|| self.zones(segment));
        let mut at = match order {
            Order::OldestFirst => block_of(ids.start),
            Order::NewestFirst => block_of(ids.end - 1), // not empty
        };
        loop {
            self.meter.step()?;
            let found = match &candidates {
                Some(candidates) => match candidates.seek(at, order) {
                    Some(found) => found,
                    None => return Ok(ControlFlow::Continue(())),
                },
                None => (at, &Bits::ALL),
            };
            at = found.0;
            let mut bits = Bits::between(at, ids.start, ids.end);
            if bits.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            bits.and(found.1);
            match meet(&mut filters, at, &mut bits)? {
                Meeting::Here => {}
                Meeting::Later(block) => {
                    at = block;
                    continue;
                }
                Meeting::Never => return Ok(ControlFlow::Continue(())),
            }
            if let Some(zones) = &mut zones {
                if zones.seek(at)? != Some(at) {
                    return Err(Error::Corrupt(format!("no zone for block {at} of node number {node}")));
                }
                let zone = Zone::decode(zones.value()).ok_or_else(|| zones.damaged("zone"))?;
                if !self.query.meets(zone.least_ns, zone.greatest_ns) {
                    bits = Bits::default();
                }
            }
            if self.add(batch, at, bits)?.is_break() {
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

    /// The postings of each value of each filter.
    fn filters(&self, segment: &SegmentMeta) -> Vec<Vec<BlockEntries<'a>>> {
        let entries = |index: usize, value: &[u8]| {
            let table = self.kind.index_table(index);
            let prefix = keys::posting_prefix(self.reader.view.number, segment.number, table, value);
            self.entries(prefix, segment)
        };
        let filter = |filter: &crate::query::Filter| {
            // Values that are equal in a key have the same postings.
            let mut values: Vec<&[u8]> = filter.values.iter().map(|value| keys::cut(value)).collect();
            values.sort_unstable();
            values.dedup();
            values.into_iter().map(|value| entries(filter.index, value)).collect()
        };
        self.query.filters.iter().map(filter).collect()
    }

    fn zones(&self, segment: &SegmentMeta) -> BlockEntries<'a> {
        let prefix = keys::table(self.reader.view.number, segment.number, self.kind.zones());
        self.entries(prefix.to_vec(), segment)
    }

    fn entries(&self, prefix: Vec<u8>, segment: &SegmentMeta) -> BlockEntries<'a> {
        let snapshot: &'a dyn Snapshot = &*self.reader.snapshot;
        BlockEntries::new(snapshot, prefix, self.query.order, block_of(segment.ids(self.kind.table).start))
    }

    /// Adds the rows of a block to the batch.
    fn add(&mut self, batch: &mut Batch<'_>, block: u64, mut bits: Bits) -> Result<ControlFlow<()>, Error> {
        loop {
            let place = match self.query.order {
                Order::OldestFirst => bits.pop_first(),
                Order::NewestFirst => bits.pop_last(),
            };
            let Some(place) = place else { return Ok(ControlFlow::Continue(())) };
            batch.ids.push(block + place);
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(MAX_ROWS_PER_READ);
            if batch.ids.len() >= wanted && self.read(batch)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    /// Reads the rows of the batch, which is empty after that.
    fn read(&mut self, batch: &mut Batch<'_>) -> Result<ControlFlow<()>, Error> {
        let rows = batch.rows.read(&batch.ids)?;
        batch.ids.clear();
        for (id, value) in rows {
            self.meter.step()?;
            let (_, record) = decode_row(&value)?;
            if !self.query.matches(self.kind, &record) {
                continue;
            }
            self.left -= 1;
            if (self.each)(id, record).is_break() || self.left == 0 {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
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
