//! Options of recording events of tracepoints.

use std::path::Path;

use bytesize::ByteSize;
use chainscope_usdt::{Comparison, Contract, Pattern, built_in};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Latency, Retention, observe::BYTES};

/// Events of static tracepoints (USDT) of the node, which may be any program: shared by `chainscope.toml` and the resources
/// of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Whether events are recorded.
    #[serde(default = "crate::default_true")]
    pub enabled: bool,
    /// Which events are recorded: those that any of the rules selects. May be missing if functions are timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules")]
    pub rules: Vec<TraceRule>,
    /// Maximum size of a text argument, such as "1KiB"; longer ones are cut and marked. Defaults to 1 KiB.
    #[serde(default = "one_kibibyte")]
    #[schemars(with = "String", length(max = 32), regex(pattern = BYTES), extend("default" = "1KiB"))]
    pub max_text: ByteSize,
    /// Maximum size of a payload, such as "4MiB"; longer ones are cut and marked. Defaults to 1 KiB, as much as the analysis of
    /// block relay reads of a message.
    #[serde(default = "one_kibibyte")]
    #[schemars(with = "String", length(max = 32), regex(pattern = BYTES), extend("default" = "1KiB"))]
    pub max_payload: ByteSize,
    /// Contract that describes the arguments: the name of a built-in one, such as "bitcoin-core" or "tapyrus". In a file also
    /// the absolute path of a contract. Defaults to the built-in contract that fits best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 64), regex(pattern = "^[a-z0-9][a-z0-9._-]*$"))]
    pub contract: Option<String>,
    /// Which functions are timed, and how the runs are called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Retention of the events, and of the latency of functions; the first limit that is reached applies. Defaults to 5 GiB; an
    /// empty object means no limit.
    #[serde(default = "five_gibibytes")]
    #[schemars(extend("default" = { "bytes": "5GiB" }))]
    pub retention: Retention,
}

/// Selects tracepoints by name, and their events by what they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRule {
    /// Tracepoints as PROVIDER:NAME, with * and ?: "net:*", "validation:block_connected".
    #[schemars(schema_with = "tracepoints")]
    pub tracepoints: Vec<String>,
    /// Conditions, all of which must hold: NAME=VALUE with = != < <= > >= or ~ (contains). NAME is an argument, or pid, tid, cpu,
    /// comm, tracepoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub filter: Vec<String>,
}

/// Options of tracepoints that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// Nothing is selected.
    #[error("rules is empty: add one, for example {{ tracepoints = [\"net:*\"] }}")]
    NoRules,
    /// More rules, patterns or conditions than [`MAX_ITEMS`].
    #[error("{key}: {count} items, at most {MAX_ITEMS} can be used")]
    TooMany {
        /// Their key.
        key: String,
        /// Their number.
        count: usize,
    },
    /// A rule that selects nothing.
    #[error("rules[{0}].tracepoints is empty")]
    NoTracepoints(usize),
    /// A pattern or a condition.
    #[error("{key}: {text:?}: {cause}")]
    Invalid {
        /// Its key.
        key: String,
        /// The text.
        text: String,
        /// The fault.
        cause: String,
    },
    /// A size out of bounds.
    #[error("{key} must be from 1 to {most} bytes, not {value}")]
    Size {
        /// Its key.
        key: &'static str,
        /// The value.
        value: u64,
        /// The bound.
        most: u64,
    },
    /// A latency without functions.
    #[error("latency.functions is empty")]
    NoFunctions,
    /// An entry that says nothing, or too much.
    #[error("latency.functions[{0}]: needs one of function, span and set")]
    FunctionForm(usize),
    /// Neither the name of a built-in contract nor a path.
    #[error("contract: {text:?} is neither the absolute path of a file nor one of the contracts {known}")]
    Contract {
        /// The text.
        text: String,
        /// Names of the contracts.
        known: String,
    },
}

/// Most rules, and most patterns and conditions of a rule: each is applied to each event.
const MAX_ITEMS: usize = 64;
/// Longest pattern or condition, in bytes.
const MAX_ITEM_BYTES: usize = 512;
/// Largest value of `max_text`.
const MAX_TEXT: u64 = 16 << 10;
/// Largest value of `max_payload`: the largest message of Bitcoin.
const MAX_PAYLOAD: u64 = 4 << 20;

impl Trace {
    /// Records these tracepoints, with defaults otherwise.
    #[must_use]
    pub fn of<T: Into<String>>(tracepoints: impl IntoIterator<Item = T>) -> Self {
        let rule = TraceRule { tracepoints: tracepoints.into_iter().map(Into::into).collect(), filter: Vec::new() };
        Self {
            enabled: true,
            rules: vec![rule],
            max_text: one_kibibyte(),
            max_payload: one_kibibyte(),
            contract: None,
            latency: None,
            retention: five_gibibytes(),
        }
    }

    /// Checks that the options can be used.
    ///
    /// # Errors
    /// A [`TraceError`] that names the option.
    pub fn validate(&self) -> Result<(), TraceError> {
        match &self.latency {
            Some(latency) => latency.validate()?,
            None if self.rules.is_empty() => return Err(TraceError::NoRules),
            None => {}
        }
        check_count("rules", self.rules.len())?;
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.tracepoints.is_empty() {
                return Err(TraceError::NoTracepoints(index));
            }
            check(&format!("rules[{index}].tracepoints"), &rule.tracepoints, |text| text.parse::<Pattern>().err())?;
            check(&format!("rules[{index}].filter"), &rule.filter, |text| text.parse::<Comparison>().err())?;
        }
        let sizes = [("max_text", self.max_text, MAX_TEXT), ("max_payload", self.max_payload, MAX_PAYLOAD)];
        for (key, value, most) in sizes.map(|(key, value, most)| (key, value.as_u64(), most)) {
            if !(1..=most).contains(&value) {
                return Err(TraceError::Size { key, value, most });
            }
        }
        match &self.contract {
            Some(text) if !Path::new(text).is_absolute() && built_in_contracts(text).is_empty() => {
                let names: Vec<String> = built_in().iter().map(Contract::name).collect();
                Err(TraceError::Contract { text: text.clone(), known: names.join(", ") })
            }
            _ => Ok(()),
        }
    }
}

/// The built-in contracts of this name, or of this family.
#[must_use]
pub fn built_in_contracts(name: &str) -> Vec<Contract> {
    let is_named = |contract: &&Contract| contract.family == name || contract.name() == name;
    built_in().iter().filter(is_named).cloned().collect()
}

fn check(key: &str, texts: &[String], fault: impl Fn(&str) -> Option<String>) -> Result<(), TraceError> {
    check_count(key, texts.len())?;
    for text in texts {
        let too_long = || format!("longer than {MAX_ITEM_BYTES} bytes");
        let cause = if text.len() > MAX_ITEM_BYTES { Some(too_long()) } else { fault(text) };
        if let Some(cause) = cause {
            let text = text.chars().take(MAX_ITEM_BYTES).collect();
            return Err(TraceError::Invalid { key: key.to_owned(), text, cause });
        }
    }
    Ok(())
}

fn check_count(key: &str, count: usize) -> Result<(), TraceError> {
    if count > MAX_ITEMS {
        return Err(TraceError::TooMany { key: key.to_owned(), count });
    }
    Ok(())
}

/// Bounds for a resource, which anyone in its namespace may write and each agent of its pods applies.
fn rules(generator: &mut SchemaGenerator) -> Schema {
    let rule = generator.subschema_for::<TraceRule>();
    json_schema!({ "type": "array", "minItems": 1, "maxItems": 16, "items": rule, "x-kubernetes-list-type": "atomic" })
}

fn tracepoints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "items": { "type": "string", "maxLength": 128, "pattern": "^[^:]+:[^:]+$" },
        "x-kubernetes-list-type": "atomic",
    })
}

fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": { "type": "string", "minLength": 2, "maxLength": 256 },
        "x-kubernetes-list-type": "atomic",
    })
}

fn one_kibibyte() -> ByteSize {
    ByteSize::kib(1)
}

fn five_gibibytes() -> Retention {
    Retention { bytes: Some(ByteSize::gib(5)), rows: None, age: None }
}
