//! Arbitrary ELF files as the symbolizer reads them: the memory of the copy is bounded, and an intact copy has the
//! addresses of the file.
#![no_main]
use std::{fs::File, io::Write as _, sync::LazyLock};

use chainscope_agent::fuzzing::symbols::parse;
use libfuzzer_sys::fuzz_target;

/// A file without a name.
static FILE: LazyLock<File> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("chainscope-fuzz-{}.elf", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
    std::fs::remove_file(path).expect("the file");
    file
});

fuzz_target!(|data: &[u8]| {
    let mut file = &*FILE;
    file.set_len(0).expect("an empty file");
    std::io::Seek::rewind(&mut file).expect("its start");
    file.write_all(data).expect("a successful write");
    let offset = data.first_chunk().map_or(0, |bytes| u64::from(u16::from_le_bytes(*bytes)));
    for offset in [offset, 0, u64::MAX, data.len() as u64 / 2] {
        match parse(file, offset) {
            Ok(parsed) => {
                assert!(parsed.bytes <= 384 << 20, "{parsed:?}");
                assert!(parsed.copied_address.is_none() || parsed.copied_address == parsed.address, "{parsed:?}");
            }
            Err(error) => assert_eq!(error.lines().count(), 1),
        }
    }
});
