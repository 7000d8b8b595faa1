//! Tracepoints of arbitrary ELF files, of arbitrary notes in an ELF file, and of an arbitrary argument string: what is read is
//! bounded and complete, an error is one line, and a check by any contract ends.
#![no_main]
use chainscope_usdt::{Argument, Image, MAX_ARGUMENTS, Scope, best_match, built_in, check};
use libfuzzer_sys::fuzz_target;

fn verify(image: &Image) {
    for tracepoint in &image.tracepoints {
        assert!(!tracepoint.provider.is_empty() && !tracepoint.locations.is_empty());
        assert!(tracepoint.locations.iter().all(|location| location.arguments.len() <= MAX_ARGUMENTS));
    }
    assert!(image.tracepoints.is_sorted_by_key(|tracepoint| (&tracepoint.provider, &tracepoint.name)));
    assert!(image.errors.iter().all(|error| error.to_string().lines().count() == 1));
    if let Some(found) = best_match(built_in(), image, None) {
        assert!(check(found.contract, image).iter().all(|finding| finding.problem.to_string().lines().count() == 1));
    }
}

/// An ELF file of one note section, whose data ends the file.
fn with_notes(notes: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.note.stapsdt\0\0";
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([0_u64, 0, 64].map(u64::to_le_bytes).concat());
    file.extend([0, 0, 64, 56, 0, 64, 3, 1].map(u16::to_le_bytes).concat());
    let names_at = 64 + 3 * 64;
    let sections = [
        (0, 0, 0, 0),
        (0, 3, names_at, NAMES.len() as u64),
        (1, 7, names_at + NAMES.len() as u64, notes.len() as u64),
    ];
    for (name, kind, offset, size) in sections {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        file.extend([0, 0, offset, size, 0, 4, 0].map(u64::to_le_bytes).concat());
    }
    [&file, NAMES, notes].concat()
}

fuzz_target!(|data: &[u8]| {
    match Image::read(data) {
        Ok(image) => verify(&image),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
    verify(&Image::read(with_notes(data).as_slice()).expect("sound headers"));
    if let Ok(text) = std::str::from_utf8(data) {
        let symbol = |_: &str| Ok(0x4000);
        for is_fixed in [false, true] {
            let scope = Scope { machine: 62, location: 0x1000, is_fixed, symbol: &symbol };
            let raw: usize = Argument::parse_all(text, scope).iter().map(|argument| argument.raw.len()).sum();
            assert!(raw <= text.len());
        }
    }
});
