//! Limit on the number of bytes that are read of a file: a sparse file can announce tables of any size.

use std::cell::Cell;
use std::ops::Range;

use object::ReadRef;

/// Number of bytes that may still be read.
pub(crate) struct ReadLimit {
    /// `None` once a read exceeded it.
    left: Cell<Option<u64>>,
}

impl ReadLimit {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { left: Cell::new(Some(bytes)) }
    }

    /// The data, as far as the limit allows.
    pub(crate) fn over<R>(&self, data: R) -> Limited<'_, R> {
        Limited { data, limit: self }
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.left.get().is_none()
    }

    fn spend(&self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().and_then(|left| left.checked_sub(bytes));
        self.left.set(left);
        left.map(|_| ()).ok_or(())
    }
}

/// Data of which a limited number of bytes can be read.
#[derive(Clone, Copy)]
pub(crate) struct Limited<'a, R> {
    data: R,
    limit: &'a ReadLimit,
}

impl<'data, R: ReadRef<'data>> ReadRef<'data> for Limited<'_, R> {
    fn len(self) -> Result<u64, ()> {
        self.data.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        // A read beyond the end of the file is an error of its own.
        if offset.checked_add(size).is_none_or(|end| self.len().is_ok_and(|length| end > length)) {
            return Err(());
        }
        self.limit.spend(size)?;
        self.data.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        let bytes = self.data.read_bytes_at_until(range, delimiter)?;
        self.limit.spend(bytes.len() as u64)?;
        Ok(bytes)
    }
}
