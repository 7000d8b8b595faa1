//! The files that processes map, and their unwind tables in the kernel: one for each file, however many processes map it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use aya::maps::{Array, ArrayOfMaps, MapData};
use chainscope_unwind::{Image, Limits, Row, Table};
use object::read::ReadCache;

use super::kernel::{INNER_FLAGS, RulePair, TABLES};
use super::maps::CodeMapping;
use super::open::open;
use super::reading::{Module, ModuleId};
use super::shared::SharedArray;

/// Rows of all tables together: 12 bytes of kernel memory each.
const ROWS: u64 = 48 << 20;
/// Reasons that are kept.
const REFUSED: usize = 64;

type RuleTable = Array<MapData, RulePair>;
type RuleTables = ArrayOfMaps<MapData, RuleTable>;

/// A table in the kernel.
#[derive(Clone, Debug)]
struct Loaded {
    /// Index in `rule_tables`; 0 is never used.
    slot: u32,
    rows: u32,
    base: u64,
}

/// A file that was mapped, and what is known of it.
#[derive(Debug)]
struct Known {
    module: Module,
    image: Image,
    table: Option<Loaded>,
}

/// Which file it is; one that is overwritten in place is another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    path: PathBuf,
    size: u64,
    changed: (i64, i64),
}

/// Where a piece of code is in a process, and by which table it is unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) module: Option<ModuleId>,
    /// What to subtract from an address to get one of a row.
    pub(crate) bias: u64,
    pub(crate) slot: u32,
    pub(crate) rows: u32,
}

/// All files.
pub(crate) struct Modules {
    known: Vec<Known>,
    by_identity: HashMap<Identity, ModuleId>,
    vdso: Option<(Loaded, Image)>,
    tables: RuleTables,
    free: Vec<u32>,
    unused: RuleTable,
    rows: u64,
    refused: Vec<(PathBuf, String)>,
}

impl Modules {
    /// Keeps tables in `tables`, the array of arrays of the object.
    pub(crate) fn new(tables: RuleTables) -> Result<Self, aya::maps::MapError> {
        let mut modules = Self {
            known: Vec::new(),
            by_identity: HashMap::new(),
            vdso: None,
            tables,
            free: (1..TABLES).rev().collect(),
            unused: Array::create(1, INNER_FLAGS)?,
            rows: 0,
            refused: Vec::new(),
        };
        modules.vdso = modules.load_vdso();
        Ok(modules)
    }

    /// Those from number `first` on.
    pub(crate) fn since(&self, first: usize) -> Vec<Module> {
        self.known.iter().skip(first).map(|known| known.module.clone()).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// Rows in the kernel.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Files without a table although they should have one, and why.
    pub(crate) fn refused(&self) -> &[(PathBuf, String)] {
        &self.refused
    }

    /// The mapping's module and table, made if it is new.
    pub(crate) fn place(&mut self, pid: u32, mapping: &CodeMapping, in_use: &HashSet<ModuleId>) -> Placed {
        let (start, end, offset) = (mapping.start, mapping.end, mapping.offset);
        let plain = Placed { start, end, offset, module: None, bias: 0, slot: 0, rows: 0 };
        if mapping.inode == 0 {
            return match &self.vdso {
                Some((table, image)) if mapping.path.as_os_str() == "[vdso]" => placed(plain, table, image),
                _ => plain,
            };
        }
        let file = open(pid, mapping);
        let metadata = file.as_ref().ok().and_then(|file| file.metadata().ok());
        let identity = Identity {
            device: mapping.device,
            inode: mapping.inode,
            path: mapping.path.clone(),
            size: metadata.as_ref().map_or(0, MetadataExt::size),
            changed: metadata.as_ref().map_or((0, 0), |metadata| (metadata.mtime(), metadata.mtime_nsec())),
        };
        // Of one that has ended meanwhile nothing can be opened; somebody else's was probably the same.
        let known = match &file {
            Ok(_) => self.by_identity.get(&identity).copied(),
            Err(_) => self.same_place(mapping),
        };
        let id = match known {
            Some(id) => id,
            None => self.add(pid, mapping, identity, file, in_use),
        };
        let plain = Placed { module: Some(id), ..plain };
        match self.known.get(id.0 as usize) {
            Some(Known { table: Some(table), image, .. }) => placed(plain, table, image),
            _ => plain,
        }
    }

    fn add(
        &mut self,
        pid: u32,
        mapping: &CodeMapping,
        identity: Identity,
        file: Result<File, String>,
        in_use: &HashSet<ModuleId>,
    ) -> ModuleId {
        let id = ModuleId(u32::try_from(self.known.len()).unwrap_or(u32::MAX));
        let module = Module {
            id,
            path: mapping.path.clone(),
            device: mapping.device,
            inode: mapping.inode,
            pid,
            range: (mapping.start, mapping.end),
            deleted: mapping.deleted,
        };
        let table = file.and_then(|file| {
            let bytes = ReadCache::new(file);
            let limits = Limits::default();
            Table::read(&bytes, &limits).map_err(|error| error.to_string())
        });
        let (image, table) = match table {
            Ok(table) => {
                if let Some(skipped) = table.skipped() {
                    self.refuse(mapping, format!("{} entries skipped, first {}", skipped.entries, skipped.first));
                }
                match self.load(table.base(), table.rows(), in_use) {
                    Ok(loaded) => (table.image().clone(), Some(loaded)),
                    Err(cause) => {
                        self.refuse(mapping, cause);
                        (table.image().clone(), None)
                    }
                }
            }
            Err(cause) => {
                self.refuse(mapping, cause);
                (Image::default(), None)
            }
        };
        self.known.push(Known { module, image, table });
        self.by_identity.insert(identity, id);
        id
    }

    /// The file that was last seen in that place.
    fn same_place(&self, mapping: &CodeMapping) -> Option<ModuleId> {
        let same = |known: &&Known| {
            let Module { device, inode, path, .. } = &known.module;
            (device, inode, path) == (&mapping.device, &mapping.inode, &mapping.path)
        };
        self.known.iter().rfind(same).map(|known| known.module.id)
    }

    fn refuse(&mut self, mapping: &CodeMapping, cause: String) {
        if self.refused.len() < REFUSED {
            self.refused.push((mapping.path.clone(), cause));
        }
    }

    fn load(&mut self, base: u64, rows: &[Row], in_use: &HashSet<ModuleId>) -> Result<Loaded, String> {
        let count = u32::try_from(rows.len()).map_err(|error| error.to_string())?;
        if self.free.is_empty() || self.rows + u64::from(count) > ROWS {
            self.unload_unused(in_use);
        }
        if self.rows + u64::from(count) > ROWS {
            return Err(format!("{count} rules, with {} of {ROWS} in use", self.rows));
        }
        let slot = *self.free.last().ok_or("too many files with code")?;
        let pairs = count.div_ceil(2).max(1);
        let map = RuleTable::create(pairs, INNER_FLAGS).map_err(|error| error.to_string())?;
        let shared: SharedArray<RulePair> = SharedArray::of_inner(&map, pairs).map_err(|error| error.to_string())?;
        // The last pair may have one row only: the other is beyond every search.
        for (index, pair) in (0..).zip(rows.chunks(2)) {
            let [first, second] = [pair.first(), pair.get(1)].map(|row| row.map_or([u32::MAX, 0, 0], words));
            shared.set(index, [first[0], first[1], first[2], second[0], second[1], second[2]]);
        }
        self.tables.set(slot, &map, 0).map_err(|error| error.to_string())?;
        self.free.pop();
        self.rows += u64::from(count);
        Ok(Loaded { slot, rows: count, base })
    }

    /// Tables of files that no process maps any more make room; they are made again if one does.
    fn unload_unused(&mut self, in_use: &HashSet<ModuleId>) {
        let mut gone = HashSet::new();
        for known in &mut self.known {
            if in_use.contains(&known.module.id) {
                continue;
            }
            if let Some(table) = known.table.take() {
                gone.insert(known.module.id);
                self.rows -= u64::from(table.rows);
                // The array has no way to remove an element; a table of one row takes the place.
                if self.tables.set(table.slot, &self.unused, 0).is_ok() {
                    self.free.push(table.slot);
                }
            }
        }
        self.by_identity.retain(|_, id| !gone.contains(id));
    }

    /// The kernel's own piece of code in every process; the same in all.
    fn load_vdso(&mut self) -> Option<(Loaded, Image)> {
        let mapping = super::maps::code_of(std::process::id()).ok()?;
        let mapping = mapping.into_iter().find(|mapping| mapping.path.as_os_str() == "[vdso]")?;
        let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
        File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, mapping.start).ok()?;
        let table = Table::read(bytes.as_slice(), &Limits::default()).ok()?;
        let loaded = self.load(table.base(), table.rows(), &HashSet::new()).ok()?;
        Some((loaded, table.image().clone()))
    }
}

fn placed(plain: Placed, table: &Loaded, image: &Image) -> Placed {
    match image.bias(plain.start, plain.offset) {
        Some(bias) => Placed { bias: bias.wrapping_add(table.base), slot: table.slot, rows: table.rows, ..plain },
        None => plain,
    }
}

fn words(row: &Row) -> [u32; 3] {
    let [a, b] = row.rbp.to_le_bytes();
    let [c, d, e, f] = row.cfa.to_le_bytes();
    [row.pc, u32::from_le_bytes([c, d, e, f]), u32::from_le_bytes([a, b, row.cfa_kind, row.rbp_kind])]
}
