//! What of an ELF file is looked at before anything else touches it: the tables of segments and sections, the build id and
//! the link to the file with its debug information. 64 bits, little-endian. Nothing of it is believed: every number is
//! checked against the file.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// Most entries of the tables; a linker of one section a function makes some ten thousand in objects, never here.
const MAX_SEGMENTS: u64 = 1024;
const MAX_SECTIONS: u64 = 65_536;
/// Longest table of the sections' names, and longest note, in bytes.
const MAX_NAMES: u64 = 4 << 20;
const MAX_NOTE: u64 = 64 << 10;

const SEGMENT: usize = 56;
pub(super) const SECTION: usize = 64;

const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// `SHT_NULL`, `SHT_NOBITS`: sections without bytes.
const NO_BITS: [u32; 2] = [0, 8];
const COMPRESSED: u64 = 0x800;
const GNU_BUILD_ID: u32 = 3;

/// Why a file has no names.
#[derive(Debug, thiserror::Error)]
pub(super) enum ElfError {
    #[error("no ELF file of 64 bits, little-endian, that can be executed")]
    NotElf,
    #[error("{0} lies outside the file")]
    Outside(&'static str),
    #[error("{what}: {count}, at most {most} are read")]
    TooMany { what: &'static str, count: u64, most: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A part of the file that is mapped.
#[derive(Debug, Clone, Copy)]
struct Segment {
    offset: u64,
    address: u64,
    length: u64,
}

/// A section.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) offset: u64,
    /// Bytes in the file.
    pub(super) length: u64,
    /// Bytes once it is decompressed.
    pub(super) full_length: u64,
}

/// The file with debug information, as a file links to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DebugLink {
    /// Without a folder.
    pub(super) name: String,
    /// Of the whole file, as of zlib.
    pub(super) crc: u32,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Elf {
    pub(super) length: u64,
    /// Where the tables are, and their bytes.
    pub(super) segments_at: (u64, Vec<u8>),
    pub(super) sections_at: (u64, Vec<u8>),
    /// By index; sections without bytes have an empty range.
    pub(super) sections: Vec<Section>,
    segments: Vec<Segment>,
    pub(super) build_id: Vec<u8>,
    pub(super) debug_link: Option<DebugLink>,
}

impl Elf {
    pub(super) fn read(file: &File) -> Result<Self, ElfError> {
        let length = file.metadata()?.len();
        let reader = Reader { file, length };
        let head = reader.bytes("the header", 0, 64)?;
        let kind = u16_at(&head, 16);
        // Executables, and position-independent ones and libraries.
        if !head.starts_with(b"\x7fELF\x02\x01") || !matches!(kind, 2 | 3) {
            return Err(ElfError::NotElf);
        }
        let (segments_offset, sections_offset) = (u64_at(&head, 32), u64_at(&head, 40));
        let count = u64::from(u16_at(&head, 56));
        let table = reader.table("the segments", segments_offset, count, MAX_SEGMENTS, SEGMENT)?;
        let mut elf = Self {
            length,
            segments_at: (segments_offset, table),
            sections_at: (sections_offset, Vec::new()),
            sections: Vec::new(),
            segments: Vec::new(),
            build_id: Vec::new(),
            debug_link: None,
        };
        elf.read_segments(&reader)?;
        if sections_offset != 0 {
            elf.read_sections(&reader, &head)?;
        }
        Ok(elf)
    }

    fn read_segments(&mut self, reader: &Reader<'_>) -> Result<(), ElfError> {
        for entry in self.segments_at.1.as_chunks::<SEGMENT>().0 {
            let (offset, address, length) = (u64_at(entry, 8), u64_at(entry, 16), u64_at(entry, 32));
            match u32_at(entry, 0) {
                LOAD => self.segments.push(Segment { offset, address, length }),
                NOTE if self.build_id.is_empty() => {
                    // A note that cannot be read is no reason to do without names.
                    if let Ok(notes) = reader.bytes("a note", offset, length.min(MAX_NOTE)) {
                        self.build_id = build_id(&notes).unwrap_or_default();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_sections(&mut self, reader: &Reader<'_>, head: &[u8]) -> Result<(), ElfError> {
        let offset = self.sections_at.0;
        let first = reader.bytes("the sections", offset, SECTION as u64)?;
        // Numbers that do not fit are in the first section's entry.
        let count = match u16_at(head, 60) {
            0 => u64_at(&first, 32),
            count => u64::from(count),
        };
        let names_index = match u16_at(head, 62) {
            0xffff => u32_at(&first, 40) as usize,
            index => usize::from(index),
        };
        let table = reader.table("the sections", offset, count, MAX_SECTIONS, SECTION)?;
        let entries = table.as_chunks::<SECTION>().0;
        let names = match entries.get(names_index) {
            Some(entry) => reader.bytes("the sections' names", u64_at(entry, 24), u64_at(entry, 32).min(MAX_NAMES))?,
            None => Vec::new(),
        };
        for entry in entries {
            let name = names.get(u32_at(entry, 0) as usize..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            // A name that is not read here is one that is not looked for.
            let name = std::str::from_utf8(name).unwrap_or_default().get(..name.len().min(64)).unwrap_or_default();
            let (offset, length) = (u64_at(entry, 24), u64_at(entry, 32));
            let has_bytes = !NO_BITS.contains(&u32_at(entry, 4)) && reader.holds(offset, length);
            let length = if has_bytes { length } else { 0 };
            let full_length = if length >= 24 && u64_at(entry, 8) & COMPRESSED != 0 {
                u64_at(&reader.bytes("a section", offset, 24)?, 8)
            } else {
                length
            };
            if name == ".gnu_debuglink" && has_bytes {
                self.debug_link = debug_link(&reader.bytes("the debug link", offset, length.min(4096))?);
            }
            self.sections.push(Section { name: name.to_owned(), offset, length, full_length });
        }
        self.sections_at.1 = table;
        Ok(())
    }

    /// The address, as symbols are given, of a place in the file.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| (segment.offset..segment.offset.saturating_add(segment.length)).contains(&offset))?;
        segment.address.checked_add(offset - segment.offset)
    }
}

/// A file whose length is known.
struct Reader<'a> {
    file: &'a File,
    length: u64,
}

impl Reader<'_> {
    fn holds(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    fn bytes(&self, what: &'static str, offset: u64, length: u64) -> Result<Vec<u8>, ElfError> {
        if !self.holds(offset, length) {
            return Err(ElfError::Outside(what));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| ElfError::Outside(what))?];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn table(&self, what: &'static str, offset: u64, count: u64, most: u64, entry: usize) -> Result<Vec<u8>, ElfError> {
        if count > most {
            return Err(ElfError::TooMany { what, count, most });
        }
        self.bytes(what, offset, count * entry as u64)
    }
}

/// Notes are of two lengths, a kind, a name and bytes, each padded to four.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let (name_length, length) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
        let kind = u32_at(notes, 8);
        let name = notes.get(12..)?.get(..name_length)?;
        let rest = notes.get(12..)?.get(name_length.checked_next_multiple_of(4)?..)?;
        let bytes = rest.get(..length)?;
        if kind == GNU_BUILD_ID && name == b"GNU\0" {
            return Some(bytes.to_vec());
        }
        notes = rest.get(length.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// A name that ends with 0, padded to four, and a checksum.
fn debug_link(section: &[u8]) -> Option<DebugLink> {
    let end = section.iter().position(|byte| *byte == 0)?;
    let crc = section.get((end + 1).next_multiple_of(4)..)?.get(..4)?;
    let name = std::str::from_utf8(section.get(..end)?).ok()?;
    // Of a path only hostile files are made.
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    is_plain.then(|| DebugLink { name: name.to_owned(), crc: u32_at(crc, 0) })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_has_segments_sections_and_a_build_id() {
        let elf = Elf::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert!(elf.sections.iter().any(|section| section.name == ".symtab" && section.length > 0));
        assert_eq!(elf.address(0), Some(0), "position-independent");
        assert_eq!(elf.address(u64::MAX), None);
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            libc.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.contains("/libc.so"))).unwrap();
        let elf = Elf::read(&File::open(libc).unwrap()).unwrap();
        assert_eq!(elf.build_id.len(), 20);
        assert!(elf.debug_link.unwrap().name.ends_with(".debug"));
    }

    #[test]
    fn a_debug_link_is_a_name_and_nothing_else() {
        assert_eq!(
            debug_link(b"a.debug\0\x04\x03\x02\x01"),
            Some(DebugLink { name: "a.debug".into(), crc: 0x0102_0304 })
        );
        for hostile in [&b"../a\0\0\0\0\0\0\0"[..], b"..\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0", b"a\0\0\0\0", b"abc", b""] {
            assert_eq!(debug_link(hostile), None);
        }
    }

    #[test]
    fn what_is_no_elf_file_is_refused() {
        for path in ["/proc/self/maps", "/etc/passwd"] {
            assert!(Elf::read(&File::open(path).unwrap()).is_err());
        }
    }
}
