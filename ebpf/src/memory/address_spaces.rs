//! Executable mappings of each address space, in the tables that the programs search.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use aya::maps::{Array, ArrayOfMaps, MapData, MapError};

use super::abi::{AddressSpace, INNER_FLAGS, MAX_ADDRESS_SPACES, MAX_TABLES, RawMapping, UNMAPPED_CONFIRMED};
use super::reading::ModuleId;
use crate::mmap_array::MmapArray;

type MappingTable = Array<MapData, RawMapping>;

/// An executable mapping of a process, with the unwind table of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnwindMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) module: Option<ModuleId>,
    /// Address in the process minus address in the rows.
    pub(crate) bias: u64,
    /// Index in `rule_tables`.
    pub(crate) slot: u32,
    pub(crate) rows: u32,
}

/// A root of the kernel's call tree, and the node below it for frames that get none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) node: u32,
    pub(crate) overflow: u32,
}

/// All address spaces.
pub(crate) struct AddressSpaces {
    entries: MmapArray<AddressSpace>,
    tables: ArrayOfMaps<MapData, MappingTable>,
    /// Unused indices of `tables`, among those below `limit`.
    free: Vec<u32>,
    limit: u32,
    unused: MappingTable,
    last_generation: u32,
}

impl AddressSpaces {
    pub(crate) fn new(
        entries: MmapArray<AddressSpace>,
        tables: ArrayOfMaps<MapData, MappingTable>,
    ) -> Result<Self, MapError> {
        let unused = MappingTable::create(1, INNER_FLAGS)?;
        Ok(Self { entries, tables, free: Vec::new(), limit: 1, unused, last_generation: 0 })
    }

    /// The entry of an address space; `None` if the entry has been reused for another one.
    pub(crate) fn get(&self, mm: u32) -> Option<AddressSpace> {
        self.entries.get(mm % MAX_ADDRESS_SPACES).filter(|entry| entry.mm == mm)
    }

    /// Whether no living process uses the entry of this number.
    pub(crate) fn is_free(&self, mm: u32) -> bool {
        self.entries.get(mm % MAX_ADDRESS_SPACES).is_some_and(|entry| entry.in_use == 0)
    }

    /// Creates an address space whose stacks are below `root`.
    pub(crate) fn begin(&self, mm: u32, root: Root) {
        let Root { node, overflow } = root;
        let entry = AddressSpace { mm, root: node, overflow, in_use: 1, ..AddressSpace::default() };
        self.entries.set(mm % MAX_ADDRESS_SPACES, entry);
    }

    /// Releases the entry of an address space that no process uses any more.
    pub(crate) fn end(&self, mm: u32) {
        if self.get(mm).is_some()
            && let Some(in_use) =
                self.entries.atomic(mm % MAX_ADDRESS_SPACES, std::mem::offset_of!(AddressSpace, in_use))
        {
            in_use.store(0, Ordering::Release);
        }
    }

    /// Passes the mappings of an address space, sorted by address, to the programs. With a `root`, new stacks are below that.
    ///
    /// `in_use` are the address spaces whose tables must not be freed.
    pub(crate) fn publish(
        &mut self,
        mm: u32,
        mappings: &[UnwindMapping],
        root: Option<Root>,
        in_use: &BTreeSet<u32>,
    ) -> Result<(), MapError> {
        // The entry of a process that has exited may have been reused.
        if self.get(mm).is_none() {
            return Ok(());
        }
        let slot = self.new_table(mappings, in_use)?;
        let atomic = |offset| self.entries.atomic(mm % MAX_ADDRESS_SPACES, offset);
        let store = |offset, value| {
            if let Some(value_at) = atomic(offset) {
                value_at.store(value, Ordering::Release);
            }
        };
        self.last_generation += 1;
        // The generation last: cache entries of this generation must belong to these mappings.
        store(std::mem::offset_of!(AddressSpace, mappings), slot);
        if let Some(Root { node, overflow }) = root {
            store(std::mem::offset_of!(AddressSpace, overflow), overflow);
            store(std::mem::offset_of!(AddressSpace, root), node);
        }
        store(std::mem::offset_of!(AddressSpace, generation), self.last_generation);
        store(std::mem::offset_of!(AddressSpace, unmapped), 0);
        Ok(())
    }

    /// Roots of the stacks of all address spaces.
    pub(crate) fn roots(&self) -> HashSet<u32> {
        self.in_use().map(|(_, entry)| entry.root).collect()
    }

    fn in_use(&self) -> impl Iterator<Item = (u32, AddressSpace)> {
        let entries = (0..MAX_ADDRESS_SPACES).filter_map(|index| Some((index, self.entries.get(index)?)));
        entries.filter(|(_, entry)| entry.in_use != 0)
    }

    /// Invalidates all cached stacks, so that the nodes in them are not used any more.
    pub(crate) fn renew_generations(&mut self) {
        let indices: Vec<u32> = self.in_use().map(|(index, _)| index).collect();
        for index in indices {
            self.last_generation += 1;
            if let Some(generation) = self.entries.atomic(index, std::mem::offset_of!(AddressSpace, generation)) {
                generation.store(self.last_generation, Ordering::Release);
            }
        }
    }

    /// Corrects the number of nodes of the target that has the address space.
    pub(crate) fn set_nodes(&self, mm: u32, nodes: u32) {
        if self.get(mm).is_some()
            && let Some(count) = self.entries.atomic(mm % MAX_ADDRESS_SPACES, std::mem::offset_of!(AddressSpace, nodes))
        {
            count.store(nodes, Ordering::Relaxed);
        }
    }

    /// Enables the notice about an address in no mapping again.
    pub(crate) fn reset_unmapped(&self, mm: u32) {
        self.set_unmapped(mm, 0);
    }

    /// Confirms that the reported address is in no mapping.
    pub(crate) fn confirm_unmapped(&self, mm: u32) {
        self.set_unmapped(mm, UNMAPPED_CONFIRMED);
    }

    fn set_unmapped(&self, mm: u32, value: u32) {
        if let Some(unmapped) =
            self.entries.atomic(mm % MAX_ADDRESS_SPACES, std::mem::offset_of!(AddressSpace, unmapped))
        {
            unmapped.store(value, Ordering::Release);
        }
    }

    fn new_table(&mut self, mappings: &[UnwindMapping], in_use: &BTreeSet<u32>) -> Result<u32, MapError> {
        if self.free.is_empty() {
            self.collect(in_use);
        }
        let count = u32::try_from(mappings.len()).unwrap_or(u32::MAX);
        let mut table = MappingTable::create(count.saturating_add(1), INNER_FLAGS)?;
        table.set(0, RawMapping { rows: count, ..RawMapping::default() }, 0)?;
        for (index, mapping) in (1..).zip(mappings) {
            let UnwindMapping { start, end, bias, slot, rows, .. } = *mapping;
            table.set(index, RawMapping { start, end, bias, table: slot, rows }, 0)?;
        }
        let slot = self.free.pop().ok_or(MapError::OutOfBounds { index: MAX_TABLES, max_entries: MAX_TABLES })?;
        self.tables.set(slot, &table, 0)?;
        Ok(slot)
    }

    /// Frees the tables that no living address space uses. A child shares the table of its parent until it has its own.
    fn collect(&mut self, in_use: &BTreeSet<u32>) {
        let needed: BTreeSet<u32> = in_use.iter().filter_map(|mm| Some(self.get(*mm)?.mappings)).collect();
        for slot in (1..self.limit).filter(|slot| !needed.contains(slot)) {
            // Elements of an array of maps of this kind are replaced, not removed: by a table of one mapping.
            if self.tables.set(slot, &self.unused, 0).is_ok() {
                self.free.push(slot);
            }
        }
        // Doubles the limit, so that this happens rarely.
        let more = self.limit.max(64).saturating_add(self.limit).min(MAX_TABLES);
        self.free.extend(self.limit..more);
        self.limit = more;
    }
}
