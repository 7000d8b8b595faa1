//! Puts events together: chunks of payloads precede the record of their event.
//!
//! A slot has one event at a time. Chunks whose event was dropped are forgotten at the next record of their slot.

use std::collections::BTreeMap;

use super::abi::{SLOTS, flag};
use super::event::{ArgumentValue, Data, End, Event, LocationId, Value};
use super::location::Fetch;
use super::record::{ArgumentRecord, Chunk, EventRecord};

/// The payloads of the event in progress in each slot.
#[derive(Debug)]
pub(super) struct Assembly {
    slots: Vec<Unfinished>,
}

/// Payloads by argument.
#[derive(Debug, Default)]
struct Unfinished {
    time: u64,
    payloads: BTreeMap<u8, Payload>,
}

#[derive(Debug, Default)]
struct Payload {
    bytes: Vec<u8>,
    chunks: u32,
}

impl Default for Assembly {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| Unfinished::default()).collect() }
    }
}

impl Assembly {
    /// Adds a chunk. Returns whether it continues what was there.
    pub(super) fn add(&mut self, chunk: Chunk<'_>) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(chunk.slot)) else { return false };
        if slot.time != chunk.time {
            *slot = Unfinished { time: chunk.time, payloads: BTreeMap::new() };
        }
        let payload = slot.payloads.entry(chunk.argument).or_default();
        if payload.chunks != chunk.number {
            return false;
        }
        payload.chunks += 1;
        payload.bytes.extend_from_slice(chunk.bytes);
        true
    }

    /// Ends an event. `None` if not all of its chunks are there, or the arguments are not those of the location.
    pub(super) fn finish(&mut self, record: &EventRecord<'_>, fetches: &[Fetch]) -> Option<Event> {
        let mut unfinished = self.slots.get_mut(usize::from(record.slot)).map(std::mem::take)?;
        if unfinished.time != record.time {
            unfinished.payloads.clear();
        }
        if record.arguments.len() != fetches.len() {
            return None;
        }
        let mut arguments = Vec::with_capacity(fetches.len());
        for ((index, argument), fetch) in (0_u8..).zip(&record.arguments).zip(fetches) {
            let payload = unfinished.payloads.remove(&index).unwrap_or_default();
            if payload.chunks != u32::from(argument.chunks) {
                return None;
            }
            arguments.push(value(argument, *fetch, payload.bytes));
        }
        Some(Event {
            location: LocationId(record.location),
            time_ns: record.time,
            pid: record.pid,
            tid: record.tid,
            cpu: record.cpu,
            comm: record.comm.to_vec(),
            arguments,
        })
    }
}

fn value(argument: &ArgumentRecord<'_>, fetch: Fetch, mut bytes: Vec<u8>) -> ArgumentValue {
    let is = |flag| argument.flags & flag != 0;
    let value = if is(flag::VALUE_UNSUPPORTED) {
        Value::Unsupported
    } else if is(flag::VALUE_UNREADABLE) {
        Value::Unreadable(argument.value)
    } else {
        Value::Known(argument.value)
    };
    if fetch == Fetch::Value {
        return ArgumentValue { value, data: None };
    }
    bytes.extend_from_slice(argument.data);
    let end = if is(flag::DATA_UNREADABLE) {
        End::Unreadable
    } else if is(flag::DATA_RING_FULL) {
        End::RingFull
    } else if is(flag::DATA_TRUNCATED) {
        End::Limit
    } else if is(flag::LENGTH_UNKNOWN) || !matches!(value, Value::Known(_)) {
        End::Unknown
    } else {
        End::Whole
    };
    ArgumentValue { value, data: Some(Data { bytes, end }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::abi::CHUNK;

    const FETCHES: [Fetch; 2] = [Fetch::Value, Fetch::Payload(0)];

    fn chunk(time: u64, number: u32, bytes: &[u8]) -> Chunk<'_> {
        Chunk { slot: 3, argument: 1, number, time, bytes }
    }

    fn record(time: u64, chunks: u16, data: &[u8]) -> EventRecord<'_> {
        let length = ArgumentRecord { value: 7, chunks: 0, flags: 0, data: &[] };
        let payload = ArgumentRecord { value: 0x1000, chunks, flags: 0, data };
        let arguments = vec![length, payload];
        EventRecord { slot: 3, location: 0, time, pid: 1, tid: 1, cpu: 0, comm: b"node", arguments }
    }

    fn payload(event: &Event) -> &[u8] {
        &event.arguments[1].data.as_ref().unwrap().bytes
    }

    #[test]
    fn chunks_precede_the_rest() {
        let (first, second) = (vec![1; CHUNK], vec![2; CHUNK]);
        let mut assembly = Assembly::default();
        assert!(assembly.add(chunk(10, 0, &first)) && assembly.add(chunk(10, 1, &second)));
        let event = assembly.finish(&record(10, 2, b"end"), &FETCHES).unwrap();
        assert_eq!(payload(&event), [&first, &second, &b"end"[..]].concat());
    }

    #[test]
    fn chunks_of_a_dropped_event_are_forgotten() {
        let bytes = vec![1; CHUNK];
        let mut assembly = Assembly::default();
        assert!(assembly.add(chunk(10, 0, &bytes)));
        assert_eq!(payload(&assembly.finish(&record(20, 0, b"later"), &FETCHES).unwrap()), b"later");
        assert!(assembly.add(chunk(30, 0, &bytes)));
        assert!(assembly.add(chunk(40, 0, &bytes)));
        assert_eq!(payload(&assembly.finish(&record(40, 1, b""), &FETCHES).unwrap()), bytes);
    }

    #[test]
    fn missing_chunks_are_an_error() {
        let bytes = vec![1; CHUNK];
        let mut assembly = Assembly::default();
        assert!(!assembly.add(chunk(10, 1, &bytes)));
        assert_eq!(assembly.finish(&record(10, 2, b""), &FETCHES), None);
        assert_eq!(assembly.finish(&record(11, 1, b""), &FETCHES), None);
        assert_eq!(assembly.finish(&record(12, 0, b""), &FETCHES[..1]), None);
    }
}
