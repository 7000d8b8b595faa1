//! Compiled programs and crafted ELF files.

use std::path::{Path, PathBuf};

use chainscope_testing::program::compile;
use chainscope_usdt::Image;

/// Compiles a program of `testing/programs`.
pub(crate) fn program(folder: &Path, compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(source);
    compile(compiler, &source, folder, name, flags)
}

/// Compiles a program and reads its tracepoints.
pub(crate) fn image(compiler: &str, source: &str, flags: &[&str]) -> Image {
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), compiler, source, "program", flags);
    let image = Image::read(std::fs::read(path).unwrap().as_slice()).unwrap();
    assert_eq!(image.errors, [], "{compiler} {flags:?}");
    image
}

/// A note: name size, descriptor size, type, name, descriptor, the latter two padded to 4 bytes.
pub(crate) fn note(owner: &[u8], kind: u32, descriptor: &[u8]) -> Vec<u8> {
    let mut note = [owner.len() as u32, descriptor.len() as u32, kind].map(u32::to_le_bytes).concat();
    note.extend(owner);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(descriptor);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// The descriptor of a tracepoint.
pub(crate) fn descriptor(addresses: [u64; 3], texts: &[&str]) -> Vec<u8> {
    let texts = texts.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat());
    addresses.iter().flat_map(|address| address.to_le_bytes()).chain(texts).collect()
}

/// A note of a tracepoint.
pub(crate) fn stapsdt(addresses: [u64; 3], texts: &[&str]) -> Vec<u8> {
    note(b"stapsdt\0", 3, &descriptor(addresses, texts))
}

/// An ELF file.
pub(crate) struct Elf {
    pub(crate) machine: u16,
    /// `ET_EXEC` or `ET_DYN`
    pub(crate) kind: u16,
    pub(crate) notes: Vec<u8>,
    /// Size of the note section in its header, if it is not that of the notes.
    pub(crate) announced: Option<u64>,
    /// Address of `.stapsdt.base`.
    pub(crate) base: u64,
}

/// Address of the code, and its offset in the file.
pub(crate) const CODE: (u64, u64) = (0x40_1000, 0x1000);
/// Address of the data, and its offset in the file.
pub(crate) const DATA: (u64, u64) = (0x50_2000, 0x2000);

impl Default for Elf {
    fn default() -> Self {
        Self { machine: object::elf::EM_X86_64, kind: 2, notes: Vec::new(), announced: None, base: 0x60_0000 }
    }
}

impl Elf {
    /// The bytes: header, two segments, five sections, their names, and the notes at the end.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let names = b"\0.shstrtab\0.note.stapsdt\0.stapsdt.base\0";
        let (segments, sections) = (2_u64, 4_u64);
        let section_table = 64 + 56 * segments;
        let names_at = section_table + 64 * sections;
        let notes_at = (names_at + names.len() as u64).next_multiple_of(4);
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([self.kind, self.machine, 1, 0].map(u16::to_le_bytes).concat());
        file.extend([0, 64, section_table].map(u64::to_le_bytes).concat());
        file.extend([0, 0, 64, 56, segments as u16, 64, sections as u16, 1].map(u16::to_le_bytes).concat());
        for ((address, offset), flags) in [(CODE, 5_u32), (DATA, 6)] {
            file.extend([1, flags].map(u32::to_le_bytes).concat());
            file.extend([offset, address, address, 0x1000, 0x1000, 0x1000].map(u64::to_le_bytes).concat());
        }
        let header = |name: u32, kind: u32, address: u64, offset: u64, size: u64| {
            let words = [name, kind].map(u32::to_le_bytes).concat();
            [words, [0, address, offset, size, 0, 4, 0].map(u64::to_le_bytes).concat()].concat()
        };
        file.extend(header(0, 0, 0, 0, 0));
        file.extend(header(1, object::elf::SHT_STRTAB, 0, names_at, names.len() as u64));
        let size = self.announced.unwrap_or(self.notes.len() as u64);
        file.extend(header(11, object::elf::SHT_NOTE, 0, notes_at, size));
        file.extend(header(25, object::elf::SHT_PROGBITS, self.base, 0, 1));
        file.extend(names);
        file.resize(notes_at as usize, 0);
        file.extend(&self.notes);
        file
    }

    pub(crate) fn read(&self) -> Image {
        Image::read(self.bytes().as_slice()).unwrap()
    }
}
