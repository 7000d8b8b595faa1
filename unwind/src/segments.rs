//! Program headers: the file offsets and addresses of executable segments.

use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSegment, ReadRef, SegmentFlags};

use crate::error::Error;

/// An executable `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_vaddr`
    pub address: u64,
    /// `p_offset`
    pub offset: u64,
    /// `p_filesz`
    pub size: u64,
}

/// The executable `PT_LOAD` segments of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfSegments {
    segments: Vec<Segment>,
}

impl ElfSegments {
    /// Reads the program headers.
    ///
    /// # Errors
    /// [`Error::Elf`], [`Error::Architecture`].
    pub fn read<'data>(data: impl ReadRef<'data>) -> Result<Self, Error> {
        Ok(Self::from_elf(&parse(data)?))
    }

    pub(crate) fn from_elf<'data>(file: &ElfFile64<'data, Endianness, impl ReadRef<'data>>) -> Self {
        let segment = |segment: object::read::elf::ElfSegment64<'data, '_, Endianness, _>| {
            let (offset, size) = segment.file_range();
            Segment { address: segment.address(), offset, size }
        };
        let executable = |segment: &object::read::elf::ElfSegment64<'data, '_, Endianness, _>| matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
        Self { segments: file.segments().filter(executable).map(segment).collect() }
    }

    /// The executable segments, in the order of the program headers.
    #[must_use]
    pub fn as_slice(&self) -> &[Segment] {
        &self.segments
    }

    /// The load bias: the address in the process minus the address in the file (wrapping), for a mapping of the file at
    /// `offset` to `start`. A mapping is page-aligned, so its offset may precede the segment's by less than a page.
    /// `None` if no executable segment is mapped there.
    #[must_use]
    pub fn load_bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let page = |at: u64| at & !(PAGE - 1);
        let holds = |s: &&Segment| {
            offset >= page(s.offset) && offset < s.offset.saturating_add(s.size).max(page(s.offset).saturating_add(1))
        };
        // If two segments share a page of the file, a mapping from that page on belongs to the later one.
        let segment = self.segments.iter().rfind(holds)?;
        Some(start.wrapping_sub(segment.address.wrapping_sub(segment.offset).wrapping_add(offset)))
    }
}

pub(crate) fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<ElfFile64<'data, Endianness, R>, Error> {
    let file = ElfFile64::parse(data).map_err(|error| Error::Elf(error.to_string()))?;
    let machine = file.elf_header().e_machine(file.endian());
    if machine != object::elf::EM_X86_64 || !file.is_little_endian() {
        return Err(Error::Architecture(format!("ELF machine {machine}")));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_bias_is_mapped_address_minus_file_address() {
        let elf = ElfSegments {
            segments: vec![
                Segment { address: 0x1000, offset: 0x1000, size: 0x500 },
                Segment { address: 0x3d00, offset: 0x1d00, size: 0x300 },
            ],
        };
        assert_eq!(
            elf.load_bias(0x7000_1000, 0x1000),
            Some(0x7000_1000 - 0x3000),
            "the later segment owns the shared page"
        );
        assert_eq!(elf.load_bias(0x7000_0000, 0x5000), None);
        let fixed = ElfSegments { segments: vec![Segment { address: 0x40_1000, offset: 0x1000, size: 0x500 }] };
        assert_eq!(fixed.load_bias(0x40_1000, 0x1000), Some(0));
    }
}
