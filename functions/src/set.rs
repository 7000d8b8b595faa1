//! Ready sets of spans for known programs, as data.

use serde::Deserialize;

/// The sets of this crate.
const BUILT_IN: [&str; 1] = [include_str!("../sets/rippled.toml")];

/// Spans of a program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadySet {
    /// Its name.
    pub name: String,
    /// What it times.
    pub description: String,
    /// The spans.
    pub spans: Vec<ReadySpan>,
    /// Transactions that are recorded one by one.
    #[serde(default)]
    pub transactions: Option<ReadyTransactions>,
}

/// A span of a set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadySpan {
    /// Its name in reports.
    pub name: String,
    /// Pattern of the functions at whose entry it starts.
    pub entry: String,
    /// Pattern of the functions at whose exit it ends; absent: those of the entry.
    #[serde(default)]
    pub exit: Option<String>,
    /// Whether return codes are counted.
    #[serde(default)]
    pub returns: bool,
}

/// Transactions of a set: from the entry of a function to a tracepoint. The arguments of the tracepoint are pointers: to the id, 32 bytes,
/// to the type and to the result, 4 bytes each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyTransactions {
    /// Their name in reports.
    pub name: String,
    /// Pattern of the functions at whose entry one starts.
    pub entry: String,
    /// Tracepoint at which it ends, as `provider:name`.
    pub tracepoint: String,
}

/// The sets of this crate.
///
/// # Errors
/// Never: a test reads them.
pub fn built_in() -> Result<Vec<ReadySet>, toml::de::Error> {
    BUILT_IN.iter().map(|text| toml::from_str(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    #[test]
    fn sets_match_old_and_new_namespaces() {
        let sets = built_in().unwrap();
        let patterns = sets[0].spans.iter().flat_map(|span| [Some(&span.entry), span.exit.as_ref()]).flatten();
        let patterns: Vec<Pattern> = patterns.map(|text| text.parse().unwrap()).collect();
        // The names that the sample of rippled attaches to.
        for symbol in [
            "_ZN6ripple10TransactorclEv",
            "_ZN6ripple7Payment9preflightERKNS_16PreflightContextE",
            "_ZN6ripple7Payment7doApplyEv",
            "_ZN6ripple11CreateOffer9preflightERKNS_16PreflightContextE",
            "_ZN6ripple11CreateOffer7doApplyEv",
        ] {
            for symbol in [symbol.to_owned(), symbol.replace("6ripple", "4xrpl")] {
                assert_eq!(patterns.iter().filter(|pattern| pattern.matches(&symbol)).count(), 1, "{symbol}");
            }
        }
    }
}
