//! Events as a probe delivers them, with the arguments of the built-in contracts.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_trace::{Accounting, Attachment, Counts, Event, Selection, Session, Timestamp, Value, view::View};
use chainscope_usdt::{Argument, ArgumentContract, Location, Operand, built_in};

/// When sources are attached: 09:30:00 UTC.
pub(crate) const START: Timestamp = Timestamp { monotonic_ns: 5_000_000_000_000, wall_ns: 1_626_255_000_000_000_000 };

/// A location of a tracepoint that passes what the contract says.
pub(crate) fn attachment(contract: &str, tracepoint: &str) -> Arc<Attachment> {
    located(contract, tracepoint, |known| known.arguments.clone())
}

/// A location that passes what the first variant of the contract says.
pub(crate) fn variant(contract: &str, tracepoint: &str) -> Arc<Attachment> {
    located(contract, tracepoint, |known| known.variants[0].arguments.clone())
}

fn located(
    contract: &str,
    tracepoint: &str,
    arguments: impl Fn(&chainscope_usdt::TracepointContract) -> Vec<ArgumentContract>,
) -> Arc<Attachment> {
    let (provider, name) = tracepoint.split_once(':').expect("PROVIDER:NAME");
    let contract = built_in().iter().find(|known| known.name() == contract).expect("a built-in contract");
    let known = contract.tracepoint(provider, name).expect("a tracepoint of the contract");
    let location = Location {
        address: 0x1000,
        offset: Some(0x1000),
        base: 0,
        semaphore: None,
        arguments: notes(&arguments(known)),
    };
    Arc::new(Attachment::new(provider, name, "/usr/bin/node", &location, Some((&contract.name(), known))))
}

/// A location of a tracepoint that no contract knows.
pub(crate) fn unknown(provider: &str, name: &str, arguments: &[ArgumentContract]) -> Arc<Attachment> {
    let location =
        Location { address: 0x2000, offset: Some(0x2000), base: 0, semaphore: None, arguments: notes(arguments) };
    Arc::new(Attachment::new(provider, name, "/usr/bin/node", &location, None))
}

fn notes(arguments: &[ArgumentContract]) -> Vec<Argument> {
    let note = |argument: &ArgumentContract| {
        let shape = argument.kind.shape();
        Argument { raw: format!("{}@%rax", shape.size), shape: Some(shape), operand: Ok(Operand::Constant(0)) }
    };
    arguments.iter().map(note).collect()
}

/// An event `ms` milliseconds after the start.
pub(crate) fn event(attachment: &Arc<Attachment>, ms: u64, arguments: Vec<Value>) -> Event {
    assert_eq!(arguments.len(), attachment.arguments.len(), "{}", attachment.full_name());
    let time = Timestamp {
        monotonic_ns: START.monotonic_ns + ms * 1_000_000,
        wall_ns: START.wall_ns + i64::try_from(ms * 1_000_000).expect("valid"),
    };
    Event {
        sequence: ms,
        time,
        pid: 4711,
        tid: 4712,
        cpu: 1,
        comm: "b-msghand".to_owned(),
        attachment: Arc::clone(attachment),
        arguments,
    }
}

pub(crate) fn text(text: &str) -> Value {
    Value::text(text.to_owned())
}

/// A hash whose hexadecimal digits, as they are shown, are these.
pub(crate) fn hash(shown: &str) -> Value {
    let mut bytes = hex::decode(shown).expect("hexadecimal digits");
    bytes.reverse();
    Value::bytes(bytes)
}

/// Everything delivered, ten seconds after the start.
pub(crate) fn accounting(events: &[Event]) -> Accounting {
    let mut tracepoints = BTreeMap::<String, Counts>::new();
    for event in events {
        let counts = tracepoints.entry(event.attachment.full_name()).or_default();
        counts.hits += 1;
        counts.delivered += 1;
    }
    let until =
        Timestamp { monotonic_ns: START.monotonic_ns + 10_000_000_000, wall_ns: START.wall_ns + 10_000_000_000 };
    Accounting { from: START, until, tracepoints }
}

/// What a view shows of events.
pub(crate) fn lines(view: &mut dyn View, events: &[Event]) -> Vec<String> {
    output(view, Selection::default(), false, events).lines().map(str::to_owned).collect()
}

pub(crate) fn output(view: &mut dyn View, selection: Selection, is_json: bool, events: &[Event]) -> String {
    let mut attachments: Vec<Arc<Attachment>> = Vec::new();
    for event in events {
        if !attachments.iter().any(|known| Arc::ptr_eq(known, &event.attachment)) {
            attachments.push(Arc::clone(&event.attachment));
        }
    }
    let mut session = Session::new(view, selection, is_json, START, &attachments);
    for event in events {
        session.event(event);
        if session.is_done() {
            break;
        }
    }
    session.finish(&accounting(events));
    session.take_output()
}
