//! Crafted files that announce or hold more than any real one are refused, with the reason.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use chainscope_unwind::{Error, Limits, Table};
use object::elf::{SHF_COMPRESSED, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB};
use object::read::ReadCache;

/// A section of a crafted file.
struct Section<'a> {
    name: &'a str,
    kind: u32,
    flags: u64,
    /// Size in the header, if it is not that of the data.
    size: Option<u64>,
    data: &'a [u8],
}

impl<'a> Section<'a> {
    fn new(name: &'a str, data: &'a [u8]) -> Self {
        Self { name, kind: SHT_PROGBITS, flags: 0, size: None, data }
    }
}

/// An ELF file of these sections, which `filler` empty ones follow. The data of the last section ends the file.
fn elf(sections: &[Section<'_>], filler: u64) -> Vec<u8> {
    let count = 2 + sections.len() as u64 + filler;
    let mut names = b"\0.shstrtab\0".to_vec();
    let names_at: Vec<u32> = sections
        .iter()
        .map(|section| {
            let at = names.len() as u32;
            names.extend([section.name.as_bytes(), b"\0"].concat());
            at
        })
        .collect();
    let header = |name: u32, kind: u32, flags: u64, offset: u64, size: u64| {
        let words = [name.to_le_bytes(), kind.to_le_bytes()].concat();
        let longs = [flags, 0, offset, size].map(u64::to_le_bytes).concat();
        // Names of symbols are in section 1.
        let link = [1_u32, 0].map(u32::to_le_bytes).concat();
        let entry_size = if kind == SHT_SYMTAB { 24_u64 } else { 0 };
        [words, longs, link, [1, entry_size].map(u64::to_le_bytes).concat()].concat()
    };
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([0_u64, 0, 64].map(u64::to_le_bytes).concat());
    // The number of sections is in the first of them.
    file.extend([0, 0, 64, 56, 0, 64, 0, 1].map(u16::to_le_bytes).concat());
    let names_offset = 64 + 64 * count;
    let mut offset = names_offset + names.len() as u64;
    file.extend(header(0, 0, 0, 0, count));
    file.extend(header(1, SHT_STRTAB, 0, names_offset, names.len() as u64));
    for (section, name) in sections.iter().zip(names_at) {
        let size = section.size.unwrap_or(section.data.len() as u64);
        file.extend(header(name, section.kind, section.flags, offset, size));
        offset += section.data.len() as u64;
    }
    file.extend((0..filler).flat_map(|_| header(0, SHT_PROGBITS, 0, 0, 0)));
    file.extend(names);
    file.extend(sections.iter().flat_map(|section| section.data.iter().copied()));
    file
}

fn entry(words: &[u32], body: &[u8]) -> Vec<u8> {
    let mut content: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    content.extend_from_slice(body);
    content.resize(content.len().next_multiple_of(8) + 4, 0);
    [&(content.len() as u32).to_le_bytes()[..], &content].concat()
}

/// Call frame information of one function whose rule changes at each byte.
fn frames(rows: usize) -> Vec<u8> {
    // Version 1, no augmentation, factors 1 and -8, return address in 16: CFA = rsp + 8, return address at CFA - 8.
    let cie = entry(&[0], &[1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1]);
    let mut body = [0x1000_u64, rows as u64].map(u64::to_le_bytes).concat();
    for row in 1..rows {
        // Advance by 1; CFA = rsp + 16 or 24.
        body.extend([0x41, 0x0e, if row % 2 == 0 { 16 } else { 24 }]);
    }
    let fde = entry(&[cie.len() as u32 + 4], &body);
    [cie, fde, vec![0; 4]].concat()
}

#[test]
fn a_table_of_too_many_rows_is_refused() {
    let few = elf(&[Section::new(".eh_frame", &frames(1_000))], 0);
    let table = Table::read(few.as_slice(), &Limits::default()).expect("a table");
    // The last one marks the end of the function.
    assert_eq!((table.rows().len(), table.skipped()), (1_001, None));

    let limits = Limits::default();
    let many = elf(&[Section::new(".eh_frame", &frames(limits.rows + 1))], 0);
    assert_eq!(Table::read(many.as_slice(), &limits), Err(Error::TooManyRows(4 << 20)));
}

#[test]
fn a_compressed_section_that_announces_a_giant_is_refused() {
    let announced = 512_u64 << 20;
    let mut compressed = [1_u32, 0].map(u32::to_le_bytes).concat();
    compressed.extend([announced, 1].map(u64::to_le_bytes).concat());
    compressed.extend([0x78, 0x9c, 1, 0, 0, 0xff, 0xff]);
    let section = Section { flags: u64::from(SHF_COMPRESSED), ..Section::new(".debug_frame", &compressed) };
    let error = Table::read(elf(&[section], 0).as_slice(), &Limits::default()).expect_err("too large");
    assert_eq!(error.to_string(), "section .debug_frame cannot be read: 536870912 bytes are more than 67108864");
}

/// A frame of zstd that inflates to 256 MiB: blocks of 128 KiB of one repeated byte.
fn zstd_bomb() -> Vec<u8> {
    // Magic number, descriptor, window of 2 MiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 11 << 3];
    for block in 0..2048 {
        let is_last = u32::from(block == 2047);
        let header = is_last | 1 << 1 | (128 << 10) << 3;
        frame.extend([&header.to_le_bytes()[..3], &[0]].concat());
    }
    frame
}

#[test]
fn a_section_compressed_with_zstd_is_refused() {
    let mut compressed = [2_u32, 0].map(u32::to_le_bytes).concat();
    compressed.extend([24_u64, 1].map(u64::to_le_bytes).concat());
    compressed.extend(zstd_bomb());
    let section = Section { flags: u64::from(SHF_COMPRESSED), ..Section::new(".debug_frame", &compressed) };
    let error = Table::read(elf(&[section], 0).as_slice(), &Limits::default()).expect_err("zstd");
    assert_eq!(error.to_string(), "section .debug_frame cannot be read: it is compressed with zstd");
}

#[test]
fn a_cie_that_fails_to_parse_is_not_scanned_for_each_function() {
    let functions = 1_000;
    let fde = |cie: u32| entry(&[cie], &[0x1000_u64, 16].map(u64::to_le_bytes).concat());
    let cie_at = (functions * fde(0).len()) as u32;
    // The augmentation has no end.
    let body = [&u32::MAX.to_le_bytes()[..], &[1], &vec![b'z'; 1 << 20]].concat();
    let cie = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    let frames = [fde(cie_at).repeat(functions), cie].concat();
    let result = Table::read(elf(&[Section::new(".debug_frame", &frames)], 0).as_slice(), &Limits::default());
    assert!(matches!(result, Err(Error::TooMuchWork { .. })), "{result:?}");
}

/// A sparse file takes no disk space, but the memory that its tables are read into.
#[test]
fn a_sparse_file_of_giant_tables_is_refused() {
    let frames = frames(10);
    let normal = Section::new(".eh_frame", &frames);
    let size = 240_u64 << 20;
    let giant = |name, kind| Section { kind, size: Some(size), ..Section::new(name, &[]) };
    let files = [
        ("symbols", elf(&[normal, giant(".symtab", SHT_SYMTAB)], 0)),
        ("frames", elf(&[giant(".eh_frame", SHT_PROGBITS)], 0)),
    ];
    for (name, start) in files {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sparse-{name}"));
        let mut file = File::create(&path).expect("a file");
        file.write_all(&start).expect("a successful write");
        file.set_len(start.len() as u64 + size).expect("a sparse file");
        let data = ReadCache::new(File::open(&path).expect("the file"));
        let error = Table::read(&data, &Limits::default()).expect_err("too large").to_string();
        assert_eq!(error, "more than 201326592 bytes of tables and sections", "{name}");
        std::fs::remove_file(&path).expect("the file");
    }
}

#[test]
fn a_file_of_too_many_sections_is_refused() {
    let frames = frames(10);
    let file = |filler| elf(&[Section::new(".eh_frame", &frames)], filler);
    Table::read(file(60_000).as_slice(), &Limits::default()).expect("a table");
    let error = Table::read(file(70_000).as_slice(), &Limits::default()).expect_err("too many").to_string();
    assert_eq!(error, "not a readable ELF file: 70003 sections, the maximum is 65536");
}
