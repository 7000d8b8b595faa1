//! Segment files of the spool from arbitrary bytes: the valid part is a valid file, and its records survive a round trip.
#![no_main]
use chainscope_agent::fuzzing::spool::{scan, segment};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = bytes::Bytes::copy_from_slice(data);
    if let Some((ordinal, last, records, end)) = scan(&bytes) {
        assert!(ordinal <= last && end <= data.len());
        let valid = scan(&bytes.slice(..end)).expect("a valid file");
        assert_eq!(valid, (ordinal, last, records.clone(), end));
        let again = segment(ordinal, last, &records);
        let length = again.len();
        assert_eq!(scan(&again.into()), Some((ordinal, last, records, length)));
    }
    // The checksums of arbitrary bytes do not match: of these they do.
    let records = chainscope_fuzz::records(data);
    let whole = segment(7, 9, &records);
    let length = whole.len();
    assert_eq!(scan(&whole.clone().into()), Some((7, 9, records.clone(), length)));
    // One changed byte costs the records from its entry on, and no earlier one.
    if let Some(at) = data.last().map(|last| usize::from(*last) % length) {
        let mut damaged = whole;
        damaged[at] ^= 1;
        let (read, end) = scan(&damaged.into()).map_or((Vec::new(), 0), |(_, _, read, end)| (read, end));
        assert_eq!(read, records[..read.len()]);
        assert!(records.is_empty() || (read.len() < records.len() && end <= at), "{at} {end}");
    }
});
