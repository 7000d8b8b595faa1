//! Files that processes map as code, and their unwind tables in the kernel: one for each file, shared by all processes.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{Array, ArrayOfMaps, MapData};
use chainscope_unwind::{ElfSegments, Limits, Row, Table};

use super::abi::{INNER_FLAGS, MAX_TABLES, RulePair};
use super::address_spaces::UnwindMapping;
use super::code_files::{CodeFile, FileIdentity, KnownFiles, ReadMapping};
use super::foreign::lock;
use super::proc_maps::CodeMapping;
use super::reading::{Module, ModuleId};
use crate::mmap_array::MmapArray;

/// Maximum number of rows of all tables: 12 bytes of kernel memory each.
const MAX_ROWS: u64 = 48 << 20;
/// Maximum length of the list of refused files.
const MAX_REFUSED: usize = 64;

type RuleTable = Array<MapData, RulePair>;
type RuleTables = ArrayOfMaps<MapData, RuleTable>;

/// An unwind table in the kernel.
#[derive(Clone, Debug)]
struct LoadedTable {
    /// Index in `rule_tables`; 0 is never used.
    slot: u32,
    rows: u32,
    base: u64,
}

/// A file that was mapped.
#[derive(Debug)]
struct KnownModule {
    module: Module,
    segments: ElfSegments,
    table: Option<LoadedTable>,
}

/// All modules.
pub(crate) struct Modules {
    known: BTreeMap<ModuleId, KnownModule>,
    /// Number of all modules so far.
    count: u32,
    by_identity: KnownFiles,
    vdso: Option<(LoadedTable, ElfSegments)>,
    tables: RuleTables,
    free: Vec<u32>,
    unused: RuleTable,
    rows: u64,
    refused: Vec<(PathBuf, String)>,
}

impl Modules {
    /// Stores tables in `tables`, the map `rule_tables`.
    pub(crate) fn new(tables: RuleTables) -> Result<Self, aya::maps::MapError> {
        let mut modules = Self {
            known: BTreeMap::new(),
            count: 0,
            by_identity: KnownFiles::default(),
            vdso: None,
            tables,
            free: (1..MAX_TABLES).rev().collect(),
            unused: Array::create(1, INNER_FLAGS)?,
            rows: 0,
            refused: Vec::new(),
        };
        modules.vdso = modules.load_vdso();
        Ok(modules)
    }

    /// Modules from number `first` on.
    pub(crate) fn since(&self, first: ModuleId) -> Vec<Module> {
        self.known.range(first..).map(|(_, known)| known.module.clone()).collect()
    }

    /// The id of the next module.
    pub(crate) fn next(&self) -> ModuleId {
        ModuleId(self.count)
    }

    /// Number of modules in memory.
    pub(crate) fn held(&self) -> usize {
        self.known.len()
    }

    /// Removes the modules that are not in use, with their tables; returns them.
    pub(crate) fn remove_unused(&mut self, in_use: &HashSet<ModuleId>) -> Vec<ModuleId> {
        self.unload_unused(in_use);
        let unused: Vec<ModuleId> = self.known.keys().filter(|id| !in_use.contains(id)).copied().collect();
        for id in &unused {
            self.known.remove(id);
        }
        let known = &self.known;
        lock(&self.by_identity).retain(|_, id| known.contains_key(id));
        unused
    }

    /// Number of rows in the kernel.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Files whose unwind table could not be built, with the reason.
    pub(crate) fn refused(&self) -> &[(PathBuf, String)] {
        &self.refused
    }

    /// Files whose module exists.
    pub(super) fn known_files(&self) -> KnownFiles {
        Arc::clone(&self.by_identity)
    }

    /// Finds the module and the unwind table of a mapping, and loads the table of a new file. Returns false as well if the
    /// module has been removed since the file was read: it has to be read again.
    pub(super) fn resolve(&mut self, pid: u32, read: ReadMapping, in_use: &HashSet<ModuleId>) -> (UnwindMapping, bool) {
        let ReadMapping { mapping, file } = read;
        let (start, end, offset) = (mapping.start, mapping.end, mapping.offset);
        let plain = UnwindMapping { start, end, offset, module: None, bias: 0, slot: 0, rows: 0 };
        let known = |identity: &FileIdentity| lock(&self.by_identity).get(identity).copied();
        let id = match file {
            CodeFile::None => {
                return match &self.vdso {
                    Some((table, segments)) if mapping.path.as_os_str() == "[vdso]" => {
                        (with_table(plain, table, segments), true)
                    }
                    _ => (plain, true),
                };
            }
            CodeFile::Known(identity) => match known(&identity) {
                Some(id) => id,
                None => return (plain, false),
            },
            CodeFile::New(identity, table) => match known(&identity) {
                Some(id) => id,
                None => self.add(pid, &mapping, identity, table, in_use),
            },
            // The process may have exited in the meantime; then use the file that another process mapped from this path.
            CodeFile::Unopened(identity, cause) => match self.find_by_path(&mapping) {
                Some(id) => id,
                None => self.add(pid, &mapping, identity, Err(cause), in_use),
            },
        };
        let plain = UnwindMapping { module: Some(id), ..plain };
        match self.known.get(&id) {
            Some(KnownModule { table: Some(table), segments, .. }) => (with_table(plain, table, segments), true),
            _ => (plain, true),
        }
    }

    fn add(
        &mut self,
        pid: u32,
        mapping: &CodeMapping,
        identity: FileIdentity,
        table: Result<Table, String>,
        in_use: &HashSet<ModuleId>,
    ) -> ModuleId {
        let id = self.next();
        self.count = self.count.saturating_add(1);
        let module = Module {
            id,
            path: mapping.path.clone(),
            device: mapping.device,
            inode: mapping.inode,
            pid,
            range: (mapping.start, mapping.end),
            deleted: mapping.deleted,
        };
        let (segments, table) = match table {
            Ok(table) => {
                if let Some(skipped) = table.skipped() {
                    self.refuse(
                        mapping.path.clone(),
                        format!("{} entries skipped, first {}", skipped.entries, skipped.first),
                    );
                }
                match self.load(table.base(), table.rows(), in_use) {
                    Ok(loaded) => (table.segments().clone(), Some(loaded)),
                    Err(cause) => {
                        self.refuse(mapping.path.clone(), cause);
                        (table.segments().clone(), None)
                    }
                }
            }
            Err(cause) => {
                self.refuse(mapping.path.clone(), cause);
                (ElfSegments::default(), None)
            }
        };
        self.known.insert(id, KnownModule { module, segments, table });
        lock(&self.by_identity).insert(identity, id);
        id
    }

    /// The latest module with the device, inode and path of the mapping.
    fn find_by_path(&self, mapping: &CodeMapping) -> Option<ModuleId> {
        let same = |known: &&KnownModule| {
            let Module { device, inode, path, .. } = &known.module;
            (device, inode, path) == (&mapping.device, &mapping.inode, &mapping.path)
        };
        self.known.values().rfind(same).map(|known| known.module.id)
    }

    /// Adds to the list of refused files.
    pub(super) fn refuse(&mut self, path: PathBuf, cause: String) {
        let refused = (path, cause);
        if self.refused.len() < MAX_REFUSED && !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }

    fn load(&mut self, base: u64, rows: &[Row], in_use: &HashSet<ModuleId>) -> Result<LoadedTable, String> {
        let count = u32::try_from(rows.len()).map_err(|error| error.to_string())?;
        if self.free.is_empty() || self.rows + u64::from(count) > MAX_ROWS {
            self.unload_unused(in_use);
        }
        if self.rows + u64::from(count) > MAX_ROWS {
            return Err(format!("{count} rules, with {} of {MAX_ROWS} in use", self.rows));
        }
        let slot = *self.free.last().ok_or("too many files with code")?;
        let pairs = count.div_ceil(2).max(1);
        let map = RuleTable::create(pairs, INNER_FLAGS).map_err(|error| error.to_string())?;
        let mmap_array: MmapArray<RulePair> = MmapArray::of_inner(&map, pairs).map_err(|error| error.to_string())?;
        // The last pair may have one row only; u32::MAX is beyond the number of rows that is searched.
        for (index, pair) in (0..).zip(rows.chunks(2)) {
            let [first, second] = [pair.first(), pair.get(1)].map(|row| row.map_or([u32::MAX, 0, 0], words));
            mmap_array.set(index, [first[0], first[1], first[2], second[0], second[1], second[2]]);
        }
        self.tables.set(slot, &map, 0).map_err(|error| error.to_string())?;
        self.free.pop();
        self.rows += u64::from(count);
        Ok(LoadedTable { slot, rows: count, base })
    }

    /// Frees the tables of files that no process maps; they are built again when a process does.
    fn unload_unused(&mut self, in_use: &HashSet<ModuleId>) {
        let mut gone = HashSet::new();
        for known in self.known.values_mut() {
            if in_use.contains(&known.module.id) {
                continue;
            }
            if let Some(table) = known.table.take() {
                gone.insert(known.module.id);
                self.rows -= u64::from(table.rows);
                // Elements of an array of maps of this kind are replaced, not removed: by a table of one row.
                if self.tables.set(table.slot, &self.unused, 0).is_ok() {
                    self.free.push(table.slot);
                }
            }
        }
        lock(&self.by_identity).retain(|_, id| !gone.contains(id));
    }

    /// Loads the table of the vDSO, which is the same in all processes.
    fn load_vdso(&mut self) -> Option<(LoadedTable, ElfSegments)> {
        let mapping = super::proc_maps::code_of(Path::new("/proc"), std::process::id()).ok()?;
        let mapping = mapping.into_iter().find(|mapping| mapping.path.as_os_str() == "[vdso]")?;
        let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
        File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, mapping.start).ok()?;
        let table = Table::read(bytes.as_slice(), &Limits::default()).ok()?;
        let loaded = self.load(table.base(), table.rows(), &HashSet::new()).ok()?;
        Some((loaded, table.segments().clone()))
    }
}

fn with_table(plain: UnwindMapping, table: &LoadedTable, segments: &ElfSegments) -> UnwindMapping {
    match segments.load_bias(plain.start, plain.offset) {
        Some(bias) => {
            UnwindMapping { bias: bias.wrapping_add(table.base), slot: table.slot, rows: table.rows, ..plain }
        }
        None => plain,
    }
}

fn words(row: &Row) -> [u32; 3] {
    let [a, b] = row.rbp.to_le_bytes();
    let [c, d, e, f] = row.cfa.to_le_bytes();
    [row.pc, u32::from_le_bytes([c, d, e, f]), u32::from_le_bytes([a, b, row.cfa_kind, row.rbp_kind])]
}
