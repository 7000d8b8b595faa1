//! Spans of the functions that were found: their probes, what these cost, and what a measurement leaves out.

use std::{collections::BTreeSet, time::Duration};

use chainscope_ebpf::latency::{Exit, Scope, Span};
use chainscope_functions::{Cost, Emulated, Function, Note, Pattern, Probes};
use chainscope_latency::{Function as Timed, Location};

use super::{PlannedFunction, SpanRequest};

/// A function and the probes of its copies.
pub(super) type Probed = (Function, Vec<Probes>);

/// Cost of a probe whose instruction is emulated, and of one that is executed in a single step.
pub(super) const EMULATED: Duration = Duration::from_nanos(700);
const SINGLE_STEPPED: Duration = Duration::from_micros(10);
/// Cost of a return probe.
const RETURN_PROBE: Duration = Duration::from_micros(1);

/// The calls of a function.
pub(super) fn call(
    request: &SpanRequest,
    entry: &Probed,
    count: usize,
    is_coroutine: bool,
    has_return_probes: bool,
) -> PlannedFunction {
    let (function, probes) = entry;
    let name = match &request.name {
        Some(name) if count == 1 => name.clone(),
        Some(name) => format!("{name}: {}", function.name),
        None => function.name.clone(),
    };
    let location = Location { pattern: request.entry.to_string(), symbols: vec![function.name.clone()] };
    let timed = Timed { name, entry: location.clone(), exit: location };
    let entries = std::slice::from_ref(entry);
    let mut notes = notes(entries, has_return_probes);
    if is_coroutine {
        notes.push(
            "a coroutine: a span ends when it is suspended first; the rest runs in functions of its body".to_owned(),
        );
    }
    let span = Span {
        entries: probes.iter().map(|probes| probes.entry).collect(),
        exits: exits(entries, has_return_probes),
        scope: Scope::Call,
        counts_returns: request.counts_returns,
    };
    planned(timed, span, entries, entries, has_return_probes, notes)
}

/// From one function to another one.
pub(super) fn between(
    request: &SpanRequest,
    exit: &Pattern,
    entries: &[Probed],
    exited: &[Probed],
    has_return_probes: bool,
) -> PlannedFunction {
    let location = |pattern: &Pattern, found: &[Probed]| Location {
        pattern: pattern.to_string(),
        symbols: found.iter().map(|(function, _)| function.name.clone()).collect(),
    };
    let name = request.name.clone().unwrap_or_else(|| format!("{} to {exit}", request.entry));
    let timed = Timed { name, entry: location(&request.entry, entries), exit: location(exit, exited) };
    let span = Span {
        entries: entries.iter().flat_map(|(_, probes)| probes).map(|probes| probes.entry).collect(),
        exits: exits(exited, has_return_probes),
        scope: Scope::Thread,
        counts_returns: request.counts_returns,
    };
    planned(timed, span, entries, exited, has_return_probes, notes(exited, has_return_probes))
}

fn planned(
    timed: Timed,
    span: Span,
    entries: &[Probed],
    exited: &[Probed],
    has_return_probes: bool,
    notes: Vec<String>,
) -> PlannedFunction {
    let (exit_cost, exit) = exit_cost(exited, has_return_probes);
    PlannedFunction {
        timed,
        cost: entry_cost(entries) + exit_cost,
        probes: format!("entry: {}; exit: {exit}", entry_text(entries)),
        notes,
        span,
        addresses: entries
            .iter()
            .map(|(function, _)| function.parts.iter().map(|part| part.address).collect())
            .collect(),
    }
}

fn exits(found: &[Probed], has_return_probes: bool) -> Vec<Exit> {
    let probes = found.iter().flat_map(|(_, probes)| probes);
    let exits = probes.flat_map(|probes| {
        if has_return_probes {
            return vec![Exit::Return(probes.entry)];
        }
        let returns = probes.returns.iter().copied().map(Exit::Instruction);
        returns.chain(probes.tail_calls.iter().copied().map(Exit::TailCall)).collect()
    });
    exits.collect()
}

/// The dearest of the entries.
fn dearest(found: &[Probed]) -> Option<Cost> {
    found.iter().flat_map(|(_, probes)| probes).map(|probes| probes.entry_cost).max()
}

pub(super) fn entry_cost(found: &[Probed]) -> Duration {
    match dearest(found) {
        Some(Cost::SingleStepped) => SINGLE_STEPPED,
        Some(Cost::Emulated(_)) | None => EMULATED,
    }
}

pub(super) fn entry_text(found: &[Probed]) -> &'static str {
    match dearest(found) {
        Some(Cost::Emulated(Emulated::Nop)) => "nop, emulated",
        Some(Cost::Emulated(Emulated::Push)) => "push, emulated",
        Some(Cost::Emulated(Emulated::Jump)) => "jmp, emulated",
        Some(Cost::Emulated(Emulated::Call)) => "call, emulated",
        Some(Cost::SingleStepped) => "single-stepped",
        None => "none",
    }
}

fn exit_cost(found: &[Probed], has_return_probes: bool) -> (Duration, &'static str) {
    let probes = found.iter().flat_map(|(_, probes)| probes);
    let has = |is_there: fn(&Probes) -> bool| probes.clone().any(is_there);
    match (has(|probes| !probes.returns.is_empty()), has(|probes| !probes.tail_calls.is_empty())) {
        _ if has_return_probes => (RETURN_PROBE, "return probe"),
        (true, false) => (SINGLE_STEPPED, "ret, single-stepped"),
        (true, true) => (SINGLE_STEPPED, "ret, single-stepped, or jmp, emulated"),
        (false, true) => (EMULATED, "jmp, emulated"),
        (false, false) => (Duration::ZERO, "none"),
    }
}

fn notes(found: &[Probed], has_return_probes: bool) -> Vec<String> {
    let notes: BTreeSet<Note> =
        found.iter().flat_map(|(_, probes)| probes).flat_map(|probes| probes.notes.clone()).collect();
    let texts = notes.into_iter().filter_map(|note| match note {
        Note::NeverReturns => Some("no instruction leaves it: its spans never end".to_owned()),
        // The return probe is hit when the other function returns.
        Note::TailCalls { .. } if has_return_probes => {
            Some("includes the functions that it ends with a jump to".to_owned())
        }
        Note::TailCalls { count } => {
            Some(format!("{count} exits are jumps to other functions, whose time and return codes are not its own"))
        }
        Note::ComputedJumps { .. } if has_return_probes => None,
        Note::ComputedJumps { count } => {
            Some(format!("{count} computed jumps: if one leaves the function, its calls count as not ended"))
        }
    });
    texts.collect()
}

/// Names are unique in a run: static functions of different files have the same.
pub(super) fn make_unique<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut known = BTreeSet::new();
    for name in names {
        let (first, mut number) = (name.clone(), 1);
        while !known.insert(name.clone()) {
            number += 1;
            *name = format!("{first} ({number})");
        }
    }
}
