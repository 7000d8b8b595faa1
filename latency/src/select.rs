//! Selection of runs.

use std::collections::BTreeSet;

use crate::RunInfo;

/// Names that an error proposes.
const MAX_KNOWN: usize = 20;

/// The runs that a user means: all with this tag; else all whose commit, or the one whose id, starts with it. `latest` is the last run.
///
/// # Errors
/// There is none: tags and ids that are known.
pub fn select(runs: &[RunInfo], selector: &str) -> Result<Vec<RunInfo>, Vec<String>> {
    if selector == "latest"
        && let Some(last) = runs.last()
    {
        return Ok(vec![last.clone()]);
    }
    let starts = |text: &str| !selector.is_empty() && text.starts_with(selector);
    let by: [&dyn Fn(&RunInfo) -> bool; 3] =
        [&|run| run.tags.contains(selector), &|run| run.commit.as_deref().is_some_and(starts), &|run| {
            starts(&run.id.to_string())
        }];
    let found = by.iter().map(|matches| runs.iter().filter(|run| matches(run)).cloned().collect::<Vec<_>>());
    found.into_iter().find(|found| !found.is_empty()).ok_or_else(|| {
        let tags: BTreeSet<String> = runs.iter().flat_map(|run| run.tags.clone()).collect();
        tags.into_iter().chain(runs.iter().map(|run| run.id.to_string())).take(MAX_KNOWN).collect()
    })
}
