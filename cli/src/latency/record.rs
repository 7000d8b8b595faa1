//! `chainscope latency record`: times functions of running programs and appends their runs to the file of runs.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use chainscope_agent::latency::{
    Exits, FindError, Hazard, Pattern, Plan, ProcessState, Program, RecordError, RecordOptions, Recorder, Skipped,
    SpanRequest, TransactionRequest, ready_sets,
};
use chainscope_hygiene::{Escaped, escaped_path};
use chainscope_latency::{Block, RunId, database::Database};

use crate::{
    args::{ProbedExits, RecordArgs, RecordedProcess},
    failure::{self, Failure},
    progress::Progress,
    signals::stop_flag,
    terminal,
};

/// How often signals and the process are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(db: &Path, args: &RecordArgs) -> anyhow::Result<()> {
    let requested = RequestedSpans::read(args)?;
    let mut planned = Vec::new();
    let processes: Vec<Option<&RecordedProcess>> =
        if args.pid.is_empty() { vec![None] } else { args.pid.iter().map(Some).collect() };
    for process in processes {
        let mut options = options(args);
        options.tags.extend(process.and_then(|process| process.tag.clone()));
        let pid = process.map(|process| process.pid);
        let plan = Progress::during("reading symbols", || plan(pid, args.exe.as_deref(), &requested, &options));
        let plan = plan.map_err(advise)?;
        show(&plan);
        planned.push((plan, options));
    }
    if args.plan {
        return Ok(());
    }
    record(db, args, &planned)
}

/// Reads the symbols of a program, and chooses what is timed.
fn plan(
    pid: Option<u32>,
    exe: Option<&Path>,
    requested: &RequestedSpans,
    options: &RecordOptions,
) -> Result<Plan, RecordError> {
    let mut plan = Plan::new(Program::open(pid, exe)?, &requested.spans, options)?;
    if let Some(transactions) = &requested.transactions {
        plan = plan.with_transactions(transactions, options)?;
    }
    plan.note_inlined();
    Ok(plan)
}

fn options(args: &RecordArgs) -> RecordOptions {
    RecordOptions {
        exits: match args.exits {
            ProbedExits::Auto => Exits::Automatic,
            ProbedExits::Return => Exits::Returns,
            ProbedExits::Instruction => Exits::Instructions,
        },
        max_functions: args.max_functions,
        block: Duration::from_secs(args.timeslice),
        commit: args.commit.clone(),
        tags: args.tags.iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect::<BTreeSet<_>>(),
    }
}

/// The spans and transactions that the options select.
struct RequestedSpans {
    spans: Vec<SpanRequest>,
    transactions: Option<TransactionRequest>,
}

impl RequestedSpans {
    fn read(args: &RecordArgs) -> anyhow::Result<Self> {
        let request = |entry: &str, exit: Option<&str>, counts_returns: bool| {
            let (entry, exit) = (pattern(entry)?, exit.map(pattern).transpose()?);
            anyhow::Ok(SpanRequest { name: None, entry, exit, counts_returns, is_optional: false })
        };
        let (mut spans, mut transactions) = (Vec::new(), None);
        for function in &args.function {
            spans.push(request(function, None, args.returns)?);
        }
        for span in &args.span {
            let (entry, exit) =
                span.split_once("..").ok_or_else(|| Failure::refused(format!("{span}: not ENTRY..EXIT")))?;
            spans.push(request(entry, Some(exit), args.returns)?);
        }
        let default = if spans.is_empty() && args.set.is_empty() { vec!["rippled".to_owned()] } else { Vec::new() };
        let sets = ready_sets().context("the ready sets")?;
        for name in args.set.iter().chain(&default) {
            let known: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
            let set = sets.iter().find(|set| set.name == *name);
            let set = set.ok_or_else(|| Failure::refused(format!("no set {name}: there is {}", known.join(", "))))?;
            for span in &set.spans {
                // Programs have not all of a set.
                let request = request(&span.entry, span.exit.as_deref(), span.returns)?;
                spans.push(SpanRequest { name: Some(span.name.clone()), is_optional: true, ..request });
            }
            if let Some(set) = &set.transactions {
                let (name, tracepoint) = (set.name.clone(), set.tracepoint.clone());
                transactions = Some(TransactionRequest { name, entry: pattern(&set.entry)?, tracepoint });
            }
        }
        Ok(Self { spans, transactions })
    }
}

fn pattern(text: &str) -> Result<Pattern, Failure> {
    text.parse().map_err(|error| Failure::refused(format!("{text}: {error}")))
}

/// An error of the plan or of the probe, with what to do about it.
fn advise(error: RecordError) -> anyhow::Error {
    match &error {
        RecordError::Find(FindError::TooMany { count, .. }) => {
            let hint = format!("to time all of them: --max-functions {count}");
            Failure::refused(error.to_string()).hint(hint).into()
        }
        RecordError::OcamlReturns(_) => Failure::refused(error.to_string()).hint("leave out --exits return").into(),
        RecordError::File { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
            Failure::not_permitted(error.to_string()).into()
        }
        _ => failure::of_probe(error),
    }
}

/// What a return probe may do to the process.
fn danger(hazard: Hazard) -> &'static str {
    match hazard {
        Hazard::Unexamined => {
            "if its processes have exceptions or coroutines, one that leaves a timed function will end them"
        }
        Hazard::Coroutines => {
            "the program switches stacks (coroutines, signals); that in a timed function will end the process"
        }
        _ => "the program has exceptions; one that leaves a timed function will end the process",
    }
}

/// Says what is timed, what that costs, and what is left out.
fn show(plan: &Plan) {
    let exits = if plan.has_return_probes { "return probes" } else { "instructions" };
    let path = escaped_path(plan.program.path());
    terminal::note(&format!("{} functions of {path}; exits by {exits}", plan.functions.len()));
    if let Some(hazard) = plan.hazard.filter(|_| plan.has_return_probes) {
        terminal::note(&format!("warning: {}", danger(hazard)));
    }
    for note in &plan.notes {
        terminal::note(&format!("  {note}"));
    }
    for function in &plan.functions {
        let cost = function.cost.as_nanos() as f64 / 1000.0;
        let notes: String = function.notes.iter().map(|note| format!("; {note}")).collect();
        let name = Escaped(&function.timed.name);
        terminal::note(&format!("  {name}: about {cost:.1} µs a call ({}){notes}", function.probes));
    }
    if let Some(transactions) = &plan.transactions {
        let cost = transactions.cost.as_nanos() as f64 / 1000.0;
        let name = Escaped(&transactions.timed.name);
        terminal::note(&format!("  {name} one by one: about {cost:.1} µs each ({})", transactions.probes));
    }
    show_skipped(&plan.skipped);
}

fn show_skipped(skipped: &[Skipped]) {
    for skipped in skipped {
        let (function, reason) = (Escaped(&skipped.function), Escaped(&skipped.reason));
        terminal::note(&format!("  {function} is not timed: {reason}"));
    }
}

/// Attaches, and shows on a terminal how far that is.
fn attach(plan: &Plan, options: &RecordOptions) -> Result<Recorder, RecordError> {
    let recorder = Recorder::attach_with(plan, options, &mut |done, total| {
        terminal::progress(&format!("attaching to functions: {done} of {total}"));
    });
    terminal::progress("");
    let recorder = recorder?;
    show_skipped(recorder.skipped());
    Ok(recorder)
}

fn record(db: &Path, args: &RecordArgs, planned: &[(Plan, RecordOptions)]) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let mut database = Database::create_or_open(db)?;
    // All are attached before a run is begun in the file.
    let attached = planned.iter().map(|(plan, options)| attach(plan, options));
    let attached = attached.collect::<Result<Vec<_>, _>>().map_err(advise)?.into_iter();
    let mut recordings =
        attached.map(|recorder| Recording::begin(&mut database, recorder)).collect::<anyhow::Result<Vec<_>>>()?;
    let block = Duration::from_secs(args.timeslice);
    let limit = u64::try_from(args.duration).ok().map(Duration::from_secs);
    let (start, mut next) = (Instant::now(), block);
    while !recordings.is_empty() {
        std::thread::park_timeout(POLL_INTERVAL);
        let has_ended = stop.load(Ordering::Relaxed) || limit.is_some_and(|limit| start.elapsed() >= limit);
        // All at the same time: blocks of the same moment are pairs of a comparison.
        let is_sampled = !has_ended && start.elapsed() >= next;
        if is_sampled {
            next += block;
        }
        let mut going_on = Vec::new();
        for mut recording in recordings {
            if recording.has_ended() || has_ended {
                recording.end(&mut database, db)?;
                continue;
            }
            recording.recorder.poll()?;
            if is_sampled {
                recording.sample(&mut database)?;
            }
            going_on.push(recording);
        }
        recordings = going_on;
    }
    Ok(())
}

/// A run that is being recorded.
struct Recording {
    recorder: Recorder,
    run: RunId,
    functions: usize,
    spans: u64,
    is_replaced: bool,
}

impl Recording {
    fn begin(database: &mut Database, recorder: Recorder) -> anyhow::Result<Self> {
        let (run, functions) = (recorder.info().id, recorder.functions().len());
        database.begin_run(recorder.info(), recorder.functions())?;
        terminal::note(&format!("recording run {run}"));
        Ok(Self { recorder, run, functions, spans: 0, is_replaced: false })
    }

    /// Whether the process has ended; says what became of it.
    fn has_ended(&mut self) -> bool {
        let state = self.recorder.state();
        if state == ProcessState::Replaced && !self.is_replaced {
            self.is_replaced = true;
            let pid = self.recorder.info().pid;
            terminal::note(&format!(
                "process {pid}: its executable was replaced; what runs now is recorded until it ends"
            ));
        }
        let what = match state {
            ProcessState::Running | ProcessState::Replaced => return false,
            ProcessState::Ended => "ended",
            ProcessState::Executed => "executed another program",
        };
        terminal::note(&format!("process {} has {what}", self.recorder.info().pid));
        true
    }

    fn sample(&mut self, database: &mut Database) -> anyhow::Result<()> {
        let blocks = self.recorder.sample()?;
        database.append(self.run, &blocks, &self.recorder.take_transactions())?;
        self.spans += count(&blocks);
        Ok(())
    }

    fn end(mut self, database: &mut Database, db: &Path) -> anyhow::Result<()> {
        self.recorder.stop()?;
        let transactions = self.recorder.take_transactions();
        let (info, blocks) = self.recorder.finish()?;
        database.append(self.run, &blocks, &transactions)?;
        if let Some(end) = info.end {
            database.end_run(self.run, end)?;
        }
        let spans = self.spans + count(&blocks);
        terminal::note(&format!("run {}: {spans} spans of {} functions in {}", self.run, self.functions, db.display()));
        Ok(())
    }
}

/// The number of spans of blocks.
fn count(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.histogram.count()).sum()
}
