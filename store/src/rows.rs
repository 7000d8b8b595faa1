//! Reads the rows of a kind in one segment by their ids.

use crate::{
    Error,
    engine::{Cursor, Snapshot},
    keys,
    kind::FactKind,
};

/// An id and the value of its row.
type Row = (u64, Vec<u8>);

/// Fewest rows that are read by a cursor.
const MIN_SCANNED: usize = 4;

/// The rows of a kind in one segment.
pub(crate) struct Rows<'a> {
    snapshot: &'a dyn Snapshot,
    node: u32,
    segment: u32,
    kind: &'a FactKind,
    /// A cursor for runs of consecutive ids, and the id it is at.
    scan: Option<(Box<dyn Cursor + 'a>, Option<u64>)>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(snapshot: &'a dyn Snapshot, node: u32, segment: u32, kind: &'a FactKind) -> Self {
        Self { snapshot, node, segment, kind, scan: None }
    }

    /// The rows of these ids, which ascend or descend, in their order.
    pub(crate) fn read(&mut self, ids: &[u64]) -> Result<Vec<Row>, Error> {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return Ok(Vec::new()) };
        let mut ascending = ids.to_vec();
        ascending.sort_unstable();
        // Neighbours lie in the same block of a file: passing over a few is cheaper than a search for each. The search of a
        // cursor, which looks into every level without a Bloom filter, has to be shared by several of them.
        let is_dense = ids.len() >= MIN_SCANNED && first.abs_diff(last) < 2 * ids.len() as u64;
        let mut rows = if is_dense { self.scan(&ascending)? } else { self.get(&ascending)? };
        if first > last {
            rows.reverse();
        }
        Ok(rows)
    }

    fn key(&self, id: u64) -> Vec<u8> {
        keys::row(self.node, self.segment, self.kind.table, id).to_vec()
    }

    fn get(&self, ids: &[u64]) -> Result<Vec<Row>, Error> {
        let keys: Vec<_> = ids.iter().map(|id| self.key(*id)).collect();
        let found = ids.iter().zip(self.snapshot.get_many(&keys)?);
        found.map(|(&id, value)| Ok((id, value.ok_or_else(|| self.missing(id))?))).collect()
    }

    fn scan(&mut self, ids: &[u64]) -> Result<Vec<Row>, Error> {
        let (mut cursor, mut at) = match self.scan.take() {
            Some(scan) => scan,
            None => {
                let range = keys::table_range(self.node, self.segment, self.kind.table);
                (self.snapshot.cursor(&range.start..&range.end), None)
            }
        };
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            // By steps if the row that was read last is right before, else by a search.
            match at {
                Some(at) if at < id && id - at <= 4 => (at..id).try_for_each(|_| cursor.next())?,
                _ => cursor.seek(&self.key(id))?,
            }
            match cursor.entry() {
                Some((key, value)) if keys::last_number(key) == Some(id) => rows.push((id, value.to_vec())),
                _ => return Err(self.missing(id)),
            }
            at = Some(id);
        }
        self.scan = Some((cursor, at));
        Ok(rows)
    }

    fn missing(&self, id: u64) -> Error {
        Error::Corrupt(format!("{} {id} is missing", self.kind.name))
    }
}
