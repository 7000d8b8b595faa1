//! Tables of an ELF file, read within bounds.

use object::{
    Endianness, ReadRef,
    elf::{self, FileHeader64},
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
};

use crate::error::Error;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64 << 10;
const MAX_SECTIONS: u64 = 65_536;
const MAX_SEGMENTS: u64 = 65_536;
/// Maximum size of the section names, in bytes.
const MAX_NAMES: u64 = 4 << 20;
/// Maximum size of a symbol table, and of its names, in bytes. LLVM 22 with all symbols has 30 MB of each.
const MAX_SYMBOLS: u64 = 256 << 20;
/// Maximum size of all symbol tables together, in bytes: sections may overlap.
const MAX_ALL_SYMBOLS: u64 = 2 * MAX_SYMBOLS;
/// Maximum number of symbols of functions, and of libraries. LLVM 22 has 1.25 million of all kinds.
const MAX_FUNCTIONS: u64 = 2 << 20;
/// Maximum size of the names of functions, in bytes, if each were stored on its own: names may overlap.
const MAX_FUNCTION_NAMES: u64 = 128 << 20;

/// An executable part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A symbol of code, or one that is not defined here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'data> {
    pub(crate) name: &'data str,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) is_defined: bool,
}

/// What is read of a file.
#[derive(Debug)]
pub(crate) struct Tables<'data> {
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<&'data str>,
    pub(crate) symbols: Vec<Symbol<'data>>,
    /// Whether there is a symbol table that is not for the dynamic linker only.
    pub(crate) has_symtab: bool,
    /// Whether it is loaded with other files, or loaded by other files.
    pub(crate) is_dynamic: bool,
    /// Names of the libraries that it is linked to.
    pub(crate) needed: Vec<&'data str>,
}

impl<'data> Tables<'data> {
    pub(crate) fn read<R: ReadRef<'data>>(data: R) -> Result<Self, Error> {
        let header = FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let machine = header.e_machine(endian);
        if machine != elf::EM_X86_64 {
            return Err(Error::Machine(machine));
        }
        bounded("section headers", header.shnum(endian, data)? as u64, MAX_SECTIONS)?;
        bounded("program headers", header.phnum(endian, data)? as u64, MAX_SEGMENTS)?;
        let loaded = header
            .program_headers(endian, data)?
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0);
        let segments = loaded.map(|segment| Segment {
            address: segment.p_vaddr(endian),
            offset: segment.p_offset(endian),
            size: segment.p_filesz(endian),
        });
        let mut tables = Self {
            segments: segments.collect(),
            sections: Vec::new(),
            symbols: Vec::new(),
            has_symtab: false,
            is_dynamic: false,
            needed: Vec::new(),
        };
        let headers = header.section_headers(endian, data)?;
        let section = |index: usize, what: &'static str, max: u64| -> Result<&'data [u8], Error> {
            let Some(section) = headers.get(index) else { return Ok(&[]) };
            bounded(what, section.sh_size(endian), max)?;
            Ok(section.data(endian, data)?)
        };
        let names = match headers {
            [] => &[][..],
            _ => section(header.shstrndx(endian, data)? as usize, "bytes of section names", MAX_NAMES)?,
        };
        let is_code_section = |index: u16| {
            let section = headers.get(usize::from(index));
            section.is_some_and(|section| section.sh_flags(endian) & u64::from(elf::SHF_EXECINSTR) != 0)
        };
        let (mut bytes, mut names_read) = (0, 0);
        let mut name = |strings: &'data [u8], offset: u32| -> Result<&'data str, Error> {
            let (text, read) = text_and_size(strings, offset);
            names_read += read;
            bounded("bytes of names of functions", names_read, MAX_FUNCTION_NAMES).map(|()| text)
        };
        for (index, header) in headers.iter().enumerate() {
            tables.sections.push(text_at(names, header.sh_name(endian)));
            let kind = header.sh_type(endian);
            if kind == elf::SHT_DYNAMIC {
                tables.is_dynamic = true;
                section(index, "bytes of dynamic entries", MAX_NAMES)?;
                let entries: &[elf::Dyn64<Endianness>] = header.data_as_array(endian, data)?;
                let strings = section(header.sh_link(endian) as usize, "bytes of symbol names", MAX_SYMBOLS)?;
                let needed = entries.iter().filter(|entry| entry.d_tag.get(endian) == elf::DT_NEEDED);
                let offset = |entry: &elf::Dyn64<Endianness>| u32::try_from(entry.d_val.get(endian)).ok();
                for offset in needed.filter_map(offset) {
                    tables.needed.push(name(strings, offset)?);
                    bounded("libraries", tables.needed.len() as u64, MAX_FUNCTIONS)?;
                }
            }
            if !matches!(kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM) {
                continue;
            }
            tables.has_symtab |= kind == elf::SHT_SYMTAB;
            bytes += section(index, "bytes of symbols", MAX_SYMBOLS)?.len() as u64;
            bounded("bytes of all symbol tables", bytes, MAX_ALL_SYMBOLS)?;
            let symbols: &[elf::Sym64<Endianness>] = header.data_as_array(endian, data)?;
            let strings = section(header.sh_link(endian) as usize, "bytes of symbol names", MAX_SYMBOLS)?;
            for symbol in symbols {
                let is_defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
                // Indirect functions are left out: what is at their address chooses an implementation, once.
                let is_code = match symbol.st_type() {
                    elf::STT_FUNC => true,
                    // Assembly may leave the type out.
                    elf::STT_NOTYPE => symbol.st_size(endian) > 0 && is_code_section(symbol.st_shndx(endian)),
                    _ => false,
                };
                if is_defined && !is_code {
                    continue;
                }
                let name = name(strings, symbol.st_name(endian))?;
                if !name.is_empty() {
                    let (address, size) = (symbol.st_value(endian), symbol.st_size(endian));
                    tables.symbols.push(Symbol { name, address, size, is_defined });
                    bounded("functions", tables.symbols.len() as u64, MAX_FUNCTIONS)?;
                }
            }
        }
        Ok(tables)
    }
}

/// The NUL-terminated text at an offset of a string table; empty outside of it, or if it is not UTF-8.
fn text_at(strings: &[u8], offset: u32) -> &str {
    text_and_size(strings, offset).0
}

/// The same, and how many bytes were read.
fn text_and_size(strings: &[u8], offset: u32) -> (&str, u64) {
    let text = strings.get(offset as usize..).unwrap_or_default();
    let text = text.get(..text.len().min(MAX_NAME)).unwrap_or_default();
    // A name without an end is none.
    match text.split(|byte| *byte == 0).next() {
        Some(name) if name.len() < text.len() => (std::str::from_utf8(name).unwrap_or_default(), name.len() as u64),
        _ => ("", text.len() as u64),
    }
}

fn bounded(what: &'static str, size: u64, max: u64) -> Result<(), Error> {
    if size > max { Err(Error::TooLarge { what, size, max }) } else { Ok(()) }
}
