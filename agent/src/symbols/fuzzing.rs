//! Entry point of the fuzz target of ELF files.

use std::fs::File;

use super::{copy::SymbolFile, elf::Elf};

/// What the agent reads of an ELF file before it looks symbols up.
#[derive(Debug)]
pub struct Parsed {
    /// Address of the offset.
    pub address: Option<u64>,
    /// Address of the offset in the private copy of the symbols, unless that is damaged.
    pub copied_address: Option<u64>,
    /// Memory that the copy takes, in bytes.
    pub bytes: u64,
}

/// Parses a file and copies its symbols.
///
/// # Errors
/// As text.
pub fn parse(file: &File, offset: u64) -> Result<Parsed, String> {
    let elf = Elf::read(file).map_err(|error| error.to_string())?;
    let copy = SymbolFile::of(file, &elf).map_err(|error| error.to_string())?;
    let copied = File::open(copy.path()).ok().and_then(|copied| Elf::read(&copied).ok());
    Ok(Parsed {
        address: elf.address(offset),
        copied_address: copied.and_then(|copied| copied.address(offset)),
        bytes: copy.bytes,
    })
}
