//! Where a process has code, as the kernel searches it: a table of mappings for each layout that is in use.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use aya::maps::{Array, ArrayOfMaps, MapData, MapError};

use super::kernel::{INNER_FLAGS, LAYOUTS, Layout, RawMapping, TABLES, UNMAPPED_KNOWN};
use super::modules::Placed;
use super::shared::SharedArray;

type MappingTable = Array<MapData, RawMapping>;

/// All layouts.
pub(crate) struct Layouts {
    entries: SharedArray<Layout>,
    tables: ArrayOfMaps<MapData, MappingTable>,
    /// Indices without a table that is needed, of those below `limit`.
    free: Vec<u32>,
    limit: u32,
    unused: MappingTable,
    last_epoch: u32,
}

impl Layouts {
    pub(crate) fn new(
        entries: SharedArray<Layout>,
        tables: ArrayOfMaps<MapData, MappingTable>,
    ) -> Result<Self, MapError> {
        let unused = MappingTable::create(1, INNER_FLAGS)?;
        Ok(Self { entries, tables, free: Vec::new(), limit: 1, unused, last_epoch: 0 })
    }

    /// The layout of an address space, unless its place was given to another.
    pub(crate) fn get(&self, image: u32) -> Option<Layout> {
        self.entries.get(image % LAYOUTS).filter(|layout| layout.image == image)
    }

    /// Whether no living process has the entry that an address space of this number would get.
    pub(crate) fn is_free(&self, image: u32) -> bool {
        self.entries.get(image % LAYOUTS).is_some_and(|layout| layout.in_use == 0)
    }

    /// Begins an address space whose stacks hang from `root`.
    pub(crate) fn begin(&self, image: u32, root: u32) {
        self.entries.set(image % LAYOUTS, Layout { image, root, in_use: 1, ..Layout::default() });
    }

    /// No process has this address space any more.
    pub(crate) fn end(&self, image: u32) {
        if self.get(image).is_some()
            && let Some(in_use) = self.entries.number(image % LAYOUTS, std::mem::offset_of!(Layout, in_use))
        {
            in_use.store(0, Ordering::Release);
        }
    }

    /// Lets the kernel unwind by these mappings from now on, sorted by address. With a `root`, stacks hang from that one.
    ///
    /// `in_use` are address spaces whose tables must stay.
    pub(crate) fn publish(
        &mut self,
        image: u32,
        placed: &[Placed],
        root: Option<u32>,
        in_use: &HashSet<u32>,
    ) -> Result<(), MapError> {
        // A process that ended has given it away.
        if self.get(image).is_none() {
            return Ok(());
        }
        let slot = self.new_table(placed, in_use)?;
        let number = |offset| self.entries.number(image % LAYOUTS, offset);
        let store = |offset, value| {
            if let Some(number) = number(offset) {
                number.store(value, Ordering::Release);
            }
        };
        self.last_epoch += 1;
        // The epoch last: what the kernel remembers under it must be of these mappings.
        store(std::mem::offset_of!(Layout, mappings), slot);
        if let Some(root) = root {
            store(std::mem::offset_of!(Layout, root), root);
        }
        store(std::mem::offset_of!(Layout, epoch), self.last_epoch);
        store(std::mem::offset_of!(Layout, unmapped), 0);
        Ok(())
    }

    /// From now on an address in no mapping is told again.
    pub(crate) fn ask_again(&self, image: u32) {
        self.set_unmapped(image, 0);
    }

    /// An address that was told of is in no mapping.
    pub(crate) fn answer(&self, image: u32) {
        self.set_unmapped(image, UNMAPPED_KNOWN);
    }

    fn set_unmapped(&self, image: u32, value: u32) {
        if let Some(number) = self.entries.number(image % LAYOUTS, std::mem::offset_of!(Layout, unmapped)) {
            number.store(value, Ordering::Release);
        }
    }

    fn new_table(&mut self, placed: &[Placed], in_use: &HashSet<u32>) -> Result<u32, MapError> {
        if self.free.is_empty() {
            self.collect(in_use);
        }
        let count = u32::try_from(placed.len()).unwrap_or(u32::MAX);
        let mut table = MappingTable::create(count.saturating_add(1), INNER_FLAGS)?;
        table.set(0, RawMapping { rows: count, ..RawMapping::default() }, 0)?;
        for (index, place) in (1..).zip(placed) {
            let Placed { start, end, bias, slot, rows, .. } = *place;
            table.set(index, RawMapping { start, end, bias, table: slot, rows }, 0)?;
        }
        let slot = self.free.pop().ok_or(MapError::OutOfBounds { index: TABLES, max_entries: TABLES })?;
        self.tables.set(slot, &table, 0)?;
        Ok(slot)
    }

    /// Frees the tables that no living address space uses. Children share their parent's until they have their own.
    fn collect(&mut self, in_use: &HashSet<u32>) {
        let needed: HashSet<u32> = in_use.iter().filter_map(|image| Some(self.get(*image)?.mappings)).collect();
        for slot in (1..self.limit).filter(|slot| !needed.contains(slot)) {
            // The array has no way to remove an element; a table of one mapping takes the place.
            if self.tables.set(slot, &self.unused, 0).is_ok() {
                self.free.push(slot);
            }
        }
        // Room for as many again, so that this is seldom done.
        let more = self.limit.max(64).saturating_add(self.limit).min(TABLES);
        self.free.extend(self.limit..more);
        self.limit = more;
    }
}
