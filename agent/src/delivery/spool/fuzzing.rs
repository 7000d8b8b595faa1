//! Entry points of the fuzz targets of the spool.

use std::{collections::BTreeSet, path::Path};

use bytes::Bytes;
use chainscope_proto::v1::{Batch, Record};

use super::{
    Spool,
    format::{self, Entry, HEADER_BYTES, Header},
};
use crate::{Error, delivery::stream::StreamBuffer as _, folder::Epoch};

/// Directory of the streams below the folder that [`batches`] opens.
pub const EPOCH: &str = "spool/00000000000000000000000000000000";

/// A segment file.
pub fn segment(ordinal: u64, last: u64, records: &[Record]) -> Vec<u8> {
    let mut bytes = Header { ordinal, last }.encode().to_vec();
    for record in records {
        format::put(&mut bytes, ordinal, 0, record);
    }
    bytes
}

/// Ordinal, last replaced ordinal, and the records before the first invalid entry, with the offset at which they end.
pub fn scan(bytes: &Bytes) -> Option<(u64, u64, Vec<Record>, usize)> {
    let scan = format::scan(bytes);
    let header = scan.header?;
    let (mut records, mut at) = (Vec::new(), HEADER_BYTES);
    while let Entry::Record(record, size) = format::entry(&bytes.slice(at..), header.ordinal, at as u64) {
        records.push(record);
        at += size;
    }
    assert_eq!((scan.records, scan.valid_bytes), (records.len() as u64, at as u64));
    Some((header.ordinal, header.last, records, at))
}

/// Opens and repairs a spool, and returns what it sends to an aggregator that has no records.
///
/// # Errors
/// As those of the spool.
pub fn batches(folder: &Path, limit: u64) -> Result<Vec<Batch>, Error> {
    let mut spool = Spool::open(folder, &Epoch([0; 16]), limit, 1)?;
    let nodes: Vec<String> = spool.status().into_iter().map(|stream| stream.node).collect();
    spool.begin_session(&[], &nodes);
    spool.write_pending_losses();
    for (node, sync) in spool.unsynced() {
        sync.run().map_err(Error::file(folder))?;
        spool.finish_sync(&node, true);
    }
    Ok(std::iter::from_fn(|| spool.next_batch(&BTreeSet::new())).collect())
}
