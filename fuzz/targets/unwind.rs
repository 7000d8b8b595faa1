//! Parsing of call frame information from arbitrary ELF files: a table is sorted and bounded, an error is one line.
#![no_main]
use chainscope_unwind::{ElfSegments, Limits, Table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = Limits { rows: 1 << 16, section: 1 << 20, read: 1 << 24 };
    match Table::read(data, &limits) {
        Ok(table) => {
            assert!(table.rows().is_sorted_by(|a, b| a.pc < b.pc));
            assert!(table.rows().len() <= limits.rows);
            for row in table.rows() {
                assert_eq!(table.lookup(table.base() + u64::from(row.pc)), Some(row));
                let _ = (row.kind(), row.offset(), row.rbx());
            }
        }
        Err(error) => assert!(error.to_string().lines().count() == 1),
    }
    if let Ok(segments) = ElfSegments::read(data) {
        for segment in segments.as_slice() {
            let _ = segments.load_bias(segment.address, segment.offset);
        }
    }
});
