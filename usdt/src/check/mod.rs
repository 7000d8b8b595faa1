//! Comparison of an image with a contract, and the choice of the contract.

mod documented;
mod problem;

use std::{cmp::Reverse, collections::BTreeSet};

use crate::{
    argument::Shape,
    contract::{ArgumentContract, Contract, TracepointContract, Variant},
    image::{Image, Location, Tracepoint},
};
pub use problem::{Finding, Problem};

/// The contract that fits an image best.
#[derive(Clone, Debug)]
pub struct Match<'a> {
    /// The contract.
    pub contract: &'a Contract,
    /// Those that fit equally well, such as other releases with the same tracepoints.
    pub others: Vec<&'a Contract>,
    /// Number of tracepoints that both have.
    pub common: usize,
    /// Number of tracepoints that only one of them has.
    pub absent: usize,
}

impl Match<'_> {
    /// Whether the image and the contract have more tracepoints in common than not.
    #[must_use]
    pub fn is_likely(&self) -> bool {
        self.common > self.absent
    }
}

/// Finds the contract that fits best: by the names of the tracepoints, then by the file name of the program, then by the
/// number of problems. Of several, the last one. `None` if no contract has a tracepoint of the image.
#[must_use]
pub fn best_match<'a>(
    contracts: impl IntoIterator<Item = &'a Contract>,
    image: &Image,
    program: Option<&str>,
) -> Option<Match<'a>> {
    let mut scored: Vec<_> = contracts
        .into_iter()
        .filter_map(|contract| {
            let common = image.tracepoints.iter().filter(|tracepoint| of(contract, tracepoint).is_some()).count();
            if common == 0 {
                return None;
            }
            let findings = check(contract, image);
            let is_presence =
                |finding: &&Finding| matches!(finding.problem, Problem::MissingTracepoint | Problem::UnknownTracepoint);
            let absent = findings.iter().filter(is_presence).count();
            let contradictions = findings.iter().filter(|finding| !finding.problem.is_documentation()).count();
            let is_program = program.is_some_and(|program| contract.programs.iter().any(|known| known == program));
            let names = common.cast_signed() - absent.cast_signed();
            let found = Match { contract, others: Vec::new(), common, absent };
            Some(((names, is_program, Reverse(contradictions)), found))
        })
        .collect();
    scored.sort_by_key(|(score, _)| *score);
    let (best, found) = scored.pop()?;
    let equal = scored.into_iter().rev().take_while(|(score, _)| *score == best);
    Some(Match { others: equal.map(|(_, other)| other.contract).collect(), ..found })
}

/// Compares an image with a contract. Tracepoints of providers that the contract does not have are not compared: the image
/// may contain libraries.
#[must_use]
pub fn check(contract: &Contract, image: &Image) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tracepoint in &image.tracepoints {
        match of(contract, tracepoint) {
            Some(expected) => check_tracepoint(contract, expected, tracepoint, &mut findings),
            None if contract.has_provider(&tracepoint.provider) => {
                findings.push(Finding::of(tracepoint, Problem::UnknownTracepoint));
            }
            None => {}
        }
    }
    let present: BTreeSet<(&str, &str)> =
        image.tracepoints.iter().map(|found| (found.provider.as_str(), found.name.as_str())).collect();
    for expected in &contract.tracepoints {
        if !present.contains(&(&expected.provider, &expected.name)) {
            let tracepoint = format!("{}:{}", expected.provider, expected.name);
            findings.push(Finding { tracepoint, location: None, problem: Problem::MissingTracepoint });
        }
    }
    findings
}

fn of<'a>(contract: &'a Contract, tracepoint: &Tracepoint) -> Option<&'a TracepointContract> {
    contract.tracepoint(&tracepoint.provider, &tracepoint.name)
}

/// The meaning of the arguments of a location: those of the contract, of a variant or of the documentation that fit it. If
/// none fits, those of the contract if their number is right.
#[must_use]
pub fn meaning<'a>(expected: &'a TracepointContract, location: &Location) -> Option<&'a [ArgumentContract]> {
    match fit(expected, location) {
        Fit::Code => Some(&expected.arguments),
        Fit::Variant(variant) => Some(&variant.arguments),
        Fit::Documentation(documented) => Some(documented),
        Fit::None => (expected.arguments.len() == location.arguments.len()).then_some(&expected.arguments),
    }
}

/// What the arguments of a location agree with.
enum Fit<'a> {
    Code,
    Variant(&'a Variant),
    Documentation(&'a [ArgumentContract]),
    None,
}

fn fit<'a>(expected: &'a TracepointContract, location: &Location) -> Fit<'a> {
    let fits = |arguments: &[ArgumentContract]| contradictions(arguments, location).is_empty();
    if fits(&expected.arguments) {
        return Fit::Code;
    }
    if let Some(variant) = expected.variants.iter().find(|variant| fits(&variant.arguments)) {
        return Fit::Variant(variant);
    }
    match &expected.documented {
        Some(documented) if fits(documented) => Fit::Documentation(documented),
        _ => Fit::None,
    }
}

fn check_tracepoint(
    contract: &Contract,
    expected: &TracepointContract,
    tracepoint: &Tracepoint,
    findings: &mut Vec<Finding>,
) {
    for location in &tracepoint.locations {
        let at = |problem| Finding { location: Some(location.address), ..Finding::of(tracepoint, problem) };
        findings.extend(check_location(contract, expected, location).into_iter().map(at));
    }
    let is_as_documented = |location| matches!(fit(expected, location), Fit::Documentation(_));
    if let Some(documented) = &expected.documented
        && !tracepoint.locations.iter().all(is_as_documented)
    {
        let differences = documented::differences(&expected.arguments, documented);
        findings.extend(differences.into_iter().map(|problem| Finding::of(tracepoint, problem)));
    }
}

/// Compares one location with its tracepoint in the contract.
#[must_use]
pub fn check_location(contract: &Contract, expected: &TracepointContract, location: &Location) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(semaphore) = contract.semaphores
        && semaphore != location.semaphore.is_some()
    {
        problems.push(Problem::Semaphore { expected: semaphore });
    }
    match fit(expected, location) {
        Fit::Code => {}
        Fit::Variant(variant) => problems.push(Problem::Variant { note: variant.note.clone() }),
        Fit::Documentation(_) => problems.push(Problem::AsDocumented),
        Fit::None => problems.extend(contradictions(&expected.arguments, location)),
    }
    let unreadable = (1..).zip(&location.arguments).filter_map(|(argument, found)| {
        let cause = found.operand.as_ref().err()?.clone();
        Some(Problem::Unreadable { argument, cause })
    });
    problems.extend(unreadable);
    problems
}

/// What the note of a location says otherwise than these arguments. Unknown sizes contradict nothing.
fn contradictions(expected: &[ArgumentContract], location: &Location) -> Vec<Problem> {
    let found: Vec<Option<Shape>> = location.arguments.iter().map(|argument| argument.shape).collect();
    if found.len() != expected.len() {
        return vec![Problem::Count { expected: expected.len(), found: found.len() }];
    }
    let pairs = (1..).zip(expected).zip(&found);
    let differing: Vec<(usize, &ArgumentContract, Shape)> = pairs
        .filter_map(|((argument, expected), found)| Some((argument, expected, (*found)?)))
        .filter(|(_, expected, found)| expected.kind.shape() != *found)
        .collect();
    let mut wanted: Vec<Shape> = differing.iter().map(|(_, expected, _)| expected.kind.shape()).collect();
    let mut passed: Vec<Shape> = differing.iter().map(|(_, _, found)| *found).collect();
    wanted.sort_unstable();
    passed.sort_unstable();
    if differing.len() > 1 && wanted == passed {
        return vec![Problem::Order { arguments: differing.iter().map(|(argument, ..)| *argument).collect() }];
    }
    let problem = |(argument, expected, found): (usize, &ArgumentContract, Shape)| Problem::Shape {
        argument,
        name: expected.name.clone(),
        expected: expected.kind,
        found,
    };
    differing.into_iter().map(problem).collect()
}
