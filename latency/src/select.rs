//! Selection of runs.

use std::collections::BTreeSet;

use crate::RunInfo;

/// Names that an error proposes.
const MAX_KNOWN: usize = 20;

/// Which runs; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// One of the tags.
    pub tag: Option<String>,
    /// Name of the node.
    pub node: Option<String>,
    /// Name of the host.
    pub host: Option<String>,
    /// Beginning of the release of the kernel: `6.18` means `6.18.4` as well.
    pub kernel: Option<String>,
}

impl RunFilter {
    /// Whether it selects a run.
    #[must_use]
    pub fn matches(&self, run: &RunInfo) -> bool {
        let is = |wanted: &Option<String>, value: Option<&str>| wanted.is_none() || wanted.as_deref() == value;
        self.tag.as_ref().is_none_or(|tag| run.tags.contains(tag))
            && is(&self.node, run.node.as_deref())
            && is(&self.host, Some(&run.host))
            && self.kernel.as_ref().is_none_or(|kernel| run.kernel.starts_with(kernel.as_str()))
    }

    /// Sets the field that a part of a selector names, as `host=NAME`; false if it names none.
    fn set(&mut self, part: &str) -> bool {
        let Some((key, value)) = part.split_once('=') else { return false };
        let field = match key {
            "node" => &mut self.node,
            "host" => &mut self.host,
            "kernel" => &mut self.kernel,
            _ => return false,
        };
        *field = Some(value.to_owned());
        true
    }

    /// Appends to the value of the field that the part of a selector before this one has set: values may contain the separator.
    fn extend(&mut self, key: &str, part: &str) {
        let field = match key {
            "node" => &mut self.node,
            "host" => &mut self.host,
            _ => &mut self.kernel,
        };
        if let Some(value) = field {
            value.push('/');
            value.push_str(part);
        }
    }
}

/// Splits `2.4/host=NAME/kernel=RELEASE` into what is selected and where. Both may contain `/`.
fn parse(selector: &str) -> (Option<String>, RunFilter) {
    let (mut base, mut filter, mut last) = (None::<String>, RunFilter::default(), None);
    for part in selector.split('/') {
        if filter.set(part) {
            last = part.split_once('=').map(|(key, _)| key.to_owned());
        } else if let Some(key) = &last {
            filter.extend(key, part);
        } else {
            base = Some(base.map_or_else(|| part.to_owned(), |base| format!("{base}/{part}")));
        }
    }
    (base, filter)
}

/// The runs that a user means: all with this tag; else all whose commit, or the one whose id, starts with it. `latest` is the last run.
/// `/node=NAME`, `/host=NAME` and `/kernel=RELEASE` behind it, or alone without the `/`, narrow it.
///
/// # Errors
/// There is none: tags and ids that are known.
pub fn select(runs: &[RunInfo], selector: &str) -> Result<Vec<RunInfo>, Vec<String>> {
    let (base, filter) = parse(selector);
    let narrowed: Vec<&RunInfo> = runs.iter().filter(|run| filter.matches(run)).collect();
    let Some(base) = base else {
        let found: Vec<RunInfo> = narrowed.into_iter().cloned().collect();
        return if found.is_empty() { Err(known(runs)) } else { Ok(found) };
    };
    if base == "latest"
        && let Some(last) = narrowed.last()
    {
        return Ok(vec![(*last).clone()]);
    }
    let starts = |text: &str| !base.is_empty() && text.starts_with(&base);
    let by: [&dyn Fn(&RunInfo) -> bool; 3] =
        [&|run| run.tags.contains(&base), &|run| run.commit.as_deref().is_some_and(starts), &|run| {
            starts(&run.id.to_string())
        }];
    let found = by
        .iter()
        .map(|matches| narrowed.iter().filter(|run| matches(run)).map(|run| (*run).clone()).collect::<Vec<_>>());
    found.into_iter().find(|found| !found.is_empty()).ok_or_else(|| known(runs))
}

fn known(runs: &[RunInfo]) -> Vec<String> {
    let tags: BTreeSet<String> = runs.iter().flat_map(|run| run.tags.clone()).collect();
    tags.into_iter().chain(runs.iter().map(|run| run.id.to_string())).take(MAX_KNOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Resolution, RunId, Time};

    fn run(number: u8, tags: &[&str], (node, host, kernel): (&str, &str, &str)) -> RunInfo {
        RunInfo {
            id: RunId([number; 16]),
            node: Some(node.to_owned()),
            pid: 1,
            executable: String::new(),
            build_id: None,
            version: None,
            commit: Some(format!("c{number}")),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            host: host.to_owned(),
            kernel: kernel.to_owned(),
            start: Time(i64::from(number)),
            end: None,
            block: Duration::from_secs(30),
            resolution: Resolution::LogLinear,
        }
    }

    #[test]
    fn runs_are_selected_by_what_they_are_and_where_they_ran() {
        let runs = [
            run(1, &["release/2.4"], ("ns/a", "x", "6.12.1")),
            run(2, &["release/2.4"], ("ns/a", "y", "6.18.4")),
            run(3, &["main", "host=odd"], ("ns/b", "y", "6.18.5")),
        ];
        let ids = |selector: &str| {
            select(&runs, selector).map(|found| found.iter().map(|run| run.id.0[0]).collect::<Vec<_>>())
        };
        for (selector, expected) in [
            ("release/2.4", vec![1, 2]),
            ("release/2.4/host=y", vec![2]),
            ("host=y", vec![2, 3]),
            ("host=y/kernel=6.18", vec![2, 3]),
            ("kernel=6.18.4", vec![2]),
            ("node=ns/a", vec![1, 2]),
            ("node=ns/a/host=x", vec![1]),
            ("latest", vec![3]),
            ("latest/node=ns/a", vec![2]),
            ("c1", vec![1]),
            ("c1/host=x", vec![1]),
            ("0303/kernel=6.1", vec![3]),
        ] {
            assert_eq!(ids(selector), Ok(expected), "{selector}");
        }
        for none in ["", "2.4", "release/2.4/host=z", "host=", "c1/host=y", "latest/host=z", "version=1"] {
            let known = ids(none).unwrap_err();
            assert_eq!(known[..3], ["host=odd", "main", "release/2.4"], "{none}");
        }
    }
}
