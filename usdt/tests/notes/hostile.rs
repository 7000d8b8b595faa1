//! Crafted and damaged files: what can be read is read, the rest is named.

use chainscope_usdt::{Error, Image};
use object::elf::{SHT_STRTAB, SHT_SYMTAB};
use proptest::prelude::*;

use crate::support::{CODE, DATA, Elf, descriptor, note, stapsdt};

const BASE: u64 = 0x60_0000;

#[test]
fn addresses_move_with_the_base_and_have_file_offsets() {
    let notes = stapsdt([CODE.0 + 0x10, BASE, DATA.0 + 8], &["a", "b", "8@%rax"]);
    let plain = Elf { notes: notes.clone(), ..Elf::default() }.read();
    let location = &plain.tracepoints[0].locations[0];
    assert_eq!((location.address, location.offset), (CODE.0 + 0x10, Some(CODE.1 + 0x10)));
    let semaphore = location.semaphore.unwrap();
    assert_eq!((semaphore.address, semaphore.offset), (DATA.0 + 8, Some(DATA.1 + 8)));

    // The file was moved by 0x20 after it was linked.
    let moved = Elf { notes, base: BASE + 0x20, ..Elf::default() }.read();
    let location = &moved.tracepoints[0].locations[0];
    assert_eq!((location.address, location.offset), (CODE.0 + 0x30, Some(CODE.1 + 0x30)));
    assert_eq!(location.semaphore.unwrap().address, DATA.0 + 0x28);
}

#[test]
fn nothing_can_be_attached_outside_of_code_and_data() {
    // The location in data, the semaphore in code, then both nowhere, then no semaphore.
    let notes = [
        stapsdt([DATA.0, BASE, CODE.0], &["a", "a", ""]),
        stapsdt([1, BASE, u64::MAX], &["a", "b", ""]),
        stapsdt([CODE.0 + 0x1000, BASE, 0], &["a", "c", ""]),
    ];
    let image = Elf { notes: notes.concat(), ..Elf::default() }.read();
    for tracepoint in &image.tracepoints {
        assert_eq!(tracepoint.locations[0].offset, None, "{}", tracepoint.name);
        assert_eq!(tracepoint.locations[0].semaphore.and_then(|semaphore| semaphore.offset), None);
    }
    assert_eq!(image.tracepoints[2].locations[0].semaphore, None);
}

#[test]
fn damaged_notes_are_named_and_leave_the_others() {
    let good = |name: &str| stapsdt([CODE.0, BASE, 0], &["good", name, "-8@%rax 4@8(%rsp)"]);
    let many = "8@%rax ".repeat(65);
    let notes = [
        good("first"),
        note(b"stapsdt\0", 3, &[1, 2, 3]),
        note(b"stapsdt\0", 3, &descriptor([CODE.0, BASE, 0], &["lonely"])),
        note(b"stapsdt\0", 3, &descriptor([CODE.0, BASE, 0], &["p", "n", "8@%rax"])[..33]),
        stapsdt([CODE.0, BASE, 0], &["", "name", ""]),
        stapsdt([CODE.0, BASE, 0], &["p", "many", &many]),
        note(b"GNU\0", 3, b"another owner"),
        note(b"stapsdt\0", 4, b"another type"),
        good("last"),
    ];
    let image = Elf { notes: notes.concat(), ..Elf::default() }.read();
    let names: Vec<String> = image.tracepoints.iter().map(|tracepoint| tracepoint.full_name()).collect();
    assert_eq!(names, ["good:first", "good:last"]);
    let errors: Vec<String> = image.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "note 2 of section \".note.stapsdt\": its 3 bytes are too short for three addresses",
            "note 3 of section \".note.stapsdt\" (\"lonely\"): one of its three texts is missing or has no end",
            "note 4 of section \".note.stapsdt\" (\"p:n\"): one of its three texts is missing or has no end",
            "note 5 of section \".note.stapsdt\" (\":name\"): its provider or name is empty",
            "note 6 of section \".note.stapsdt\" (\"p:many\"): 65 arguments are more than 64",
        ]
    );
}

#[test]
fn a_note_of_wrong_length_ends_its_section() {
    let mut cut = stapsdt([CODE.0, BASE, 0], &["a", "cut", ""]);
    cut[4] = 0xff;
    let notes = [stapsdt([CODE.0, BASE, 0], &["a", "whole", ""]), cut].concat();
    let image = Elf { notes, ..Elf::default() }.read();
    assert_eq!(image.tracepoints.len(), 1);
    assert_eq!(
        image.errors[0].to_string(),
        "note 2 of section \".note.stapsdt\": Invalid ELF note descsz; the rest of the section is not read"
    );
}

#[test]
fn locations_of_one_name_are_one_tracepoint() {
    let notes = [0, 8, 16].map(|at| stapsdt([CODE.0 + at, BASE, 0], &["a", "b", &format!("8@{at}(%rsp)")])).concat();
    let image = Elf { notes, ..Elf::default() }.read();
    assert_eq!(image.tracepoints.len(), 1);
    let raw: Vec<&str> =
        image.tracepoints[0].locations.iter().map(|location| location.arguments[0].raw.as_str()).collect();
    assert_eq!(raw, ["8@0(%rsp)", "8@8(%rsp)", "8@16(%rsp)"]);
}

#[test]
fn giant_tables_and_other_files_are_refused() {
    let giant = Elf { announced: Some(1 << 40), ..Elf::default() }.bytes();
    let error = Image::read(giant.as_slice()).unwrap_err();
    assert_eq!(error.to_string(), "bytes of notes: 1099511627776 are more than 16777216");
    let cut = Elf { announced: Some(1 << 20), ..Elf::default() }.read();
    assert_eq!((cut.tracepoints.len(), cut.errors.len()), (0, 1), "a section beyond the end of the file");
    for other in [&b""[..], b"\x7f", b"#!/bin/sh\necho no\n", b"\x7fELF", b"!<arch>\n0000000000000000"] {
        assert!(Image::read(other).is_err());
    }
    assert_eq!(Image::read(&b"#!/bin/sh\necho no, really not\n"[..]), Err(Error::NotElf));
    let empty = Elf::default().read();
    assert_eq!((empty.tracepoints.len(), empty.errors.len()), (0, 0));
}

/// An image whose tracepoint names the symbol `counter`, with `tables` section headers of one symbol table.
fn with_symbols(symbols: &[u8], names: &[u8], tables: usize) -> Vec<u8> {
    let notes = stapsdt([CODE.0, BASE, 0], &["a", "b", "8@counter(%rip)"]);
    let mut file = Elf { notes, ..Elf::default() }.bytes();
    let count = u16::from_le_bytes([file[60], file[61]]);
    let begin = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    let mut table = file[begin..begin + usize::from(count) * 64].to_vec();
    let header = |kind: u32, at: usize, size: usize, link: u16| {
        let words = [0, kind].map(u32::to_le_bytes).concat();
        let longs = [0, 0, at as u64, size as u64].map(u64::to_le_bytes).concat();
        let link = [u32::from(link), 0].map(u32::to_le_bytes).concat();
        [words, longs, link, [1_u64, 24].map(u64::to_le_bytes).concat()].concat()
    };
    file.resize(file.len().next_multiple_of(8), 0);
    table.extend(header(SHT_STRTAB, file.len() + symbols.len(), names.len(), 0));
    table.extend(header(SHT_SYMTAB, file.len(), symbols.len(), count).repeat(tables));
    file.extend_from_slice(symbols);
    file.extend_from_slice(names);
    file.resize(file.len().next_multiple_of(8), 0);
    let sections = (table.len() / 64) as u16;
    let begin = file.len() as u64;
    file[40..48].copy_from_slice(&begin.to_le_bytes());
    file[60..62].copy_from_slice(&sections.to_le_bytes());
    file.extend(table);
    file
}

/// A variable of the first section.
fn symbol(name: u32, address: u64) -> Vec<u8> {
    [&name.to_le_bytes()[..], &[1, 0, 1, 0], &address.to_le_bytes(), &8_u64.to_le_bytes()].concat()
}

#[test]
fn symbol_names_are_not_read_beyond_the_names_wanted() {
    // 200,000 symbols whose names are 16 MiB: to read each takes an hour.
    let names = [&b"\0counter\0"[..], &vec![b'n'; 16 << 20]].concat();
    let symbols = [symbol(9, 1).repeat(200_000), symbol(1, DATA.0)].concat();
    let begin = std::time::Instant::now();
    let image = Image::read(with_symbols(&symbols, &names, 1).as_slice()).unwrap();
    assert!(image.tracepoints[0].locations[0].arguments[0].operand.is_ok());
    assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn many_headers_of_one_symbol_table_are_refused() {
    let symbols = symbol(1, DATA.0).repeat(100_000);
    Image::read(with_symbols(&symbols, b"\0counter\0", 10).as_slice()).unwrap();
    let error = Image::read(with_symbols(&symbols, b"\0counter\0", 1000).as_slice()).unwrap_err();
    assert!(error.to_string().starts_with("bytes of symbols and names compared: "), "{error}");
}

#[test]
fn a_section_name_without_an_end_is_cut() {
    let mut file = Elf { announced: Some(1 << 20), ..Elf::default() }.bytes();
    let table = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    // The names: 4 MiB at the end of the file.
    let (at, size) = (file.len() as u64, 4_u64 << 20);
    file[table + 64 + 24..table + 64 + 40].copy_from_slice(&[at, size].map(u64::to_le_bytes).concat());
    file.resize((at + size) as usize, b'n');
    let table = table + 2 * 64;
    // A note section beyond the end of the file.
    file[table + 24..table + 32].copy_from_slice(&(at + size).to_le_bytes());
    let image = Image::read(file.as_slice()).unwrap();
    assert_eq!(image.errors[0].section.len(), 256);
}

#[test]
fn an_image_of_another_architecture_is_listed() {
    let notes = stapsdt([CODE.0, BASE, 0], &["a", "b", "8@x1 -4@[sp, 128]"]);
    let image = Elf { machine: object::elf::EM_AARCH64, notes, ..Elf::default() }.read();
    let arguments = &image.tracepoints[0].locations[0].arguments;
    assert_eq!(arguments.iter().map(|argument| argument.raw.as_str()).collect::<Vec<_>>(), ["8@x1", "-4@[sp, 128]"]);
    assert!(arguments.iter().all(|argument| argument.operand.is_err()));
}

proptest! {
    #[test]
    fn damaged_files_do_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let notes = [
            stapsdt([CODE.0, BASE, DATA.0], &["net", "inbound_message", "-8@%r12 8@g(%rip) 4@(%rax,%rbx,4)"]),
            stapsdt([CODE.0 + 8, BASE, 0], &["net", "outbound_message", ""]),
        ];
        let mut bytes = Elf { notes: notes.concat(), ..Elf::default() }.bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = Image::read(bytes.as_slice());
    }

    #[test]
    fn cut_files_do_not_panic(end in any::<prop::sample::Index>()) {
        let notes = stapsdt([CODE.0, BASE, DATA.0], &["a", "b", "8@g(%rip)"]);
        let bytes = Elf { notes, ..Elf::default() }.bytes();
        let _ = Image::read(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn arbitrary_notes_do_not_panic(notes in prop::collection::vec(any::<u8>(), 0..400)) {
        let image = Elf { notes, ..Elf::default() }.read();
        prop_assert!(image.tracepoints.iter().all(|tracepoint| !tracepoint.locations.is_empty()));
    }
}
