//! Writes that are applied together.

use std::ops::Range;

/// Writes that belong together, in order.
///
/// The bytes lie in one buffer. A batch outlives its write: it is written again when the disk was full.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    writes: Vec<(WriteKind, u32, u32)>,
}

#[derive(Clone, Copy)]
enum WriteKind {
    Put,
    Delete,
    DeleteRange,
}

/// One write of a [`Batch`].
pub(crate) enum Write<'a> {
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
    /// From the first (included) to the second (excluded).
    DeleteRange(&'a [u8], &'a [u8]),
}

impl Batch {
    /// Bytes of keys and values.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Removes the writes; keeps the buffer unless it is larger than `keep` bytes.
    pub(crate) fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.writes.clear();
        if self.bytes.capacity() > keep {
            self.bytes.shrink_to(keep);
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.add(WriteKind::Put, key, |bytes| bytes.extend_from_slice(value));
    }

    /// Puts a value that is encoded right into the batch.
    pub(crate) fn put_with(&mut self, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        self.add(WriteKind::Put, key, value);
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.add(WriteKind::Delete, key, |_| ());
    }

    pub(crate) fn delete_range(&mut self, range: Range<&[u8]>) {
        self.add(WriteKind::DeleteRange, range.start, |bytes| bytes.extend_from_slice(range.end));
    }

    fn add(&mut self, kind: WriteKind, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(key);
        let before = self.bytes.len();
        value(&mut self.bytes);
        // A record is at most a gRPC frame and a key a few hundred bytes: neither comes near 4 GiB.
        self.writes.push((kind, key.len() as u32, (self.bytes.len() - before) as u32));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        let mut rest = self.bytes.as_slice();
        self.writes.iter().map(move |&(kind, key, value)| {
            let (key, after) = rest.split_at(key as usize);
            let (value, after) = after.split_at(value as usize);
            rest = after;
            match kind {
                WriteKind::Put => Write::Put(key, value),
                WriteKind::Delete => Write::Delete(key),
                WriteKind::DeleteRange => Write::DeleteRange(key, value),
            }
        })
    }
}
