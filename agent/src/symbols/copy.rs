//! Private copy of the parts of an ELF file needed for symbolization.
//!
//! The symbolizer maps its input into memory, and a mapped file that is truncated by another process raises SIGBUS. Files
//! of other processes are therefore never mapped: their symbol tables and debug information are copied to the same
//! offsets of a sparse memory file. Other sections, mainly code and data, are not copied.
//!
//! Section headers that would make the reader open further files are cleared. Compressed debug information is decompressed
//! here, since the reader does not stop at the size that a section announces; debug information whose abbreviations would take
//! too much memory is omitted.

use std::{
    fs::File,
    io::{self, Read, Seek as _, SeekFrom},
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::PathBuf,
};

use chainscope_functions::{MAX_ABBREVIATIONS, abbreviations_are_bounded};
use flate2::read::ZlibDecoder;
use rustix::fs::{MemfdFlags, memfd_create};

use super::elf::{COMPRESSED, Elf, ElfError, SECTION, Section, u16_at, u32_at, u64_at};

/// Maximum size of the symbols, and of the decompressed debug information, in bytes. Larger debug information is
/// omitted.
const MAX_SYMBOLS: u64 = 192 << 20;
const MAX_DEBUG: u64 = 192 << 20;
/// Maximum length of a file, in bytes.
const MAX_LENGTH: u64 = 1 << 40;
/// Length of the header of a compressed section.
const COMPRESSION: u64 = 24;
/// `ELFCOMPRESS_ZLIB`
const ZLIB: u32 = 1;

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
        if has_info && debug <= MAX_DEBUG {
            match Self::copied(source, elf, symbols + debug, true) {
                Err(cause @ ElfError::DebugInfo(_)) => tracing::debug!(%cause, "only symbols are used"),
                copied => return copied,
            }
        }
        Self::copied(source, elf, symbols, false)
    }

    /// Copies the symbol sections, and the debug sections if `has_debug`.
    fn copied(source: &File, elf: &Elf, bytes: u64, has_debug: bool) -> Result<Self, ElfError> {
        let file = File::from(memfd_create("symbols", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
        // The reader would take other bytes of a file without sections for their headers.
        if elf.sections.is_empty() {
            return Ok(Self { file, bytes: 0, has_debug: false });
        }
        file.set_len(elf.length)?;
        let mut table = elf.sections_at.1.clone();
        for (section, entry) in elf.sections.iter().zip(table.as_chunks_mut::<SECTION>().0) {
            let is_debug = has_debug && DEBUG.contains(&section.name.as_str());
            let is_symbols = SYMBOLS.contains(&section.name.as_str()) && !section.is_compressed;
            if !(is_debug || is_symbols) || section.length == 0 {
                // Clearing name and type hides the section; its index stays valid, since symbols refer to sections by
                // index.
                entry[..8].fill(0);
                entry[32..40].fill(0);
            } else if section.is_compressed {
                let offset = inflate(source, &file, section)?;
                let flags = u64_at(entry, 8) & !COMPRESSED;
                entry[8..16].copy_from_slice(&flags.to_le_bytes());
                entry[24..32].copy_from_slice(&offset.to_le_bytes());
                entry[32..40].copy_from_slice(&section.full_length.to_le_bytes());
            } else {
                copy(source, &file, section.offset, section.length)?;
            }
        }
        copy(source, &file, 0, 64)?;
        file.write_all_at(&elf.segments_at.1, elf.segments_at.0)?;
        file.write_all_at(&table, elf.sections_at.0)?;
        // The header may have changed, or overlap the tables: no other sections may be found.
        let copied = Elf::read(&file)?;
        if copied.sections_at != (elf.sections_at.0, table) {
            return Err(ElfError::Changed);
        }
        if has_debug && !has_bounded_abbreviations(&file, &copied)? {
            return Err(ElfError::DebugInfo("too large: abbreviations"));
        }
        Ok(Self { file, bytes, has_debug })
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

/// Appends the decompressed contents of a section to a file, and returns their offset.
fn inflate(source: &File, mut target: &File, section: &Section) -> Result<u64, ElfError> {
    let mut header = [0; COMPRESSION as usize];
    let mut part = Part { file: source, offset: section.offset, end: section.offset.saturating_add(section.length) };
    if part.read_exact(&mut header).is_err() || u32_at(&header, 0) != ZLIB {
        return Err(ElfError::DebugInfo("not compressed with zlib"));
    }
    let offset = target.seek(SeekFrom::End(0))?;
    let mut contents = ZlibDecoder::new(part).take(section.full_length.saturating_add(1));
    match io::copy(&mut contents, &mut target) {
        Ok(length) if length == section.full_length => Ok(offset),
        _ => Err(ElfError::DebugInfo("damaged, or of another size than announced")),
    }
}

/// A part of a file, read independently of its cursor.
struct Part<'a> {
    file: &'a File,
    offset: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX).min(buffer.len());
        let length = self.file.read_at(buffer.get_mut(..length).unwrap_or_default(), self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

/// Returns whether the abbreviations of the debug information can be parsed within bounds.
fn has_bounded_abbreviations(file: &File, elf: &Elf) -> io::Result<bool> {
    // The reader uses the first of several sections, and never that of index 0.
    let find = |name| elf.sections.iter().skip(1).find(|section| section.name == name && section.length > 0);
    let mut abbreviations = Vec::new();
    if let Some(section) = find(".debug_abbrev") {
        if section.length > MAX_ABBREVIATIONS {
            return Ok(false);
        }
        let end = section.offset.saturating_add(section.length);
        Part { file, offset: section.offset, end }.read_to_end(&mut abbreviations)?;
    }
    let Some(info) = find(".debug_info") else { return Ok(true) };
    let units = Units { file, offset: info.offset, end: info.offset.saturating_add(info.length) };
    Ok(abbreviations_are_bounded(units, &abbreviations))
}

/// Units of `.debug_info`: the offset of the abbreviations of each.
struct Units<'a> {
    file: &'a File,
    offset: u64,
    end: u64,
}

impl Iterator for Units<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let left = self.end.checked_sub(self.offset).filter(|left| *left > 0)?;
        // The longest start of a unit: its length in 12 bytes, version, type, address size and the offset.
        let mut start = [0; 24];
        let known = start.get_mut(..usize::try_from(left).unwrap_or(usize::MAX).min(24))?;
        self.file.read_exact_at(known, self.offset).ok()?;
        let (at, length) = match u32_at(&start, 0) {
            u32::MAX => (12, u64_at(&start, 4)),
            length => (4, u64::from(length)),
        };
        self.offset = self.offset.checked_add(at as u64)?.checked_add(length)?;
        // Before DWARF 5, only the version precedes the offset.
        let offset_at = at + if u16_at(&start, at) >= 5 { 4 } else { 2 };
        Some(if at == 12 { u64_at(&start, offset_at) } else { u64::from(u32_at(&start, offset_at)) })
    }
}
