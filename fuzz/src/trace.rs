//! Events of tracepoints, and recordings of them.
use std::{collections::BTreeMap, io, sync::Arc};

use chainscope_trace::{
    Accounting, AttachedArgument, Attachment, Counts, Event, Process, Timestamp, Value, archive::Writer,
};
use chainscope_usdt::{ArgumentContract, Kind, Scalar, TracepointContract, built_in};

/// When the source is attached.
const START: Timestamp = Timestamp { monotonic_ns: 5_000_000_000_000, wall_ns: 1_600_000_000_000_000_000 };
/// Time between two events, in nanoseconds.
const INTERVAL_NS: u32 = 1_000_000;

/// An event of each tracepoint of Bitcoin Core.
pub fn events() -> Vec<Event> {
    let contract = built_in().iter().find(|known| known.name() == "bitcoin-core-v31").expect("a built-in contract");
    let event = |(sequence, tracepoint): (u32, &TracepointContract)| {
        let attached =
            |argument: &ArgumentContract| AttachedArgument { raw: "8@%rax".to_owned(), meaning: argument.clone() };
        let attachment = Attachment {
            provider: tracepoint.provider.clone(),
            name: tracepoint.name.clone(),
            file: "/usr/bin/bitcoind".to_owned(),
            location: u64::from(sequence),
            contract: Some(contract.name()),
            arguments: tracepoint.arguments.iter().map(attached).collect(),
            build_id: None,
        };
        let after_ns = sequence * INTERVAL_NS;
        Event {
            sequence: u64::from(sequence),
            time: Timestamp {
                monotonic_ns: START.monotonic_ns + u64::from(after_ns),
                wall_ns: START.wall_ns + i64::from(after_ns),
            },
            pid: 7,
            tid: 8,
            cpu: 1,
            comm: "b-msghand".to_owned(),
            attachment: Arc::new(attachment),
            arguments: tracepoint.arguments.iter().map(value).collect(),
        }
    };
    (0..).zip(&contract.tracepoints).map(event).collect()
}

fn value(argument: &ArgumentContract) -> Value {
    match (argument.name.as_str(), argument.kind) {
        ("message_type", _) => Value::text("inv"),
        ("address", _) => Value::text("10.0.0.1:8333"),
        ("payload", _) => Value::bytes(inventory()),
        ("size", Kind::Scalar(Scalar::U64)) => Value::Unsigned(inventory().len() as u64),
        (_, Kind::Scalar(Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64)) => Value::Signed(7),
        (_, Kind::Scalar(Scalar::F32 | Scalar::F64)) => Value::Float(0.5),
        (_, Kind::Scalar(Scalar::Bool)) => Value::Bool(true),
        (_, Kind::Scalar(_) | Kind::Pointer(_)) => Value::Unsigned(7),
        (_, Kind::CString { .. }) => Value::text("text"),
        (_, Kind::Hash32 | Kind::Bytes(_)) => Value::bytes(vec![7; 32]),
    }
}

/// A list of one transaction, the payload of `inv`.
fn inventory() -> Vec<u8> {
    [&[1_u8, 1, 0, 0, 0][..], &[7; 32][..]].concat()
}

/// The file of a recording of these events.
pub fn recording(events: &[Event]) -> io::Result<Vec<u8>> {
    let mut writer = Writer::new(Vec::new(), "fuzz", START, &[])?;
    writer.process(Process { pid: 7, start_ns: 1 })?;
    for event in events {
        writer.event(event)?;
    }
    let counts = |event: &Event| {
        let dropped = BTreeMap::from([("ring_full".into(), 2)]);
        (event.attachment.full_name(), Counts { hits: 3, delivered: 1, incomplete: 1, dropped })
    };
    let until = events.last().map_or(START, |event| event.time);
    writer.finish(&Accounting { from: START, until, tracepoints: events.iter().map(counts).collect() })
}
