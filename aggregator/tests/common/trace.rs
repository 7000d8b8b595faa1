//! Events of tracepoints as an agent sends them.

use std::sync::Arc;

use chainscope_proto::v1::{Record, record::Kind};
use chainscope_trace::{
    Attachment, Event, Timestamp, Value,
    record::{encode_attachment, encode_event},
};
use chainscope_usdt::{Argument, Location, Operand, built_in};

use super::TIME;

/// The monotonic clock at [`TIME`].
pub(crate) const MONOTONIC: u64 = 5_000_000_000_000;

/// A location of a tracepoint of Bitcoin Core v31.
pub(crate) fn attachment(tracepoint: &str) -> Arc<Attachment> {
    let (provider, name) = tracepoint.split_once(':').unwrap();
    let contract = built_in().iter().find(|known| known.name() == "bitcoin-core-v31").unwrap();
    let known = contract.tracepoint(provider, name).unwrap();
    let note = |argument: &chainscope_usdt::ArgumentContract| {
        let shape = argument.kind.shape();
        Argument { raw: format!("{}@%rax", shape.size), shape: Some(shape), operand: Ok(Operand::Constant(0)) }
    };
    let arguments = known.arguments.iter().map(note).collect();
    let location = Location { address: 0x1000, offset: Some(0x1000), base: 0, semaphore: None, arguments };
    Arc::new(Attachment::new(provider, name, "/usr/bin/bitcoind", &location, Some((&contract.name(), known))))
}

/// An event of a process, `ms` milliseconds after [`TIME`].
pub(crate) fn event(attachment: &Arc<Attachment>, ms: i64, pid: u32, arguments: Vec<Value>) -> Record {
    assert_eq!(arguments.len(), attachment.arguments.len());
    let monotonic_ns = MONOTONIC.saturating_add_signed(ms * 1_000_000);
    let event = Event {
        sequence: 0,
        time: Timestamp { monotonic_ns, wall_ns: TIME + ms * 1_000_000 },
        pid,
        tid: pid + 1,
        cpu: 1,
        comm: "b-msghand".to_owned(),
        attachment: Arc::clone(attachment),
        arguments,
    };
    let encoded = encode_event(&event, &encode_attachment(attachment));
    Record { time_ns: event.time.wall_ns, target: format!("pid {pid}"), kind: Some(Kind::TraceEvent(encoded)) }
}

pub(crate) fn text(text: &str) -> Value {
    Value::text(text.to_owned())
}

/// A message of a peer.
pub(crate) fn message(ms: i64, pid: u32, direction: &str, peer: i64, kind: &str, payload: Vec<u8>) -> Record {
    let address = text(&format!("10.0.0.{peer}:8333"));
    let size = Value::Unsigned(payload.len() as u64);
    let arguments = vec![Value::Signed(peer), address, text("manual"), text(kind), size, Value::bytes(payload)];
    event(&attachment(&format!("net:{direction}_message")), ms, pid, arguments)
}

/// A transaction that enters the mempool.
pub(crate) fn added(ms: i64, pid: u32, size: i64) -> Record {
    let arguments = vec![Value::bytes(vec![7; 32]), Value::Signed(size), Value::Signed(1000)];
    event(&attachment("mempool:added"), ms, pid, arguments)
}
