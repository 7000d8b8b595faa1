//! Tables of an ELF file, read within bounds: a sparse file can announce tables of any size.

use std::collections::BTreeMap;

use object::{
    Endian as _, Endianness, ReadRef,
    read::elf::{FileHeader, NoteIterator, ProgramHeader as _, SectionHeader as _, Sym as _},
};

use crate::{error::Error, symbols::Symbols};

/// Maximum number of section headers, as of object files with a section for each function.
const MAX_SECTIONS: u64 = 65_536;
/// Maximum number of program headers.
const MAX_SEGMENTS: u64 = 65_536;
/// Maximum size of the section names, in bytes.
const MAX_NAMES: u64 = 4 << 20;
/// Maximum size of all note sections, in bytes: a note has at least 40.
const MAX_NOTES: u64 = 16 << 20;
/// Maximum size of a symbol table, and of its names, in bytes. LLVM 22 with all symbols has 30 MB of each.
const MAX_SYMBOLS: u64 = 256 << 20;
/// Maximum size of all symbol tables, their names, and the names that are compared, in bytes: many tables can be one, and many names
/// the end of one.
const MAX_COMPARED: u64 = 4 * MAX_SYMBOLS;
/// Maximum length of the name of a section, in bytes; longer ones are cut.
const MAX_NAME: usize = 256;

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    /// Size in the file.
    pub(crate) size: u64,
    /// `p_flags`
    pub(crate) flags: u32,
}

/// An ELF file of one class.
pub(crate) struct Elf<'data, H: FileHeader, R> {
    data: R,
    endian: Endianness,
    header: &'data H,
    sections: &'data [H::SectionHeader],
    names: &'data [u8],
}

impl<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>> Elf<'data, H, R> {
    pub(crate) fn parse(data: R) -> Result<Self, Error> {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        bounded("section headers", header.shnum(endian, data)? as u64, MAX_SECTIONS)?;
        let sections = header.section_headers(endian, data)?;
        let mut elf = Self { data, endian, header, sections, names: &[] };
        if !sections.is_empty() {
            let index = header.shstrndx(endian, data)? as usize;
            elf.names = elf.bytes("bytes of section names", index, MAX_NAMES)?;
        }
        Ok(elf)
    }

    /// `e_machine`
    pub(crate) fn machine(&self) -> u16 {
        self.header.e_machine(self.endian)
    }

    /// Whether the file is loaded at the addresses that it names.
    pub(crate) fn is_fixed(&self) -> bool {
        self.header.e_type(self.endian) == object::elf::ET_EXEC
    }

    /// An address of this class and byte order at the start of `bytes`, and what follows it.
    pub(crate) fn word<'b>(&self, bytes: &'b [u8]) -> Option<(u64, &'b [u8])> {
        if H::is_type_64_sized() {
            let (word, rest) = bytes.split_first_chunk()?;
            Some((self.endian.read_u64(*word), rest))
        } else {
            let (word, rest) = bytes.split_first_chunk()?;
            Some((u64::from(self.endian.read_u32(*word)), rest))
        }
    }

    /// An address after an addition, modulo the size of an address.
    pub(crate) fn wrap(address: u64) -> u64 {
        if H::is_type_64_sized() { address } else { address & u64::from(u32::MAX) }
    }

    /// The loadable segments.
    pub(crate) fn segments(&self) -> Result<Vec<Segment>, Error> {
        bounded("program headers", self.header.phnum(self.endian, self.data)? as u64, MAX_SEGMENTS)?;
        let headers = self.header.program_headers(self.endian, self.data)?;
        let loaded = headers.iter().filter(|header| header.p_type(self.endian) == object::elf::PT_LOAD);
        Ok(loaded
            .map(|header| Segment {
                address: header.p_vaddr(self.endian).into(),
                offset: header.p_offset(self.endian).into(),
                size: header.p_filesz(self.endian).into(),
                flags: header.p_flags(self.endian),
            })
            .collect())
    }

    /// Address of the section that marks how far the file was moved after it was linked.
    pub(crate) fn stapsdt_base(&self) -> Option<u64> {
        let base = self.sections.iter().find(|section| self.name(section) == b".stapsdt.base")?;
        Some(base.sh_addr(self.endian).into())
    }

    /// Note sections by name.
    #[expect(clippy::type_complexity, reason = "a list of pairs")]
    pub(crate) fn note_sections(&self) -> Result<Vec<(String, object::read::Result<NoteIterator<'data, H>>)>, Error> {
        let notes = || self.sections.iter().filter(|header| header.sh_type(self.endian) == object::elf::SHT_NOTE);
        let size = |header: &H::SectionHeader| -> u64 { header.sh_size(self.endian).into() };
        bounded("bytes of notes", notes().map(size).fold(0, u64::saturating_add), MAX_NOTES)?;
        let named = |header: &'data H::SectionHeader| {
            let notes = header.data(self.endian, self.data);
            let notes = notes.and_then(|bytes| NoteIterator::new(self.endian, header.sh_addralign(self.endian), bytes));
            (String::from_utf8_lossy(self.name(header)).into_owned(), notes)
        };
        Ok(notes().map(named).collect())
    }

    pub(crate) fn endian(&self) -> Endianness {
        self.endian
    }

    /// Finds the addresses of symbols, in the full symbol table or else in that of the dynamic linker.
    pub(crate) fn find_symbols(&self, wanted: &mut Symbols) -> Result<(), Error> {
        let mut compared = 0;
        for kind in [object::elf::SHT_SYMTAB, object::elf::SHT_DYNSYM] {
            let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            for (index, section) in self.sections.iter().enumerate() {
                if section.sh_type(self.endian) == kind {
                    self.find_in(index, section, wanted, &mut found, &mut compared)?;
                }
            }
            wanted.add(found);
        }
        Ok(())
    }

    fn find_in(
        &self,
        index: usize,
        section: &'data H::SectionHeader,
        wanted: &Symbols,
        found: &mut BTreeMap<String, Vec<u64>>,
        compared: &mut u64,
    ) -> Result<(), Error> {
        let mut spend = |bytes: u64| {
            *compared = compared.saturating_add(bytes);
            bounded("bytes of symbols and names compared", *compared, MAX_COMPARED)
        };
        let size = |section: &H::SectionHeader| -> u64 { section.sh_size(self.endian).into() };
        let names = section.sh_link(self.endian) as usize;
        spend(size(section))?;
        spend(self.sections.get(names).map_or(0, size))?;
        self.bytes("bytes of symbols", index, MAX_SYMBOLS)?;
        let symbols: &[H::Sym] = section.data_as_array(self.endian, self.data)?;
        let names = self.bytes("bytes of symbol names", names, MAX_SYMBOLS)?;
        // With one more byte, a longer name is none of those wanted.
        let max = wanted.longest().saturating_add(1);
        for symbol in symbols {
            let is_variable = symbol.st_shndx(self.endian) != object::elf::SHN_UNDEF
                && !matches!(symbol.st_type(), object::elf::STT_TLS | object::elf::STT_SECTION | object::elf::STT_FILE);
            if !is_variable {
                continue;
            }
            let name = text_at(names, symbol.st_name(self.endian), max);
            spend(name.len() as u64)?;
            if let Some(name) = wanted.missing(name) {
                found.entry(name.to_owned()).or_default().push(symbol.st_value(self.endian).into());
            }
        }
        Ok(())
    }

    fn name(&self, section: &H::SectionHeader) -> &'data [u8] {
        text_at(self.names, section.sh_name(self.endian), MAX_NAME)
    }

    fn bytes(&self, what: &'static str, section: usize, max: u64) -> Result<&'data [u8], Error> {
        let outside = || Error::Elf(format!("section {section} does not exist"));
        let section = self.sections.get(section).ok_or_else(outside)?;
        bounded(what, section.sh_size(self.endian).into(), max)?;
        Ok(section.data(self.endian, self.data)?)
    }
}

/// The NUL-terminated text at an offset of a string table, at most its first `max` bytes; empty outside of the table.
fn text_at(strings: &[u8], offset: u32, max: usize) -> &[u8] {
    let text = strings.get(offset as usize..).unwrap_or_default();
    let text = text.get(..max).unwrap_or(text);
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn bounded(what: &'static str, size: u64, max: u64) -> Result<(), Error> {
    if size > max { Err(Error::TooLarge { what, size, max }) } else { Ok(()) }
}
