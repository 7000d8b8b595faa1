//! Options of timing functions.

use std::{collections::BTreeSet, time::Duration};

use chainscope_functions::{Pattern, ReadySet, built_in};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    TraceError,
    observe::{read_duration, write_duration},
};

/// Latency of functions of the executable: how long they take, by block of time. Shared by `chainscope.toml` and `NodeTrace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The functions that are timed. Together they may be at most 100.
    #[schemars(schema_with = "functions")]
    pub functions: Vec<TimedFunction>,
    /// Length of a block, the unit of comparisons, from "1s" to "1h".
    #[serde(default = "half_a_minute", deserialize_with = "read_duration", serialize_with = "write_duration")]
    #[schemars(with = "String", length(max = 16), regex(pattern = "^([1-9][0-9]{0,4}[smh])+$"), extend("default" = "30s"))]
    pub block: Duration,
    /// Tags of the runs, such as the name of a release, by which runs are selected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tags")]
    pub tags: Vec<String>,
    /// Commit that the executable was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub commit: Option<String>,
    /// Version of the executable, which runs show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
}

/// Functions that are timed: one of `function`, `span` and `set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimedFunction {
    /// Pattern of the names of functions whose calls are timed, with * and ?: "Payment::doApply", "cache_*".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub function: Option<String>,
    /// ENTRY..EXIT, two patterns: from the entry of a function to the exit of another one in the same thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 4, max = 514))]
    pub span: Option<String>,
    /// Name of a ready set of functions, such as "rippled".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub set: Option<String>,
    /// Whether return codes are counted.
    #[serde(default)]
    pub returns: bool,
}

/// A span that the options ask for.
#[derive(Debug, Clone)]
pub struct TimedSpan {
    /// Its name in reports; `None`: that of the function.
    pub name: Option<String>,
    /// The functions at whose entry it starts.
    pub entry: Pattern,
    /// The functions at whose exit it ends; `None`: the calls of the functions of the entry.
    pub exit: Option<Pattern>,
    /// Whether return codes are counted.
    pub returns: bool,
}

/// Transactions that are recorded one by one, of a set.
#[derive(Debug, Clone)]
pub struct TimedTransactions {
    /// Their name in reports.
    pub name: String,
    /// The functions at whose entry one starts.
    pub entry: Pattern,
    /// The tracepoint at which one ends, as `provider:name`.
    pub tracepoint: String,
}

/// Most entries of the list of functions.
const MAX_ENTRIES: usize = 32;
/// Longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 256;
/// Most tags, and the longest tag or commit in bytes.
const MAX_TAGS: usize = 16;
const MAX_LABEL_BYTES: usize = 128;
/// Shortest and longest block.
const BLOCK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

impl Latency {
    /// Times the functions of these patterns, with defaults otherwise.
    #[must_use]
    pub fn of<T: Into<String>>(functions: impl IntoIterator<Item = T>) -> Self {
        let entry = |pattern: T| TimedFunction { function: Some(pattern.into()), ..TimedFunction::default() };
        let functions = functions.into_iter().map(entry).collect();
        Self { functions, block: half_a_minute(), tags: Vec::new(), commit: None, version: None }
    }

    /// Checks that the options can be used.
    ///
    /// # Errors
    /// A [`TraceError`] that names the option.
    pub fn validate(&self) -> Result<(), TraceError> {
        if self.functions.is_empty() {
            return Err(TraceError::NoFunctions);
        }
        for (key, count, most) in
            [("latency.functions", self.functions.len(), MAX_ENTRIES), ("latency.tags", self.tags.len(), MAX_TAGS)]
        {
            if count > most {
                return Err(invalid(key, &count.to_string(), format!("at most {most} items can be used")));
            }
        }
        if !(BLOCK.0..=BLOCK.1).contains(&self.block) {
            let text = humantime::format_duration(self.block).to_string();
            return Err(invalid("latency.block", &text, "not from 1s to 1h".to_owned()));
        }
        let tags = self.tags.iter().map(|tag| ("latency.tags", tag));
        let commit = self.commit.iter().map(|commit| ("latency.commit", commit));
        let version = self.version.iter().map(|version| ("latency.version", version));
        for (key, text) in tags.chain(commit).chain(version) {
            if text.trim().is_empty() || text.len() > MAX_LABEL_BYTES || text.chars().any(char::is_control) {
                let cause = format!("not from 1 to {MAX_LABEL_BYTES} bytes of text without control characters");
                return Err(invalid(key, text, cause));
            }
        }
        self.spans().map(drop)
    }

    /// What is timed.
    ///
    /// # Errors
    /// A [`TraceError`] that names the entry.
    pub fn spans(&self) -> Result<Vec<TimedSpan>, TraceError> {
        let mut spans = Vec::new();
        for (index, entry) in self.functions.iter().enumerate() {
            let key = |what: &str| format!("latency.functions[{index}].{what}");
            let TimedFunction { function, span, set, returns } = entry;
            match (function, span, set) {
                (Some(function), None, None) => {
                    let entry = pattern(&key("function"), function)?;
                    spans.push(TimedSpan { name: None, entry, exit: None, returns: *returns });
                }
                (None, Some(span), None) => {
                    let key = key("span");
                    let (entry, exit) =
                        span.split_once("..").ok_or_else(|| invalid(&key, span, "not ENTRY..EXIT".to_owned()))?;
                    let (entry, exit) = (pattern(&key, entry)?, Some(pattern(&key, exit)?));
                    spans.push(TimedSpan { name: None, entry, exit, returns: *returns });
                }
                (None, None, Some(set)) => spans.extend(spans_of(&key("set"), set, *returns)?),
                _ => return Err(TraceError::FunctionForm(index)),
            }
        }
        Ok(spans)
    }

    /// The transactions that are recorded one by one: those of the first set that has some.
    ///
    /// # Errors
    /// A [`TraceError`] that names the entry.
    pub fn transactions(&self) -> Result<Option<TimedTransactions>, TraceError> {
        for (index, entry) in self.functions.iter().enumerate() {
            let Some(name) = &entry.set else { continue };
            let key = format!("latency.functions[{index}].set");
            if let Some(transactions) = ready_set(&key, name)?.transactions {
                let (name, tracepoint) = (transactions.name, transactions.tracepoint);
                return Ok(Some(TimedTransactions { name, entry: pattern(&key, &transactions.entry)?, tracepoint }));
            }
        }
        Ok(None)
    }

    /// The tags, without blanks around them.
    #[must_use]
    pub fn tags(&self) -> BTreeSet<String> {
        self.tags.iter().map(|tag| tag.trim().to_owned()).collect()
    }
}

fn ready_set(key: &str, name: &str) -> Result<ReadySet, TraceError> {
    let sets = built_in().map_err(|cause| invalid(key, name, cause.to_string()))?;
    let known: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
    let unknown = || invalid(key, name, format!("not one of the sets {}", known.join(", ")));
    sets.iter().find(|set| set.name == name).cloned().ok_or_else(unknown)
}

fn spans_of(key: &str, name: &str, returns: bool) -> Result<Vec<TimedSpan>, TraceError> {
    let span = |span: &chainscope_functions::ReadySpan| {
        let exit = span.exit.as_deref().map(|exit| pattern(key, exit)).transpose()?;
        let (name, entry) = (Some(span.name.clone()), pattern(key, &span.entry)?);
        Ok(TimedSpan { name, entry, exit, returns: returns || span.returns })
    };
    ready_set(key, name)?.spans.iter().map(span).collect()
}

fn pattern(key: &str, text: &str) -> Result<Pattern, TraceError> {
    if text.len() > MAX_PATTERN_BYTES {
        return Err(invalid(key, text, format!("longer than {MAX_PATTERN_BYTES} bytes")));
    }
    text.parse().map_err(|cause| invalid(key, text, cause))
}

fn invalid(key: &str, text: &str, cause: String) -> TraceError {
    let text = text.chars().take(2 * MAX_PATTERN_BYTES).collect();
    TraceError::Invalid { key: key.to_owned(), text, cause }
}

/// Bounds for a resource, which anyone in its namespace may write.
fn functions(generator: &mut SchemaGenerator) -> Schema {
    let function = generator.subschema_for::<TimedFunction>();
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 32, "items": function, "x-kubernetes-list-type": "atomic",
    })
}

fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": { "type": "string", "minLength": 1, "maxLength": 128 },
        "x-kubernetes-list-type": "atomic",
    })
}

fn half_a_minute() -> Duration {
    Duration::from_secs(30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: Option<&str>, span: Option<&str>, set: Option<&str>) -> TimedFunction {
        let text = |text: Option<&str>| text.map(str::to_owned);
        TimedFunction { function: text(function), span: text(span), set: text(set), returns: false }
    }

    #[test]
    fn entries_are_functions_spans_and_sets() {
        let functions =
            vec![entry(Some("a*"), None, None), entry(None, Some("b..c::d"), None), entry(None, None, Some("rippled"))];
        let latency = Latency { functions, ..Latency::of::<&str>([]) };
        latency.validate().unwrap();
        let spans = latency.spans().unwrap();
        assert_eq!((spans[0].entry.to_string(), spans[0].exit.is_none()), ("a*".to_owned(), true));
        assert_eq!(spans[1].exit.as_ref().map(ToString::to_string), Some("c::d".to_owned()));
        assert!(spans.len() > 3 && spans[2].name.is_some(), "{spans:?}");
        let transactions = latency.transactions().unwrap().unwrap();
        assert_eq!(transactions.tracepoint, "transactor:transactor_exit");
        assert!(Latency::of(["a"]).transactions().unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let of = |entry| Latency { functions: vec![entry], ..Latency::of::<&str>([]) };
        let long = "x".repeat(257);
        for (latency, says) in [
            (Latency::of::<&str>([]), "latency.functions is empty"),
            (Latency::of(vec!["a"; 33]), "latency.functions: \"33\": at most 32"),
            (of(entry(None, None, None)), "latency.functions[0]: needs one of function, span and set"),
            (of(entry(Some("a"), Some("a..b"), None)), "latency.functions[0]: needs one of"),
            (of(entry(Some("::"), None, None)), "latency.functions[0].function: \"::\": no name of a function"),
            (of(entry(Some(&long), None, None)), "longer than 256 bytes"),
            (of(entry(None, Some("a.b"), None)), "latency.functions[0].span: \"a.b\": not ENTRY..EXIT"),
            (of(entry(None, Some("a.."), None)), "latency.functions[0].span: \"\": no name of a function"),
            (of(entry(None, None, Some("x"))), "latency.functions[0].set: \"x\": not one of the sets rippled"),
            (Latency { block: Duration::ZERO, ..Latency::of(["a"]) }, "latency.block: \"0s\": not from 1s to 1h"),
            (Latency { tags: vec![" ".to_owned()], ..Latency::of(["a"]) }, "latency.tags: \" \": not from 1 to 128"),
            (Latency { commit: Some("\n".to_owned()), ..Latency::of(["a"]) }, "latency.commit: \"\\n\": not from"),
            (Latency { version: Some(String::new()), ..Latency::of(["a"]) }, "latency.version: \"\": not from"),
        ] {
            let error = latency.validate().unwrap_err().to_string();
            assert!(error.starts_with(says) || error.contains(": longer"), "{error}");
        }
    }
}
