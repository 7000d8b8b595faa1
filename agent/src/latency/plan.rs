//! What is timed, decided before anything is attached.

use std::{collections::BTreeSet, fs::File, time::Duration};

use chainscope_ebpf::latency::{Exit, Scope, Span};
use chainscope_functions::{Cost, Function, Hazard, Note, Pattern, ProbeError, Probes, ReadCache};
use chainscope_latency::{DEFAULT_BLOCK, Function as Timed, Location};

use super::{PlannedTransactions, Program, RecordError};

/// Cost of a probe whose instruction is emulated, and of one that is executed in a single step.
pub(super) const EMULATED: Duration = Duration::from_nanos(700);
const SINGLE_STEPPED: Duration = Duration::from_micros(10);
/// Cost of a return probe.
const RETURN_PROBE: Duration = Duration::from_micros(1);

/// A span that the user asks for.
#[derive(Clone, Debug)]
pub struct SpanRequest {
    /// Its name in reports; `None`: that of the function.
    pub name: Option<String>,
    /// The functions at whose entry it starts.
    pub entry: Pattern,
    /// The functions at whose exit it ends, in the same thread; `None`: the calls of the functions of the entry.
    pub exit: Option<Pattern>,
    /// Whether return codes are counted.
    pub counts_returns: bool,
}

/// How exits of functions are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exits {
    /// By return probes where no exceptions are known, otherwise by instructions.
    #[default]
    Automatic,
    /// By return probes: cheaper, but an exception that leaves a function ends the process.
    Returns,
    /// By the instructions that leave a function.
    Instructions,
}

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// How exits are probed.
    pub exits: Exits,
    /// Number of functions that a pattern may select without a confirmation.
    pub max_functions: usize,
    /// Length of a block.
    pub block: Duration,
    /// Commit that the executable was built from.
    pub commit: Option<String>,
    /// Tags of the run.
    pub tags: BTreeSet<String>,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { exits: Exits::Automatic, max_functions: 100, block: DEFAULT_BLOCK, commit: None, tags: BTreeSet::new() }
    }
}

/// A function that is selected, and cannot be timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Demangled name.
    pub function: String,
    /// Why.
    pub reason: String,
}

/// What is timed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFunction {
    /// Its description in the run.
    pub timed: Timed,
    /// What a call costs the process, about.
    pub cost: Duration,
    /// What the measurement leaves out.
    pub notes: Vec<String>,
    pub(super) span: Span,
}

/// What is timed.
#[derive(Debug)]
pub struct Plan {
    /// The program.
    pub program: Program,
    /// What is timed.
    pub functions: Vec<PlannedFunction>,
    /// What is not.
    pub skipped: Vec<Skipped>,
    /// Whether exits are return probes.
    pub has_return_probes: bool,
    /// Why return probes are not safe; with [`Self::has_return_probes`] this is a warning.
    pub hazard: Option<Hazard>,
    /// The transactions that are recorded one by one.
    pub transactions: Option<PlannedTransactions>,
}

/// A function and the probes of its copies.
pub(super) type Probed = (Function, Vec<Probes>);

impl Plan {
    /// Finds the functions of the requests and their exits.
    ///
    /// # Errors
    /// [`RecordError`]: a pattern selects nothing or too much, a Go program, or nothing that can be probed.
    pub fn new(program: Program, requests: &[SpanRequest], options: &RecordOptions) -> Result<Self, RecordError> {
        if program.hazard == Some(Hazard::Go) {
            return Err(RecordError::Go(program.path));
        }
        let has_return_probes = match options.exits {
            Exits::Automatic => program.hazard.is_none(),
            Exits::Returns => true,
            Exits::Instructions => false,
        };
        let mut search = Search::new(&program, options.max_functions)?;
        let mut functions = Vec::new();
        for request in requests {
            let entries = search.find(&request.entry)?;
            match &request.exit {
                Some(exit) => {
                    let exits = search.find(exit)?;
                    if !entries.is_empty() && !exits.is_empty() {
                        functions.push(between(request, exit, &entries, &exits, has_return_probes));
                    }
                }
                None => {
                    let count = entries.len();
                    functions.extend(entries.iter().map(|entry| {
                        let is_coroutine = program.functions.is_coroutine(&entry.0);
                        call(request, entry, count, is_coroutine, has_return_probes)
                    }));
                }
            }
        }
        let skipped = search.skipped;
        if functions.is_empty() {
            return Err(RecordError::Nothing(skipped));
        }
        make_unique(functions.iter_mut().map(|function| &mut function.timed.name));
        let hazard = program.hazard;
        Ok(Self { program, functions, skipped, has_return_probes, hazard, transactions: None })
    }
}

/// Finds functions of a program.
pub(super) struct Search<'a> {
    program: &'a Program,
    data: ReadCache<File>,
    debug: Option<ReadCache<File>>,
    max: usize,
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Search<'a> {
    pub(super) fn new(program: &'a Program, max: usize) -> Result<Self, RecordError> {
        let copy = |file: &File| file.try_clone().map(ReadCache::new);
        let fail = |cause| RecordError::File { path: program.path.clone(), cause };
        let data = copy(&program.file).map_err(fail)?;
        let debug = program.debug.as_ref().map(copy).transpose().map_err(fail)?;
        Ok(Self { program, data, debug, max, skipped: Vec::new() })
    }

    /// The functions of a pattern that can be probed; the others are skipped.
    pub(super) fn find(&mut self, pattern: &Pattern) -> Result<Vec<Probed>, RecordError> {
        let functions = &self.program.functions;
        let found = functions.find(pattern, self.max, Some(self.debug.as_ref().unwrap_or(&self.data)))?;
        let mut probed = Vec::new();
        for function in found {
            let parts = function.parts.iter().map(|part| functions.probes(&self.data, &function, *part));
            match parts.collect::<Result<Vec<_>, ProbeError>>() {
                Ok(probes) => probed.push((function, probes)),
                Err(reason) => {
                    self.skipped.push(Skipped { function: function.name, reason: reason.to_string() });
                }
            }
        }
        Ok(probed)
    }
}

/// The calls of a function.
fn call(
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
    PlannedFunction { timed, cost: entry_cost(entries) + exit_cost(entries, has_return_probes), notes, span }
}

/// From one function to another one.
fn between(
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
    let cost = entry_cost(entries) + exit_cost(exited, has_return_probes);
    PlannedFunction { timed, cost, notes: notes(exited, has_return_probes), span }
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

pub(super) fn entry_cost(found: &[Probed]) -> Duration {
    let costs = found.iter().flat_map(|(_, probes)| probes).map(|probes| probes.entry_cost);
    match costs.max() {
        Some(Cost::SingleStepped) => SINGLE_STEPPED,
        Some(Cost::Emulated) | None => EMULATED,
    }
}

fn exit_cost(found: &[Probed], has_return_probes: bool) -> Duration {
    let mut probes = found.iter().flat_map(|(_, probes)| probes);
    if has_return_probes {
        RETURN_PROBE
    } else if probes.any(|probes| !probes.returns.is_empty()) {
        SINGLE_STEPPED
    } else {
        EMULATED
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
