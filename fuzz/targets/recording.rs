#![no_main]
//! Recordings of tracepoints, as files and behind the compression: read, shown in every view, and written again.

use std::{io::Write as _, time::Duration};

use chainscope_trace::{
    Polled, Selection, Session, Source as _,
    archive::{Reader, Writer},
    pcapng,
    view::{Any, Blocks, Coins, Connections, Flushes, Mempool, Monitor, P2p, Raw, Relay, Utxos, View},
};
use libfuzzer_sys::fuzz_target;

/// A header, after which `data` is the entries.
const HEADER: &[u8] = b"\x16\x0a\x14\x0a\x10chainscope.trace\x10\x01";

fuzz_target!(|data: &[u8]| {
    read(data);
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.write_all(HEADER).unwrap();
    encoder.write_all(data).unwrap();
    read(&encoder.finish().unwrap());
});

fn read(file: &[u8]) {
    let Ok(mut reader) = Reader::new(file) else { return };
    let mut events = Vec::new();
    while let Ok(polled @ (Polled::Event(_) | Polled::Process(_))) = reader.poll(Duration::ZERO) {
        if let Polled::Event(event) = polled {
            events.push(event);
        }
    }
    let accounting = reader.accounting();
    let all = "*:*".parse().unwrap();
    let views: [Box<dyn View>; 11] = [
        Box::new(P2p::new(true)),
        Box::new(Monitor::new(true, true)),
        Box::new(Raw::new(true)),
        Box::new(Blocks::new(0, 0, 0, None).unwrap()),
        Box::new(Flushes),
        Box::new(Utxos),
        Box::new(Mempool::new(10)),
        Box::new(Coins::default()),
        Box::new(Connections),
        Box::new(Relay::default()),
        Box::new(Any::new(vec![all], None)),
    ];
    for mut view in views {
        for is_json in [false, true] {
            let attachments = reader.attachments();
            let mut session = Session::new(view.as_mut(), Selection::default(), is_json, reader.start(), &attachments);
            events.iter().for_each(|event| session.event(event));
            session.finish(&accounting);
            let output = session.take_output();
            assert!(!output.contains(|letter: char| letter.is_control() && letter != '\n'));
        }
    }
    let mut packets = pcapng::Writer::new(Vec::new(), "fuzz").unwrap();
    events.iter().for_each(|event| packets.event(event).unwrap());
    packets.finish(&accounting).unwrap();
    let mut writer = Writer::new(Vec::new(), "fuzz", reader.start(), &reader.attachments()).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    let file = writer.finish(&accounting).unwrap();
    let mut reader = Reader::new(file.as_slice()).unwrap();
    for event in &events {
        // NaN is not equal to itself.
        assert!(matches!(reader.event(), Ok(Some(found)) if found.sequence == event.sequence));
    }
}
