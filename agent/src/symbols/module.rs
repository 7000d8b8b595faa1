//! Symbolizer of one file.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
};

use blazesym::symbolize::{Input, Symbolized, Symbolizer, source};
use chainscope_functions::{Demangled, demangle};
use chainscope_hygiene::warn_limited;

use super::{
    MappedFile,
    copy::SymbolFile,
    elf::{Elf, ElfError},
    files,
};
use crate::targets::proc::Proc;

/// Maximum number of functions at one address, inlined ones included.
const MAX_INLINED: usize = 32;

/// Symbols of a file and of its separate debug file.
pub(super) struct FileSymbolizer {
    elf: Elf,
    /// Sources in order of preference.
    sources: Vec<SymbolSource>,
    pub(super) bytes: u64,
}

struct SymbolSource {
    /// Kept open, since the symbolizer opens it by descriptor.
    file: SymbolFile,
    symbolizer: Symbolizer,
    level: DebugLevel,
}

/// Level of information used from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DebugLevel {
    DebugInfo,
    Symtab,
    /// Disabled after a panic of the parser.
    Disabled,
}

/// Error of a lookup.
enum LookupError {
    Failed,
    Panicked,
}

/// Mangled symbols at an address, and the start address of the outermost function.
struct RawSymbols {
    symbols: Vec<String>,
    start: u64,
}

/// What [`FileSymbolizer`] is made of, which may be read on another thread.
pub(super) struct SymbolFiles {
    elf: Elf,
    files: Vec<SymbolFile>,
}

impl SymbolFiles {
    /// Reads the symbols of a file, and of its debug file if there is one.
    pub(super) fn read(proc: &Proc, mapped: &MappedFile, file: &File) -> Result<Self, ElfError> {
        let elf = Elf::read(file)?;
        let mut files = Vec::new();
        if let Some((debug, tables)) = files::open_debug(proc, mapped, &elf) {
            match SymbolFile::of(&debug, &tables) {
                Ok(copy) => files.push(copy),
                Err(cause) => tracing::debug!(path = %mapped.path.display(), %cause, "the debug file is ignored"),
            }
        }
        files.push(SymbolFile::of(file, &elf)?);
        Ok(Self { elf, files })
    }
}

impl From<SymbolFiles> for FileSymbolizer {
    fn from(SymbolFiles { elf, files }: SymbolFiles) -> Self {
        let bytes = files.iter().map(|file| file.bytes).sum();
        let sources = files.into_iter().map(SymbolSource::new).collect();
        Self { elf, sources, bytes }
    }
}

impl FileSymbolizer {
    /// Returns the functions at a file offset, outermost first, each inlined into its predecessor; empty if no symbol
    /// covers the offset. `is_return_address`: the offset follows the call whose function is wanted.
    pub(super) fn symbolize(&mut self, offset: u64, is_return_address: bool) -> Vec<Demangled> {
        let Some(offset) = offset.checked_sub(u64::from(is_return_address)) else { return Vec::new() };
        let Some(address) = self.elf.address(offset) else { return Vec::new() };
        let mut found: Option<RawSymbols> = None;
        for source in &mut self.sources {
            let Some(raw) = source.symbolize(address) else { continue };
            // A debug file may have fewer symbols than the file itself, for example of assembly functions.
            if found.as_ref().is_none_or(|known| raw.start > known.start) {
                found = Some(raw);
            }
        }
        let symbols = found.map(|raw| raw.symbols).unwrap_or_default();
        symbols.iter().take(MAX_INLINED).map(|symbol| demangle(symbol)).collect()
    }
}

impl SymbolSource {
    fn new(file: SymbolFile) -> Self {
        let level = if file.has_debug { DebugLevel::DebugInfo } else { DebugLevel::Symtab };
        Self { file, symbolizer: Self::new_symbolizer(), level }
    }

    fn symbolize(&mut self, address: u64) -> Option<RawSymbols> {
        if self.level == DebugLevel::DebugInfo {
            match self.lookup(address) {
                Ok(found) => return found,
                // Falls back to symbols if the debug information is unsupported or damaged.
                Err(_) => {
                    self.level = DebugLevel::Symtab;
                    self.symbolizer = Self::new_symbolizer();
                }
            }
        }
        if self.level == DebugLevel::Disabled {
            return None;
        }
        match self.lookup(address) {
            Ok(found) => found,
            Err(LookupError::Failed) => None,
            Err(LookupError::Panicked) => {
                self.level = DebugLevel::Disabled;
                None
            }
        }
    }

    fn new_symbolizer() -> Symbolizer {
        Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(false)
            // Debug files are searched by this module within the root of the process, not by blazesym.
            .set_debug_dirs(Some([""; 0]))
            .build()
    }

    fn lookup(&self, address: u64) -> Result<Option<RawSymbols>, LookupError> {
        let mut elf = source::Elf::new(self.file.path());
        elf.debug_syms = self.level == DebugLevel::DebugInfo;
        let source = source::Source::Elf(elf);
        // A panic of the parser on crafted input must not end the agent.
        let answer =
            catch_unwind(AssertUnwindSafe(|| self.symbolizer.symbolize_single(&source, Input::VirtOffset(address))));
        match answer {
            Ok(Ok(Symbolized::Sym(symbol))) => {
                let inlined = symbol.inlined.iter().map(|function| function.name.as_ref().to_owned());
                let symbols = std::iter::once(symbol.name.into_owned()).chain(inlined);
                let symbols: Vec<String> = symbols.filter(|symbol| !symbol.is_empty()).collect();
                Ok((!symbols.is_empty()).then_some(RawSymbols { symbols, start: symbol.addr }))
            }
            Ok(Ok(Symbolized::Unknown(_))) => Ok(None),
            Ok(Err(cause)) => {
                tracing::debug!(%cause, "symbol lookup failed");
                Err(LookupError::Failed)
            }
            Err(_) => {
                warn_limited!("the ELF parser panicked: the symbols of this file are disabled");
                Err(LookupError::Panicked)
            }
        }
    }
}
