//! Differences between what the code of a node passes and what its documentation says.

use std::collections::BTreeSet;

use super::Problem;
use crate::contract::ArgumentContract;

/// Compares by name: number, arguments that only one side has, order, type and unit.
pub(super) fn differences(passed: &[ArgumentContract], documented: &[ArgumentContract]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if passed.len() != documented.len() {
        problems.push(Problem::DocumentedCount { documented: documented.len(), passed: passed.len() });
    }
    let names = |arguments: &[ArgumentContract]| -> BTreeSet<String> {
        arguments.iter().map(|argument| argument.name.clone()).collect()
    };
    let (passed_names, documented_names) = (names(passed), names(documented));
    for (argument, one) in (1..).zip(passed).filter(|(_, one)| !documented_names.contains(&one.name)) {
        problems.push(Problem::NotDocumented { argument, name: one.name.clone() });
    }
    for (argument, one) in (1..).zip(documented).filter(|(_, one)| !passed_names.contains(&one.name)) {
        problems.push(Problem::NotPassed { argument, name: one.name.clone() });
    }
    // The order is that of the arguments that both sides have: one that is left out does not move the others.
    let in_both = |arguments: &[ArgumentContract], other: &BTreeSet<String>| -> Vec<(usize, ArgumentContract)> {
        (1..).zip(arguments).filter(|(_, one)| other.contains(&one.name)).map(|(at, one)| (at, one.clone())).collect()
    };
    let documented = in_both(documented, &passed_names);
    for (rank, (at, one)) in in_both(passed, &documented_names).into_iter().enumerate() {
        let Some(other_rank) = documented.iter().position(|(_, other)| other.name == one.name) else { continue };
        let (other_at, other) = &documented[other_rank];
        if other_rank != rank && *other_at != at {
            let name = one.name.clone();
            problems.push(Problem::DocumentedOrder { name, documented: *other_at, passed: at });
        }
        if other.kind.to_string() != one.kind.to_string() {
            let name = one.name.clone();
            problems.push(Problem::DocumentedKind { argument: at, name, documented: other.kind, passed: one.kind });
        }
        if other.unit != one.unit {
            let unit = |unit: &Option<String>| unit.clone().unwrap_or_else(|| "none".to_owned());
            let (documented, passed) = (unit(&other.unit), unit(&one.unit));
            problems.push(Problem::DocumentedUnit { argument: at, name: one.name, documented, passed });
        }
    }
    problems
}
