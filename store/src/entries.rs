//! Entries of an index or zone map, one a block of ids, read in either order by cursors that move forward only.
//!
//! Ascending, the entries are read as they come. Descending, a window of blocks before the wanted one is read forward and
//! kept; the window doubles as long as it holds too little, so that a value that is rare costs few searches.

use std::ops::Range;

use crate::{
    Error,
    engine::{Cursor, Snapshot},
    keys,
    posting::BLOCK,
    query::Order,
};

/// Blocks in the first window of a descending read.
const FIRST_WINDOW: u64 = 8;
/// Blocks in the largest window: its postings take 64 KiB.
const MAX_WINDOW: u64 = 512;

/// The entries of one key prefix, in the order of the query. It only moves in that order.
pub(crate) struct BlockEntries<'a> {
    cursor: Box<dyn Cursor + 'a>,
    /// The prefix, with space for the block.
    key: Vec<u8>,
    prefix: usize,
    order: Order,
    /// The block of the entry it is at; `None` before the first move and past the end.
    block: Option<u64>,
    /// Descending: the first block that the prefix can have.
    least: u64,
    window: Window,
    started: bool,
}

/// What a descending read has read ahead.
#[derive(Default)]
struct Window {
    /// Blocks from here on were read.
    start: u64,
    /// Blocks in the next window.
    size: u64,
    /// Ascending, with the place of the value in `bytes`. The last one is the entry it is at.
    entries: Vec<(u64, Range<usize>)>,
    bytes: Vec<u8>,
}

impl<'a> BlockEntries<'a> {
    /// The entries whose keys are the prefix and a block, at least `least`.
    pub(crate) fn new(snapshot: &'a dyn Snapshot, prefix: Vec<u8>, order: Order, least: u64) -> Self {
        let cursor = snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
        let window = Window { size: FIRST_WINDOW, ..Window::default() };
        Self { cursor, prefix: prefix.len(), key: prefix, order, block: None, least, window, started: false }
    }

    /// Whether `a` comes strictly before `b` in its order.
    pub(crate) fn before(&self, a: u64, b: u64) -> bool {
        match self.order {
            Order::OldestFirst => a < b,
            Order::NewestFirst => a > b,
        }
    }

    /// Moves to the first entry at or behind `block` in its order; gives its block. Stays if it is there already.
    pub(crate) fn seek(&mut self, block: u64) -> Result<Option<u64>, Error> {
        let first = !std::mem::replace(&mut self.started, true);
        match self.order {
            Order::OldestFirst => self.seek_ascending(block, first)?,
            Order::NewestFirst => self.seek_descending(block, first)?,
        }
        Ok(self.block)
    }

    /// The value of the entry it is at.
    pub(crate) fn value(&self) -> &[u8] {
        match self.order {
            Order::OldestFirst => self.cursor.entry().map_or(&[], |(_, value)| value),
            Order::NewestFirst => {
                let last = self.window.entries.last();
                last.and_then(|(_, place)| self.window.bytes.get(place.clone())).unwrap_or_default()
            }
        }
    }

    /// An entry that cannot be decoded.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        let prefix = self.key.get(..self.prefix).unwrap_or_default();
        Error::Corrupt(format!("the {what} of block {:?} under {prefix:02x?} cannot be read", self.block))
    }

    fn seek_ascending(&mut self, block: u64, first: bool) -> Result<(), Error> {
        if !first {
            match self.block {
                None => return Ok(()),
                Some(at) if at >= block => return Ok(()),
                // The next entry is nearly always the wanted one or behind it.
                Some(_) => self.cursor.next()?,
            }
            self.block = block_at(&*self.cursor);
            if self.block.is_none_or(|at| at >= block) {
                return Ok(());
            }
        }
        self.move_cursor(block)?;
        self.block = block_at(&*self.cursor);
        Ok(())
    }

    fn seek_descending(&mut self, block: u64, first: bool) -> Result<(), Error> {
        if first {
            self.window.start = block.saturating_add(BLOCK);
        }
        loop {
            while self.window.entries.pop_if(|(at, _)| *at > block).is_some() {}
            self.block = self.window.entries.last().map(|(at, _)| *at);
            if self.block.is_some() || self.window.start <= self.least {
                return Ok(());
            }
            self.read_window(block)?;
        }
    }

    /// Reads the window that ends at `block`, or before what was read already.
    fn read_window(&mut self, block: u64) -> Result<(), Error> {
        let end = self.window.start.min(block.saturating_add(BLOCK));
        let start = end.saturating_sub(self.window.size * BLOCK).max(self.least);
        self.window.size = (2 * self.window.size).min(MAX_WINDOW);
        self.window.start = start;
        self.window.bytes.clear();
        self.move_cursor(start)?;
        while let Some(at) = block_at(&*self.cursor).filter(|at| *at < end) {
            let from = self.window.bytes.len();
            self.window.bytes.extend_from_slice(self.cursor.entry().map_or(&[], |(_, value)| value));
            self.window.entries.push((at, from..self.window.bytes.len()));
            self.cursor.next()?;
        }
        Ok(())
    }

    fn move_cursor(&mut self, block: u64) -> Result<(), Error> {
        self.key.truncate(self.prefix);
        self.key.extend_from_slice(&block.to_be_bytes());
        self.cursor.seek(&self.key)
    }
}

fn block_at(cursor: &dyn Cursor) -> Option<u64> {
    cursor.entry().and_then(|(key, _)| keys::last_number(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::{Batch, Engine as _, memory::MemoryEngine};

    proptest! {
        #[test]
        fn finds_the_entry_at_or_behind_each_block_in_both_orders(
            least in 0..5u64,
            blocks in proptest::collection::btree_set(0..3000u64, 0..60),
            mut wanted in proptest::collection::vec(0..3100u64, 1..20),
        ) {
            let blocks: BTreeSet<u64> = blocks.iter().map(|block| (least + block) * BLOCK).collect();
            let engine = MemoryEngine::new(u64::MAX);
            let mut batch = Batch::default();
            batch.put(b"a", b"before");
            batch.put(b"q", b"behind");
            for block in &blocks {
                batch.put(&[b"p".as_slice(), &block.to_be_bytes()].concat(), &block.to_le_bytes());
            }
            engine.write(&batch).unwrap();
            let snapshot = engine.snapshot();
            wanted.sort_unstable();
            for order in [Order::OldestFirst, Order::NewestFirst] {
                let mut entries = BlockEntries::new(&*snapshot, b"p".to_vec(), order, least * BLOCK);
                for wanted in &wanted {
                    let wanted = wanted * BLOCK;
                    let expected = match order {
                        Order::OldestFirst => blocks.range(wanted..).next(),
                        Order::NewestFirst => blocks.range(..=wanted).next_back(),
                    };
                    prop_assert_eq!(entries.seek(wanted).unwrap(), expected.copied());
                    if let Some(block) = expected {
                        prop_assert_eq!(entries.value(), block.to_le_bytes());
                    }
                }
                wanted.reverse();
            }
        }
    }
}
