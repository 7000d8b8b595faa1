//! Which transactions are recorded: from the entry of a function to a tracepoint.

use std::{fs::File, io, time::Duration};

use chainscope_ebpf::trace::{Fetch, Location};
use chainscope_functions::{Pattern, Probes};
use chainscope_latency::{Function as Timed, Location as ProbeLocation};
use chainscope_usdt::{Argument, Class, Image, Operand, ReadCache, Register, Shape};

use super::super::{
    Plan, RecordError, RecordOptions, Skipped,
    describe::{EMULATED, entry_cost, entry_text, make_unique},
    search::Search,
};

/// What is fetched of the arguments of a tracepoint at the end of a transaction: pointers to an id, and to two `int`.
const FETCHED: [Fetch; 3] = [Fetch::Bytes(32), Fetch::Bytes(4), Fetch::Bytes(4)];

/// What a hit costs that is passed on with its arguments, in addition to that of the instruction.
const PASSED_ON: Duration = Duration::from_micros(1);

/// Transactions that the user asks for. The arguments of the tracepoint are pointers: to the id, 32 bytes in the order in which they
/// are shown, to the type and to the result, `int` each.
#[derive(Clone, Debug)]
pub struct TransactionRequest {
    /// Name in reports.
    pub name: String,
    /// The functions at whose entry a transaction starts.
    pub entry: Pattern,
    /// The tracepoint at which it ends, in the same thread: `provider:name`.
    pub tracepoint: String,
}

/// Transactions that are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTransactions {
    /// Their description in the run.
    pub timed: Timed,
    /// What a transaction costs the process, about.
    pub cost: Duration,
    /// Which probes that is.
    pub probes: String,
    pub(super) entries: Vec<Location>,
    pub(super) exits: Vec<Location>,
}

impl Plan {
    /// Records transactions as well. A program that does not have the tracepoint, or the function, is not an error: then they are
    /// skipped.
    ///
    /// # Errors
    /// [`RecordError`]: the file cannot be read.
    pub fn with_transactions(
        mut self,
        request: &TransactionRequest,
        options: &RecordOptions,
    ) -> Result<Self, RecordError> {
        self.add_transactions(request, options)?;
        Ok(self)
    }

    /// As [`Self::with_transactions`], in place: after an error the plan is as before.
    pub(in crate::latency) fn add_transactions(
        &mut self,
        request: &TransactionRequest,
        options: &RecordOptions,
    ) -> Result<(), RecordError> {
        let program = &self.program;
        let exits = tracepoint(&program.file, &request.tracepoint)
            .map_err(|cause| RecordError::File { path: program.path.clone(), cause })?;
        let mut search = Search::new(program, options.max_functions)?;
        let (exits, reason) = match exits {
            Ok(exits) => (exits, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let (entries, reason) = match reason {
            Some(reason) => (Vec::new(), Some(reason)),
            None => match search.find(&request.entry) {
                Ok(entries) => (entries, None),
                Err(RecordError::Find(error)) => (Vec::new(), Some(error.to_string())),
                Err(error) => return Err(error),
            },
        };
        let reason = reason.or_else(|| entries.is_empty().then(|| "where they start cannot be probed".to_owned()));
        self.skipped.extend(search.skipped);
        if let Some(reason) = reason {
            self.skipped.push(Skipped { function: request.name.clone(), reason });
            return Ok(());
        }
        let symbols = entries.iter().map(|(function, _)| function.name.clone()).collect();
        let mut timed = Timed {
            name: request.name.clone(),
            entry: ProbeLocation { pattern: request.entry.to_string(), symbols },
            exit: ProbeLocation { pattern: request.tracepoint.clone(), symbols: Vec::new() },
        };
        let known = self.functions.iter_mut().map(|function| &mut function.timed.name);
        make_unique(known.chain([&mut timed.name]));
        let offsets = entries.iter().flat_map(|(_, probes)| probes).map(|probes: &Probes| probes.entry);
        let entry = |offset| Location { offset, semaphore: None, arguments: vec![stack_pointer()] };
        self.transactions = Some(PlannedTransactions {
            timed,
            cost: entry_cost(&entries) + EMULATED + 2 * PASSED_ON,
            probes: format!("entry: {}; exit: tracepoint, emulated", entry_text(&entries)),
            entries: offsets.map(entry).collect(),
            exits,
        });
        Ok(())
    }
}

/// The locations of a tracepoint, or why they cannot be used.
fn tracepoint(file: &File, name: &str) -> io::Result<Result<Vec<Location>, String>> {
    let image = Image::read(&ReadCache::new(file.try_clone()?)).map_err(io::Error::other)?;
    let Some(tracepoint) = image.tracepoints.iter().find(|tracepoint| tracepoint.full_name() == name) else {
        return Ok(Err(format!("the program does not have the tracepoint {name}")));
    };
    let locations = tracepoint.locations.iter().map(|location| {
        let what = format!("{name} at {:#x}", location.address);
        if location.arguments.len() != FETCHED.len() {
            return Err(format!("{what} has {} arguments, not {}", location.arguments.len(), FETCHED.len()));
        }
        let offset = location.offset.ok_or_else(|| format!("{what} is in no executable segment"))?;
        let semaphore = match location.semaphore {
            None => None,
            Some(semaphore) => {
                Some(semaphore.offset.ok_or_else(|| format!("the semaphore of {what} is in no writable segment"))?)
            }
        };
        let arguments = location.arguments.iter().cloned().zip(FETCHED).chain([stack_pointer()]).collect();
        Ok(Location { offset, semaphore, arguments })
    });
    Ok(locations.collect())
}

/// The stack pointer as an argument: by it an exit is matched with its entry.
fn stack_pointer() -> (Argument, Fetch) {
    let argument = Argument {
        raw: "8@%rsp".to_owned(),
        shape: Some(Shape { size: 8, class: Class::Unsigned }),
        operand: Ok(Operand::Register { register: Register::Rsp, shift: 0 }),
    };
    (argument, Fetch::Value)
}
