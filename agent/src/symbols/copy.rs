//! Private copy of the parts of an ELF file needed for symbolization.
//!
//! The symbolizer maps its input into memory, and a mapped file that is truncated by another process raises SIGBUS. Files
//! of other processes are therefore never mapped: their symbol tables and debug information are copied to the same
//! offsets of a sparse memory file. Other sections, mainly code and data, are not copied.
//!
//! Section headers that would make the reader open further files, or decompress oversized data, are cleared.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::PathBuf,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::elf::{Elf, ElfError, SECTION};

/// Maximum size of the symbols, and of the decompressed debug information, in bytes. Larger debug information is
/// omitted.
const MAX_SYMBOLS: u64 = 192 << 20;
const MAX_DEBUG: u64 = 192 << 20;
/// Maximum length of a file, in bytes.
const MAX_LENGTH: u64 = 1 << 40;

const SYMBOLS: [&str; 5] = [".shstrtab", ".symtab", ".strtab", ".dynsym", ".dynstr"];
/// Sections needed for inlined functions.
const DEBUG: [&str; 11] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];

/// A memory file from which symbols are read.
#[derive(Debug)]
pub(super) struct SymbolFile {
    file: File,
    /// Memory used, including decompressed sections, in bytes.
    pub(super) bytes: u64,
    pub(super) has_debug: bool,
}

impl SymbolFile {
    /// Copies the symbol and debug sections of a file.
    ///
    /// # Errors
    /// The sections are too large, the file was truncated, or memory is exhausted.
    pub(super) fn of(source: &File, elf: &Elf) -> Result<Self, ElfError> {
        let total = |names: &[&str]| -> u64 {
            let wanted = elf.sections.iter().filter(|section| names.contains(&section.name.as_str()));
            wanted.fold(0, |sum, section| sum.saturating_add(section.full_length.max(section.length)))
        };
        let (symbols, debug) = (total(&SYMBOLS), total(&DEBUG));
        for (what, count, max) in
            [("bytes of symbols", symbols, MAX_SYMBOLS), ("bytes of the file", elf.length, MAX_LENGTH)]
        {
            if count > max {
                return Err(ElfError::TooMany { what, count, max });
            }
        }
        let has_info = elf.sections.iter().any(|section| section.name == ".debug_info" && section.length > 0);
        let has_debug = has_info && debug <= MAX_DEBUG;
        let is_wanted = |name: &str| SYMBOLS.contains(&name) || (has_debug && DEBUG.contains(&name));
        let file = File::from(memfd_create("symbols", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
        file.set_len(elf.length)?;
        let mut table = elf.sections_at.1.clone();
        for (section, entry) in elf.sections.iter().zip(table.as_chunks_mut::<SECTION>().0) {
            if is_wanted(&section.name) && section.length > 0 {
                copy(source, &file, section.offset, section.length)?;
            } else {
                // Clearing name and type hides the section; its index stays valid, since symbols refer to sections by
                // index.
                entry[..8].fill(0);
                entry[32..40].fill(0);
            }
        }
        copy(source, &file, 0, 64)?;
        file.write_all_at(&elf.segments_at.1, elf.segments_at.0)?;
        file.write_all_at(&table, elf.sections_at.0)?;
        Ok(Self { file, bytes: symbols + if has_debug { debug } else { 0 }, has_debug })
    }

    /// Returns the path of the file in this process, valid while it is open.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

fn copy(source: &File, target: &File, mut offset: u64, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(1 << 20)];
    let end = offset.saturating_add(length);
    while offset < end {
        let step = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
        let piece = buffer.get_mut(..step).unwrap_or_default();
        source.read_exact_at(piece, offset)?;
        target.write_all_at(piece, offset)?;
        offset += step as u64;
    }
    Ok(())
}
