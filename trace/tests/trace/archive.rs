//! Recordings: what is written is read, wherever the file ends.

use std::{io::Cursor, sync::Arc, time::Duration};

use bytes::Bytes;
use chainscope_proto::v1::TraceEvent;
use chainscope_trace::{
    Accounting, Attachment, Event, Incomplete, Polled, Process, Selection, Session, Source as _, Value,
    archive::{Ending, Info, Reader, Writer},
    record::{Decoder, encode_attachment, encode_event},
    view::{Blocks, Mempool, P2p, Raw, View},
};
use proptest::prelude::*;
use prost::Message as _;

use crate::support::{START, accounting, attachment, event, hash, output, text, variant};

/// Events with every kind of value.
fn events() -> Vec<Event> {
    let inbound = attachment("tapyrus", "net:inbound_message");
    let message = |ms, payload, address| {
        let size = Value::Unsigned(5);
        event(&inbound, ms, vec![Value::Signed(-7), address, text("In------"), text("tx"), size, payload])
    };
    let partial = |incomplete| Value::Bytes { bytes: vec![1, 2].into(), claimed: 5, incomplete: Some(incomplete) };
    let added = attachment("bitcoin-core-v31", "mempool:added");
    let txid = hash(&"0123456789abcdef".repeat(4));
    let block = attachment("tapyrus", "validation:block_connected");
    let mut values = [10, 20, 30, 1_500].map(Value::Signed).to_vec();
    values[1] = Value::Unsigned(20);
    let block = |ms, height| {
        event(&block, ms, [txid.clone(), Value::Signed(height)].into_iter().chain(values.clone()).collect())
    };
    vec![
        message(1, Value::bytes(vec![0; 5]), text("1.2.3.4:5")),
        message(2, partial(Incomplete::Limit), Value::Text { bytes: "1.2".into(), is_truncated: true }),
        message(3, partial(Incomplete::Dropped), Value::text(&b"\xff\x00"[..])),
        message(4, partial(Incomplete::Unreadable), Value::Unreadable { address: u64::MAX }),
        event(&added, 5, vec![txid.clone(), Value::Signed(i64::MIN), Value::Signed(1)]),
        event(&added, 6, vec![Value::Unsupported, Value::Float(f64::NEG_INFINITY), Value::Bool(true)]),
        event(&variant("tapyrus", "coin_selection:change_info"), 7, vec![Value::Signed(1), text("TPC")]),
        block(900, 1),
        block(2_000, 2),
    ]
}

fn recorded(events: &[Event], accounting: &Accounting) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 1", START, &[]).expect("valid");
    for event in events {
        writer.event(event).expect("valid");
        // A block of its own.
        writer.flush().expect("valid");
    }
    writer.finish(accounting).expect("valid")
}

fn read(file: &[u8]) -> (Vec<Event>, Option<Ending>) {
    let mut reader = Reader::new(file).expect("valid");
    let mut events = Vec::new();
    while let Some(event) = reader.event().expect("valid") {
        events.push(event);
    }
    (events, reader.ending())
}

#[test]
fn events_are_read_from_records_each_on_its_own() {
    for event in events() {
        let record = encode_event(&event, &encode_attachment(&event.attachment));
        assert_eq!((&record.provider, &record.name), (&event.attachment.provider, &event.attachment.name));
        let record = TraceEvent::decode(record.encode_to_vec().as_slice()).unwrap();
        let found = Decoder::default().event(event.sequence, event.time.wall_ns, record.clone()).unwrap();
        assert_eq!(found, event);
        let of_another = TraceEvent { name: "x".to_owned(), ..record.clone() };
        assert!(Decoder::default().event(0, 0, of_another).unwrap_err().contains("another tracepoint"));
        let mut short = record;
        short.arguments.pop();
        assert!(Decoder::default().event(0, 0, short).unwrap_err().contains("arguments of"));
    }
    let peers: Vec<_> = events().iter().map(|event| encode_event(event, &Bytes::new()).peers).collect();
    assert_eq!(peers[0], ["-7", "1.2.3.4:5"]);
    assert_eq!(peers[3], ["-7"], "an address that could not be read is no peer");
    assert!(peers[4].is_empty());
}

proptest! {
    #[test]
    fn no_record_makes_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), attachment in any::<bool>()) {
        if let Ok(mut record) = TraceEvent::decode(bytes.as_slice()) {
            if attachment {
                record.attachment = encode_attachment(&events()[0].attachment);
            }
            let _ = Decoder::default().event(0, 0, record);
        }
    }
}

#[test]
fn what_is_written_is_read() {
    let (events, accounting) = (events(), accounting(&events()));
    let file = recorded(&events, &accounting);
    assert_eq!(read(&file), (events.clone(), Some(Ending::Complete)));
    let mut reader = Reader::new(file.as_slice()).unwrap();
    assert_eq!((reader.program(), reader.start()), ("test 1", START));
    for event in &events {
        assert_eq!(reader.poll(Duration::ZERO).unwrap(), Polled::Event(event.clone()));
    }
    assert_eq!(reader.poll(Duration::ZERO).unwrap(), Polled::End);
    assert_eq!(reader.accounting(), accounting);
    assert_eq!(reader.attachments().len(), 4, "each is written once");
}

/// When processes were started, and which build of the file they run, is in the recording.
#[test]
fn processes_and_builds_are_recorded() {
    let event = events().swap_remove(0);
    let attachment = Attachment { build_id: Some("c0de".to_owned()), ..Attachment::clone(&event.attachment) };
    let event = Event { attachment: Arc::new(attachment), ..event };
    let process = Process { pid: event.pid, start_ns: 77 };
    let mut writer = Writer::new(Vec::new(), "test 1", START, &[]).unwrap();
    writer.process(process).unwrap();
    writer.event(&event).unwrap();
    let file = writer.finish(&accounting(std::slice::from_ref(&event))).unwrap();
    let mut reader = Reader::new(file.as_slice()).unwrap();
    assert_eq!(reader.poll(Duration::ZERO).unwrap(), Polled::Process(process));
    assert_eq!(reader.poll(Duration::ZERO).unwrap(), Polled::Event(event.clone()));
    assert_eq!(Reader::new(file.as_slice()).unwrap().event().unwrap(), Some(event));
    let info = Info::read(file.as_slice()).unwrap();
    assert_eq!(info.processes.into_iter().collect::<Vec<_>>(), [(4711, Some(77))]);
    assert_eq!(info.files.into_iter().map(|program| program.build_id).collect::<Vec<_>>(), [Some("c0de".to_owned())]);
}

#[test]
fn a_file_that_is_cut_anywhere_is_read_up_to_there() {
    let events = events();
    let file = recorded(&events, &accounting(&events));
    let mut lengths = Vec::new();
    for length in 0..file.len() {
        let cut = &file[..length];
        let Ok(mut reader) = Reader::new(cut) else {
            assert!(lengths.is_empty(), "a longer file is readable, too");
            continue;
        };
        let mut found = Vec::new();
        while let Some(event) = reader.event().unwrap() {
            found.push(event);
        }
        assert_eq!(found, events[..found.len()]);
        // The checksum at the end of the frame is behind the trailer.
        let is_complete = reader.ending() == Some(Ending::Complete);
        assert!(is_complete || reader.ending() == Some(Ending::Cut));
        assert!(!is_complete || length + 8 >= file.len(), "{length} of {}", file.len());
        if !is_complete {
            assert_eq!(reader.accounting().total().delivered, found.len() as u64);
        }
        lengths.push(found.len());
    }
    assert!(lengths.is_sorted());
    assert_eq!((lengths.first(), lengths.last()), (Some(&0), Some(&events.len())));
    lengths.dedup();
    assert_eq!(lengths, (0..=events.len()).collect::<Vec<_>>(), "no event is held back");
}

#[test]
fn a_replay_has_the_lines_of_the_live_run() {
    let events = events();
    let live = |view: &mut dyn View, is_json| output(view, Selection::default(), is_json, &events);
    let replay = |view: &mut dyn View, is_json| {
        let mut reader = Reader::new(Cursor::new(recorded(&events, &accounting(&events)))).unwrap();
        let mut session = Session::new(view, Selection::default(), is_json, reader.start(), &reader.attachments());
        while let Polled::Event(event) = reader.poll(Duration::ZERO).unwrap() {
            session.event(&event);
        }
        session.finish(&reader.accounting());
        session.take_output()
    };
    for is_json in [false, true] {
        assert_eq!(live(&mut P2p::default(), is_json), replay(&mut P2p::default(), is_json));
        assert_eq!(live(&mut Raw::default(), is_json), replay(&mut Raw::default(), is_json));
        assert_eq!(live(&mut Mempool::new(0), is_json), replay(&mut Mempool::new(0), is_json));
        let blocks = || Blocks::new(0, 0, 0, None).unwrap();
        let lines = live(&mut blocks(), is_json);
        assert!(is_json || lines.contains("BENCH    1 blk/s"), "{lines}");
        assert_eq!(lines, replay(&mut blocks(), is_json));
    }
}

#[test]
fn other_files_and_later_versions_are_refused() {
    for (file, problem) in [
        (&b""[..], "the file was cut within its header"),
        (b"no zstd at all, but long enough", "not a recording of tracepoints"),
    ] {
        let error = Reader::new(file).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let other = zstd::encode_all(&b"\x02hi"[..], 3).unwrap();
    assert!(Reader::new(other.as_slice()).unwrap_err().to_string().contains("no recording of tracepoints"));
    // Header { format, version: 2 }.
    let header = b"\x16\x0a\x14\x0a\x10chainscope.trace\x10\x02";
    let later = zstd::encode_all(header.as_slice(), 3).unwrap();
    let error = Reader::new(later.as_slice()).unwrap_err().to_string();
    assert_eq!(error, "format version 2; this program reads up to 1");
}

#[test]
fn a_length_that_lies_is_an_error() {
    let events = events();
    let plain = zstd::decode_all(recorded(&events, &accounting(&events)).as_slice()).unwrap();
    let mut file = plain.clone();
    file.extend([0xff; 9]);
    // Behind the trailer nothing is read.
    assert_eq!(read(&zstd::encode_all(file.as_slice(), 3).unwrap()).1, Some(Ending::Complete));
    // Before it, a length of 2^63 - 1 bytes.
    let header = usize::from(plain[0]) + 1;
    let file = [&plain[..header], &[0xff; 8], &[0x7f]].concat();
    let error = Reader::new(zstd::encode_all(file.as_slice(), 3).unwrap().as_slice()).unwrap_err();
    assert!(error.to_string().ends_with("is larger than 67108864"), "{error}");
}

#[test]
fn a_summary_of_a_recording() {
    let events = events();
    let file = recorded(&events, &accounting(&events));
    let info = Info::read(file.as_slice()).unwrap();
    assert_eq!((info.events, info.ending.clone()), (9, Ok(Ending::Complete)));
    assert_eq!(info.span, Some((events[0].time, events[8].time)));
    let inbound = info.tracepoints["net:inbound_message"];
    assert_eq!((inbound.events, inbound.incomplete, inbound.unreadable), (4, 3, 1));
    assert_eq!(info.processes.into_iter().collect::<Vec<_>>(), [(4711, None)]);
    assert_eq!(info.accounting.total().hits, 9);

    let cut = Info::read(&file[..file.len() / 2]).unwrap();
    assert_eq!(cut.ending, Ok(Ending::Cut));
}

proptest! {
    #[test]
    fn damage_does_no_harm(at in 0.0..1.0, byte: u8, decompressed: bool) {
        let events = events();
        let mut file = recorded(&events, &accounting(&events));
        if decompressed {
            file = zstd::decode_all(file.as_slice()).unwrap();
        }
        let index = (at * file.len() as f64) as usize;
        file[index] = byte;
        if decompressed {
            file = zstd::encode_all(file.as_slice(), 1).unwrap();
        }
        let Ok(info) = Info::read(file.as_slice()) else { return Ok(()) };
        prop_assert!(info.events <= 9);
    }

    #[test]
    fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut file = b"\x16\x0a\x14\x0a\x10chainscope.trace\x10\x01".to_vec();
        file.extend(bytes);
        let file = zstd::encode_all(file.as_slice(), 1).unwrap();
        let _ = Info::read(file.as_slice());
    }
}
