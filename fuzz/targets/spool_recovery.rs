//! Recovery of a spool whose files are damaged as the input specifies: what it sends is dense, and the same again after
//! the next start.
#![no_main]
use std::{fs, path::PathBuf, sync::LazyLock};

use chainscope_agent::fuzzing::spool::{EPOCH, batches, segment};
use chainscope_proto::v1::{Chunk, Record, record::Kind};
use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.exists() { memory } else { std::env::temp_dir() };
    parent.join(format!("chainscope-fuzz-{}", std::process::id()))
});

/// A segment file; `first` is the sequence of its first record, if any of its records may have been sent.
struct Segment {
    ordinal: u64,
    first: Option<u64>,
    bytes: Vec<u8>,
}

/// Interprets an input as segments and damages (4 bytes each).
fn segments(data: &[u8]) -> (Vec<Segment>, Option<u64>) {
    let mut segments: Vec<Segment> = Vec::new();
    let (mut ordinal, mut sequence, mut renumber) = (0, 0, None);
    for &[operation, a, b, c] in data.as_chunks().0 {
        let at = u64::from(u16::from_be_bytes([b, c]));
        match (operation & 7, segments.last_mut()) {
            (5, Some(last)) => last.bytes.truncate(at as usize),
            (6, Some(last)) if !last.bytes.is_empty() => {
                let at = at as usize % last.bytes.len();
                last.bytes[at] ^= a | 1;
            }
            (7, _) => renumber = Some(u64::from(a)),
            (kind, _) => {
                let record = |number: u64| {
                    let chunk = Chunk { counter: number, plain: vec![c; usize::from(b)].into(), ..Chunk::default() };
                    Record { time_ns: 1, target: "t".to_owned(), kind: Some(Kind::Chunk(chunk)) }
                };
                let records: Vec<Record> = (0..u64::from(a & 7)).map(record).collect();
                // Sequences continue, with a hole, or begin anew; those of unsent segments are not known.
                let first = match kind {
                    0 | 1 => Some(sequence),
                    2 => Some(sequence + u64::from(a >> 3)),
                    3 => Some(u64::from(a)),
                    _ => None,
                };
                sequence = first.unwrap_or(sequence) + records.len() as u64;
                ordinal += 1 + u64::from(operation >> 6);
                let last = ordinal + u64::from(operation >> 3 & 3);
                segments.push(Segment { ordinal, first, bytes: segment(ordinal, last, &records) });
            }
        }
    }
    (segments, renumber)
}

/// The records that the spool sends of its only stream, after a check of their sequence.
fn sent() -> Option<Vec<Record>> {
    let mut next = 0;
    let mut records = Vec::new();
    for batch in batches(&FOLDER, 64 << 20).ok()? {
        assert_eq!((batch.node.as_str(), batch.first_sequence), ("node", next));
        next += batch.records.len() as u64;
        records.extend(batch.records);
    }
    Some(records)
}

fuzz_target!(|data: &[u8]| {
    let _ = fs::remove_dir_all(&*FOLDER);
    let stream = FOLDER.join(EPOCH).join("00000000");
    fs::create_dir_all(&stream).expect("a directory");
    fs::write(stream.join("node"), "node").expect("a file");
    let (segments, renumber) = segments(data);
    for Segment { ordinal, first, bytes } in segments {
        let name = match first {
            Some(first) => format!("{ordinal:016x}-{first:016x}.out"),
            None => format!("{ordinal:016x}.seg"),
        };
        fs::write(stream.join(name), bytes).expect("a file");
    }
    if let Some(start) = renumber {
        fs::write(stream.join("renumber"), start.to_string()).expect("a file");
    }
    let first = sent().expect("the spool is repaired");
    assert_eq!(sent().expect("the repaired spool is opened"), first);
});
