//! The names of one file.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
};

use blazesym::symbolize::{Input, Symbolized, Symbolizer, source};
use chainscope_hygiene::warn_limited;

use super::{
    MappedFile,
    copy::SymbolFile,
    demangle::{Demangled, demangle},
    elf::{Elf, ElfError},
    files,
};
use crate::targets::proc::Proc;

/// Most functions that are told of one place.
const MAX_INLINED: usize = 32;

/// Symbols of a file and of the one with its debug information, ready to be asked.
pub(super) struct Names {
    elf: Elf,
    /// The one that knows most first.
    sources: Vec<Source>,
    pub(super) bytes: u64,
}

struct Source {
    /// Kept open: the symbolizer finds it by its descriptor.
    file: SymbolFile,
    symbolizer: Symbolizer,
    depth: Depth,
}

/// What of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Debug,
    Symbols,
    /// Nothing: the reader panicked on it.
    Nothing,
}

/// Why a name was not read.
enum Unread {
    Refused,
    Panicked,
}

/// A function as its symbol is, and where it begins.
struct Raw {
    symbols: Vec<String>,
    begins: u64,
}

impl Names {
    /// Reads the tables of a file, and of its debug file if there is one.
    pub(super) fn read(proc: &Proc, mapped: &MappedFile, file: &File) -> Result<Self, ElfError> {
        let elf = Elf::read(file)?;
        let mut files = Vec::new();
        if let Some((debug, tables)) = files::open_debug(proc, mapped, &elf) {
            match SymbolFile::of(&debug, &tables) {
                Ok(copy) => files.push(copy),
                Err(cause) => tracing::debug!(path = %mapped.path.display(), %cause, "its debug file is not used"),
            }
        }
        files.push(SymbolFile::of(file, &elf)?);
        let bytes = files.iter().map(|file| file.bytes).sum();
        let sources = files.into_iter().map(Source::new).collect();
        Ok(Self { elf, sources, bytes })
    }

    /// The functions at a place in the file, outermost first, each but the first inlined into the one before; none if no
    /// symbol covers it. `is_call`: the place is behind a call, whose function is meant.
    pub(super) fn at(&mut self, offset: u64, is_call: bool) -> Vec<Demangled> {
        let Some(offset) = offset.checked_sub(u64::from(is_call)) else { return Vec::new() };
        let Some(address) = self.elf.address(offset) else { return Vec::new() };
        let mut found: Option<Raw> = None;
        for source in &mut self.sources {
            let Some(raw) = source.at(address) else { continue };
            // A debug file may know less than the file itself, as of hand-written assembler.
            if found.as_ref().is_none_or(|known| raw.begins > known.begins) {
                found = Some(raw);
            }
        }
        let symbols = found.map(|raw| raw.symbols).unwrap_or_default();
        symbols.iter().take(MAX_INLINED).map(|symbol| demangle(symbol)).collect()
    }
}

impl Source {
    fn new(file: SymbolFile) -> Self {
        let depth = if file.has_debug { Depth::Debug } else { Depth::Symbols };
        Self { file, symbolizer: Self::new_symbolizer(), depth }
    }

    fn at(&mut self, address: u64) -> Option<Raw> {
        if self.depth == Depth::Debug {
            match self.ask(address) {
                Ok(found) => return found,
                // Debug information of another kind, or damaged: the symbols are still there.
                Err(_) => {
                    self.depth = Depth::Symbols;
                    self.symbolizer = Self::new_symbolizer();
                }
            }
        }
        if self.depth == Depth::Nothing {
            return None;
        }
        match self.ask(address) {
            Ok(found) => found,
            Err(Unread::Refused) => None,
            Err(Unread::Panicked) => {
                self.depth = Depth::Nothing;
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
            // Debug files are looked for in the process's root only, not by the reader.
            .set_debug_dirs(Some([""; 0]))
            .build()
    }

    fn ask(&self, address: u64) -> Result<Option<Raw>, Unread> {
        let mut elf = source::Elf::new(self.file.path());
        elf.debug_syms = self.depth == Depth::Debug;
        let source = source::Source::Elf(elf);
        // What others make of a hostile file is not this agent's end.
        let answer =
            catch_unwind(AssertUnwindSafe(|| self.symbolizer.symbolize_single(&source, Input::VirtOffset(address))));
        match answer {
            Ok(Ok(Symbolized::Sym(symbol))) => {
                let inlined = symbol.inlined.iter().map(|function| function.name.as_ref().to_owned());
                let symbols = std::iter::once(symbol.name.into_owned()).chain(inlined);
                let symbols: Vec<String> = symbols.filter(|symbol| !symbol.is_empty()).collect();
                Ok((!symbols.is_empty()).then_some(Raw { symbols, begins: symbol.addr }))
            }
            Ok(Ok(Symbolized::Unknown(_))) => Ok(None),
            Ok(Err(cause)) => {
                tracing::debug!(%cause, "a name cannot be read");
                Err(Unread::Refused)
            }
            Err(_) => {
                warn_limited!("the symbols of a damaged file are not used");
                Err(Unread::Panicked)
            }
        }
    }
}
