//! The functions of a file.

use std::collections::{BTreeMap, BTreeSet};

use object::ReadRef;

use crate::{
    demangle::{demangle, demangle_path},
    elf::{Segment, Symbol, Tables},
    error::{Error, FindError, ProbeError},
    function::{Function, Part},
    hazard::Hazard,
    inlined,
    path::plain,
    pattern::Pattern,
    probes::{self, Probes},
    suffix::{self, Kind},
};

/// Names that an error proposes.
const MAX_PROPOSED: usize = 5;
/// Minimum similarity of a name that is proposed.
const MIN_SIMILARITY: f64 = 0.7;

/// Sizes by address.
type Parts = BTreeMap<u64, u64>;

#[derive(Clone, Debug, Default)]
struct Entry {
    parts: Parts,
    cold: Parts,
}

fn list(parts: &Parts) -> Vec<Part> {
    parts.iter().map(|(address, size)| Part { address: *address, size: *size }).collect()
}

/// The functions of a file, and of its debug file if it has one.
#[derive(Clone, Debug)]
pub struct Functions {
    /// By symbol without the suffixes of copies.
    by_symbol: BTreeMap<String, Entry>,
    segments: Vec<Segment>,
    /// Sorted.
    starts: Vec<u64>,
    is_stripped: bool,
    hazard: Option<Hazard>,
    is_dynamic: bool,
}

impl Functions {
    /// Reads the symbols of a file, and of its separate debug file.
    ///
    /// # Errors
    /// It is not an ELF file for x86-64, or its tables are damaged or too large. A debug file that cannot be read is an error, too.
    pub fn read<'data, R: ReadRef<'data>>(data: R, debug: Option<R>) -> Result<Self, Error> {
        let tables = Tables::read(data)?;
        let debug = debug.map(Tables::read).transpose()?;
        let has_symtab = tables.has_symtab || debug.as_ref().is_some_and(|debug| debug.has_symtab);
        let mut functions = Self {
            by_symbol: BTreeMap::new(),
            hazard: Hazard::of(&tables, debug.as_ref()),
            is_dynamic: tables.is_dynamic,
            segments: tables.segments,
            starts: Vec::new(),
            is_stripped: !has_symtab,
        };
        for symbol in tables.symbols.iter().chain(debug.iter().flat_map(|debug| &debug.symbols)) {
            functions.add(symbol);
        }
        functions.starts.sort_unstable();
        functions.starts.dedup();
        Ok(functions)
    }

    fn add(&mut self, symbol: &Symbol<'_>) {
        if !symbol.is_defined {
            return;
        }
        let (base, kind) = suffix::split(symbol.name);
        // A part of its own is called by the rest: to time it as well would count calls twice.
        let base = if kind == Kind::Partial { symbol.name } else { base };
        if !self.by_symbol.contains_key(base) {
            self.by_symbol.insert(base.to_owned(), Entry::default());
        }
        let Some(entry) = self.by_symbol.get_mut(base) else { return };
        let parts = if kind == Kind::Cold { &mut entry.cold } else { &mut entry.parts };
        // The same in both symbol tables.
        let size = parts.entry(symbol.address).or_default();
        *size = symbol.size.max(*size);
        if kind != Kind::Cold {
            self.starts.push(symbol.address);
        }
    }

    /// Number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_symbol.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_symbol.is_empty()
    }

    /// Whether there is no symbol table but that of the dynamic linker.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        self.is_stripped
    }

    /// Why return probes are not safe here; `None` if nothing is known against them.
    #[must_use]
    pub fn hazard(&self) -> Option<Hazard> {
        self.hazard
    }

    /// Whether other files are loaded with it, whose hazards are its own as well.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }

    /// The functions that a pattern selects, by symbol, at most `max`. `debug`: the file that has the debug information, in which
    /// functions that were inlined everywhere are looked for if nothing matches.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find<'data, R: ReadRef<'data>>(
        &self,
        pattern: &Pattern,
        max: usize,
        debug: Option<R>,
    ) -> Result<Vec<Function>, FindError> {
        let mut found: Vec<Function> = Vec::new();
        let is_meant = |symbol: &str| suffix::own_word(symbol).is_none_or(|word| pattern.names(word));
        let selected = self.by_symbol.iter().filter(|(symbol, _)| is_meant(symbol) && pattern.matches(symbol));
        // Several symbols of one function, as of constructors.
        let mut known = BTreeSet::new();
        for (symbol, entry) in selected {
            let fresh = entry.parts.keys().filter(|address| known.insert(**address)).count();
            if fresh > 0 {
                let name = demangle(symbol).name;
                let (parts, cold) = (list(&entry.parts), list(&entry.cold));
                found.push(Function { name, symbol: symbol.clone(), parts, cold });
            }
        }
        if found.is_empty() {
            return Err(FindError::Nothing {
                pattern: pattern.to_string(),
                nearest: self.nearest(pattern),
                inlined: debug.map(|debug| inlined::find(debug, pattern, MAX_PROPOSED)).unwrap_or_default(),
                is_stripped: self.is_stripped,
            });
        }
        if found.len() > max {
            let first = found.iter().take(MAX_PROPOSED).map(|function| function.name.clone()).collect();
            return Err(FindError::TooMany { pattern: pattern.to_string(), count: found.len(), max, first });
        }
        Ok(found)
    }

    /// Names like the pattern, the nearest first.
    fn nearest(&self, pattern: &Pattern) -> Vec<String> {
        let wanted = pattern.without_wildcards();
        let wanted = wanted.split('(').next().unwrap_or_default();
        let components = wanted.split("::").count();
        let mut scored: Vec<(f64, String)> = Vec::new();
        for symbol in self.by_symbol.keys() {
            let path = demangle_path(symbol).map_or_else(|| symbol.clone(), |path| plain(&path));
            // As many components as the pattern has.
            let skipped = path.split("::").count().saturating_sub(components);
            let tail = path.splitn(skipped + 1, "::").last().unwrap_or_default();
            let similarity = strsim::normalized_damerau_levenshtein(wanted, tail)
                .max(strsim::normalized_damerau_levenshtein(&wanted.to_lowercase(), &tail.to_lowercase()) - 0.01);
            if similarity >= MIN_SIMILARITY && !scored.iter().any(|(_, known)| *known == path) {
                scored.push((similarity, path));
                scored.sort_by(|(a, a_name), (b, b_name)| b.total_cmp(a).then_with(|| a_name.cmp(b_name)));
                scored.truncate(MAX_PROPOSED);
            }
        }
        scored.into_iter().map(|(_, path)| path).collect()
    }

    /// Where to probe a copy of a function.
    ///
    /// # Errors
    /// [`ProbeError`]: it cannot be probed.
    pub fn probes<'data, R: ReadRef<'data>>(
        &self,
        data: R,
        function: &Function,
        part: Part,
    ) -> Result<Probes, ProbeError> {
        probes::of(data, &self.segments, &self.starts, function, part)
    }

    /// How often calls of functions were inlined into others, where no probe sees them, by the addresses of their copies, for those
    /// that were. `debug`: the file that has the debug information. Empty without it, or if it is damaged or larger than 256 MiB.
    pub fn inlined_calls<'data, R: ReadRef<'data>>(debug: R, addresses: &BTreeSet<u64>) -> BTreeMap<u64, usize> {
        inlined::count(debug, addresses)
    }

    /// Whether a function is the start of a coroutine (gcc, clang): it returns when the coroutine is suspended first, and the rest
    /// runs in a body that is a function of its own.
    #[must_use]
    pub fn is_coroutine(&self, function: &Function) -> bool {
        let mut bodies = self.by_symbol.keys().filter(|symbol| suffix::is_coroutine_body(symbol));
        let path = demangle_path(&function.symbol);
        path.is_some() && !suffix::is_coroutine_body(&function.symbol) && bodies.any(|body| demangle_path(body) == path)
    }
}
