//! A private copy of what names are read from.
//!
//! A symbol file is mapped into memory by who reads it, and a mapped file that somebody cuts short kills the reader. Other
//! people's files are therefore never mapped: the tables of symbols and of debug information are copied, to the same
//! places of a file in memory that is otherwise a hole. What nothing is read from (code and data, above all) is not copied.
//!
//! What would make the reader look for more files, or decompress what is too large, is taken out on the way.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::PathBuf,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::elf::{Elf, ElfError, SECTION};

/// Most bytes that are copied for symbols, and for debug information once it is decompressed: of a larger file the latter
/// is left out.
const MAX_SYMBOLS: u64 = 192 << 20;
const MAX_DEBUG: u64 = 192 << 20;
/// Longest file.
const MAX_LENGTH: u64 = 1 << 40;

const SYMBOLS: [&str; 5] = [".shstrtab", ".symtab", ".strtab", ".dynsym", ".dynstr"];
/// Of these inlined functions are read.
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

/// A file in memory that names can be read from.
#[derive(Debug)]
pub(super) struct SymbolFile {
    file: File,
    /// Memory that it takes, and what is decompressed of it.
    pub(super) bytes: u64,
    pub(super) has_debug: bool,
}

impl SymbolFile {
    /// Copies what is needed of a file whose tables were read.
    ///
    /// # Errors
    /// The tables are too large, the file is shorter than it was, or there is no memory.
    pub(super) fn of(source: &File, elf: &Elf) -> Result<Self, ElfError> {
        let total = |names: &[&str]| -> u64 {
            let wanted = elf.sections.iter().filter(|section| names.contains(&section.name.as_str()));
            wanted.fold(0, |sum, section| sum.saturating_add(section.full_length.max(section.length)))
        };
        let (symbols, debug) = (total(&SYMBOLS), total(&DEBUG));
        for (what, count, most) in
            [("bytes of symbols", symbols, MAX_SYMBOLS), ("bytes of the file", elf.length, MAX_LENGTH)]
        {
            if count > most {
                return Err(ElfError::TooMany { what, count, most });
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
                // Neither a name nor a type: nobody finds it. Its number stays, symbols refer to sections by it.
                entry[..8].fill(0);
                entry[32..40].fill(0);
            }
        }
        copy(source, &file, 0, 64)?;
        file.write_all_at(&elf.segments_at.1, elf.segments_at.0)?;
        file.write_all_at(&table, elf.sections_at.0)?;
        Ok(Self { file, bytes: symbols + if has_debug { debug } else { 0 }, has_debug })
    }

    /// Where this process finds it, as long as it is open.
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
