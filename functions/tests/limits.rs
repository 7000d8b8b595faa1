//! Files that say much more than they have: sections and names may overlap.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

use chainscope_functions::{Error, Functions};

const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// A section header of ELF64: type, offset, size and link.
fn section(kind: u32, offset: usize, size: usize, link: u32) -> [u8; SECTION] {
    let mut header = [0; SECTION];
    header[4..8].copy_from_slice(&kind.to_le_bytes());
    header[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
    header[32..40].copy_from_slice(&(size as u64).to_le_bytes());
    header[40..44].copy_from_slice(&link.to_le_bytes());
    header
}

/// An executable for x86-64 with `tables` headers of one symbol table of functions, whose names begin at these offsets.
fn file(tables: usize, strings: &[u8], names: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut file = vec![0; HEADER];
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for (at, value) in
        [(16, 2_u16), (18, 62), (52, 64), (54, 56), (58, 64), (60, u16::try_from(2 + tables).unwrap()), (62, 1)]
    {
        file[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    file[20..24].copy_from_slice(&1_u32.to_le_bytes());
    let first = file.len();
    file.extend(strings);
    let second = file.len();
    for (index, name) in (1_u64..).zip(names) {
        let mut symbol = [0; SYMBOL];
        symbol[..4].copy_from_slice(&name.to_le_bytes());
        symbol[4] = 2; // STT_FUNC
        symbol[6] = 1; // st_shndx: defined
        symbol[8..16].copy_from_slice(&index.to_le_bytes());
        file.extend(symbol);
    }
    let end = file.len();
    file[40..48].copy_from_slice(&(end as u64).to_le_bytes());
    file.extend(section(0, 0, 0, 0));
    file.extend(section(3, first, strings.len(), 0)); // SHT_STRTAB
    let table = section(2, second, end - second, 1); // SHT_SYMTAB
    (0..tables).for_each(|_| file.extend(table));
    file
}

fn too_large(file: &[u8]) -> (&'static str, u64) {
    match Functions::read(file, None) {
        Err(Error::TooLarge { what, max, .. }) => (what, max),
        other => panic!("{:?}", other.map(|functions| functions.len())),
    }
}

#[test]
fn a_table_of_a_thousand_functions_is_read() {
    let functions = Functions::read(file(1, b"\0a\0bc\0", (0..1000).map(|_| 3)).as_slice(), None).unwrap();
    assert_eq!(functions.len(), 1);
    let functions = Functions::read(file(2, b"\0a\0bc\0", [1, 3].into_iter()).as_slice(), None).unwrap();
    assert_eq!(functions.len(), 2);
}

#[test]
fn one_symbol_table_under_many_headers_is_an_error() {
    let tables = file(60_000, b"\0a\0", (0..1_000).map(|_| 0));
    assert_eq!(too_large(&tables), ("bytes of all symbol tables", 512 << 20));
    let tables = file(60_000, b"\0a\0", (0..100).map(|_| 1));
    assert_eq!(too_large(&tables), ("functions", 2 << 20));
}

#[test]
fn names_that_overlap_are_an_error() {
    let mut strings = vec![b'a'; 60 << 10];
    strings.push(0);
    assert_eq!(too_large(&file(1, &strings, 0..16_384)), ("bytes of names of functions", 128 << 20));
    // Also names without an end, which are none.
    let strings = vec![b'a'; 256 << 10];
    assert_eq!(too_large(&file(1, &strings, 0..16_384)), ("bytes of names of functions", 128 << 20));
}
