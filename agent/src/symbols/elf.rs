//! ELF parser for 64-bit little-endian files: segments, sections, build ID and debug link. Every number is checked
//! against the length of the file, since the input is untrusted.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// Limits of the tables; only object files with one section per function come near them.
const MAX_SEGMENTS: u64 = 1024;
const MAX_SECTIONS: u64 = 65_536;
/// Limits of the section name table and of a note, in bytes.
const MAX_NAMES: u64 = 4 << 20;
const MAX_NOTE: u64 = 64 << 10;
/// Maximum length of a section name, in bytes. Longer ones are cut: they match none of the sections used.
const MAX_NAME: usize = 64;

const SEGMENT: usize = 56;
pub(super) const SECTION: usize = 64;

const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// `SHT_NULL`, `SHT_NOBITS`: sections without file contents.
const NO_BITS: [u32; 2] = [0, 8];
/// `SHF_COMPRESSED`
pub(super) const COMPRESSED: u64 = 0x800;
const GNU_BUILD_ID: u32 = 3;

/// Error of parsing or copying an ELF file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ElfError {
    #[error("not a 64-bit little-endian ELF executable or shared object")]
    NotElf,
    #[error("outside the file: {0}")]
    Outside(&'static str),
    #[error("{what}: {count}, the maximum is {max}")]
    TooMany { what: &'static str, count: u64, max: u64 },
    #[error("debug information that is {0}")]
    DebugInfo(&'static str),
    #[error("changed while it was read, or tables that overlap")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A loadable segment.
#[derive(Debug, Clone, Copy)]
struct Segment {
    offset: u64,
    address: u64,
    length: u64,
}

/// A section header.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) offset: u64,
    /// Size in the file, in bytes.
    pub(super) length: u64,
    /// Size after decompression, in bytes.
    pub(super) full_length: u64,
    pub(super) is_compressed: bool,
}

/// Contents of `.gnu_debuglink`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DebugLink {
    /// File name without a directory.
    pub(super) name: String,
    /// CRC-32 of the whole debug file.
    pub(super) crc: u32,
}

/// Parsed tables of an ELF file.
#[derive(Debug)]
pub(super) struct Elf {
    pub(super) length: u64,
    /// File offset and bytes of the tables.
    pub(super) segments_at: (u64, Vec<u8>),
    pub(super) sections_at: (u64, Vec<u8>),
    /// By section index; sections without contents have length 0.
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
        // `ET_EXEC` and `ET_DYN`.
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
                    // An unreadable note does not prevent symbolization.
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
        // Values that overflow the header are in the first section header.
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
            let name = name.get(..MAX_NAME).unwrap_or(name).split(|byte| *byte == 0).next().unwrap_or_default();
            // A name that is not UTF-8 matches none of the sections used either.
            let name = std::str::from_utf8(name).unwrap_or_default();
            let (offset, length) = (u64_at(entry, 24), u64_at(entry, 32));
            let has_bytes = !NO_BITS.contains(&u32_at(entry, 4)) && reader.holds(offset, length);
            let length = if has_bytes { length } else { 0 };
            let is_compressed = u64_at(entry, 8) & COMPRESSED != 0;
            let full_length =
                if length >= 24 && is_compressed { u64_at(&reader.bytes("a section", offset, 24)?, 8) } else { length };
            if name == ".gnu_debuglink" && has_bytes {
                self.debug_link = debug_link(&reader.bytes("the debug link", offset, length.min(4096))?);
            }
            self.sections.push(Section { name: name.to_owned(), offset, length, full_length, is_compressed });
        }
        self.sections_at.1 = table;
        Ok(())
    }

    /// Returns the virtual address, as used by symbols, of a file offset.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| (segment.offset..segment.offset.saturating_add(segment.length)).contains(&offset))?;
        segment.address.checked_add(offset - segment.offset)
    }
}

/// A file of known length.
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

    fn table(&self, what: &'static str, offset: u64, count: u64, max: u64, entry: usize) -> Result<Vec<u8>, ElfError> {
        if count > max {
            return Err(ElfError::TooMany { what, count, max });
        }
        self.bytes(what, offset, count * entry as u64)
    }
}

/// Finds the build ID in a note segment: name size, descriptor size, type, name and descriptor, the latter two padded
/// to 4 bytes.
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

/// Parses `.gnu_debuglink`: a NUL-terminated name, padded to 4 bytes, and a CRC-32.
fn debug_link(section: &[u8]) -> Option<DebugLink> {
    let end = section.iter().position(|byte| *byte == 0)?;
    let crc = section.get((end + 1).next_multiple_of(4)..)?.get(..4)?;
    let name = std::str::from_utf8(section.get(..end)?).ok()?;
    // Only a crafted file has a path here.
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    is_plain.then(|| DebugLink { name: name.to_owned(), crc: u32_at(crc, 0) })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_sections_and_build_id_are_parsed() {
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
    fn debug_link_with_a_path_is_rejected() {
        assert_eq!(
            debug_link(b"a.debug\0\x04\x03\x02\x01"),
            Some(DebugLink { name: "a.debug".into(), crc: 0x0102_0304 })
        );
        for hostile in [&b"../a\0\0\0\0\0\0\0"[..], b"..\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0", b"a\0\0\0\0", b"abc", b""] {
            assert_eq!(debug_link(hostile), None);
        }
    }

    #[test]
    fn section_names_without_an_end_are_cut() {
        let (count, names) = (MAX_SECTIONS, MAX_NAMES);
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64 + count as usize * SECTION, 0);
        // `ET_DYN`, the section table after the header, the number of sections in its first entry, the names in section 1.
        bytes[16] = 3;
        bytes[40] = 64;
        bytes[62] = 1;
        bytes[64 + 32..64 + 40].copy_from_slice(&count.to_le_bytes());
        let at = bytes.len() as u64;
        bytes[64 + SECTION + 24..64 + SECTION + 32].copy_from_slice(&at.to_le_bytes());
        bytes[64 + SECTION + 32..64 + SECTION + 40].copy_from_slice(&names.to_le_bytes());
        bytes.resize((at + names) as usize, b'n');
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &bytes).unwrap();
        let begin = std::time::Instant::now();
        let elf = Elf::read(&file).unwrap();
        assert_eq!(elf.sections.len(), count as usize);
        assert!(elf.sections.iter().all(|section| section.name == "n".repeat(64)));
        // To search each name for its end takes minutes.
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
    }

    #[test]
    fn non_elf_files_are_rejected() {
        for path in ["/proc/self/maps", "/etc/passwd"] {
            assert!(Elf::read(&File::open(path).unwrap()).is_err());
        }
    }
}
