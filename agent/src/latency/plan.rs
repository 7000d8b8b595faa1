//! What is timed, decided before anything is attached.

use std::{collections::BTreeSet, time::Duration};

use chainscope_ebpf::latency::{MAX_SPANS, Span};
use chainscope_functions::{Functions, Hazard, Pattern, ReadCache};
use chainscope_latency::{DEFAULT_BLOCK, Function as Timed};

use super::{PlannedTransactions, Program, RecordError, describe::make_unique, search::Search};

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
    /// Whether the others are timed if the program does not have its functions, or has too many.
    pub is_optional: bool,
}

/// How exits of functions are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exits {
    /// By return probes where nothing is known against them, otherwise by instructions.
    #[default]
    Automatic,
    /// By return probes: cheaper, but they can end the process. [`Plan::hazard`] says how.
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
    /// Demangled name, or what was asked for.
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
    /// Which probes that is: their instructions, and whether these are emulated or single-stepped.
    pub probes: String,
    /// What the measurement leaves out.
    pub notes: Vec<String>,
    pub(super) span: Span,
    /// Addresses of the copies of each function at whose entry it starts.
    pub(super) addresses: Vec<Vec<u64>>,
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
    /// What is left out of the measurement of any function.
    pub notes: Vec<String>,
    /// The transactions that are recorded one by one.
    pub transactions: Option<PlannedTransactions>,
}

impl Plan {
    /// Finds the functions of the requests and their exits.
    ///
    /// # Errors
    /// [`RecordError`]: a pattern selects nothing or too much, a program whose stacks move, or nothing that can be probed.
    pub fn new(program: Program, requests: &[SpanRequest], options: &RecordOptions) -> Result<Self, RecordError> {
        match program.hazard {
            Some(Hazard::Go) => return Err(RecordError::Go(program.path)),
            Some(Hazard::OcamlEffects) => return Err(RecordError::OcamlEffects(program.path)),
            Some(hazard) if hazard.is_ocaml() && options.exits == Exits::Returns => {
                return Err(RecordError::OcamlReturns(program.path));
            }
            _ => {}
        }
        let has_return_probes = match options.exits {
            Exits::Automatic => program.hazard.is_none(),
            Exits::Returns => true,
            Exits::Instructions => false,
        };
        let mut search = Search::new(&program, options.max_functions)?;
        let (mut functions, mut missing) = (Vec::new(), Vec::new());
        for request in requests {
            match search.span(request, has_return_probes) {
                Ok(found) => functions.extend(found),
                Err(RecordError::Find(error)) if request.is_optional => {
                    let function = request.name.clone().unwrap_or_else(|| request.entry.to_string());
                    missing.push(Skipped { function, reason: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        let mut skipped = search.skipped;
        skipped.extend(missing);
        if functions.is_empty() {
            return Err(RecordError::Nothing(skipped));
        }
        if functions.len() > MAX_SPANS as usize {
            return Err(RecordError::TooManySpans { count: functions.len(), max: MAX_SPANS as usize });
        }
        make_unique(functions.iter_mut().map(|function| &mut function.timed.name));
        let hazard = program.hazard;
        let notes = match hazard {
            Some(Hazard::OcamlGrowing) => vec![
                "OCaml 5 moves a stack that is too small: calls in progress then count as not ended, their exits as no_entry"
                    .to_owned(),
            ],
            _ => Vec::new(),
        };
        Ok(Self { program, functions, skipped, has_return_probes, hazard, notes, transactions: None })
    }

    /// Notes which functions were inlined into others as well, by the debug information if there is any: reading it takes up to
    /// some seconds.
    pub fn note_inlined(&mut self) {
        let file = self.program.debug.as_ref().unwrap_or(&self.program.file);
        let Ok(data) = file.try_clone().map(ReadCache::new) else { return };
        let addresses =
            self.functions.iter().flat_map(|function| function.addresses.iter().flatten()).copied().collect();
        let inlined = Functions::inlined_calls(&data, &addresses);
        for function in &mut self.functions {
            // All copies of a function have the same calls.
            let of_one = |copies: &Vec<u64>| copies.iter().filter_map(|address| inlined.get(address)).max();
            let calls: usize = function.addresses.iter().filter_map(of_one).sum();
            if calls > 0 {
                function.notes.push(format!("{calls} calls of it were inlined into others, and are not timed"));
            }
        }
    }
}
