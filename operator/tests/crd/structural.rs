//! Validation by the subset of structural schemas that the resources use, with the API server's messages.

use std::{collections::BTreeMap, fmt};

use regex::Regex;
use serde_json::Value;

/// A violation of the schema, with the path of the field.
#[derive(Debug, PartialEq)]
pub(crate) enum Violation {
    /// A required field is absent.
    Required(String),
    /// A value of the wrong type or outside its bounds.
    Invalid(String),
    /// A value that is not in the enumeration.
    Unsupported(String),
    /// A duplicate item of a set.
    Duplicate(String),
    /// A list or object with too many items.
    TooMany(String),
    /// A field that is not in the schema.
    Unknown(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required(path) => write!(f, "{path}: Required value"),
            Self::Invalid(path) => write!(f, "{path}: Invalid value"),
            Self::Unsupported(path) => write!(f, "{path}: Unsupported value"),
            Self::Duplicate(path) => write!(f, "{path}: Duplicate value"),
            Self::TooMany(path) => write!(f, "{path}: Too many"),
            Self::Unknown(path) => write!(f, "unknown field \"{path}\""),
        }
    }
}

/// Supported keywords. Any other keyword in the schema fails the test.
const KEYWORDS: [&str; 25] = [
    "type",
    "description",
    "title",
    "default",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "nullable",
    "anyOf",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// A schema with compiled patterns.
pub(crate) struct Schema<'a> {
    root: &'a Value,
    patterns: BTreeMap<String, Regex>,
}

impl<'a> Schema<'a> {
    pub(crate) fn new(root: &'a Value) -> Self {
        let mut patterns = BTreeMap::new();
        collect(root, &mut patterns);
        Self { root, patterns }
    }

    pub(crate) fn check(&self, object: &Value) -> Vec<Violation> {
        let mut violations = Vec::new();
        self.value(self.root, object, "", &mut violations);
        // The API server reports unknown fields, while decoding, before it validates.
        violations.sort_by_key(|violation| !matches!(violation, Violation::Unknown(_)));
        violations
    }

    fn value(&self, schema: &Value, value: &Value, path: &str, violations: &mut Vec<Violation>) {
        let invalid = || Violation::Invalid(path.to_owned());
        if schema["x-kubernetes-int-or-string"] == true && !value.is_i64() && !value.is_string() {
            violations.push(invalid());
            return;
        }
        let fits = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
            None if schema["x-kubernetes-int-or-string"] == true => true,
            other => panic!("{path}: a type {other:?} in the schema"),
        };
        if !fits {
            violations.push(invalid());
            return;
        }
        match value {
            Value::Object(fields) => {
                for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if !fields.contains_key(name) {
                        violations.push(Violation::Required(join(path, name)));
                    }
                }
                for (name, field) in fields {
                    let own = &schema["properties"][name];
                    if own.is_object() {
                        self.value(own, field, &join(path, name), violations);
                    } else if schema["additionalProperties"].is_object() {
                        self.value(&schema["additionalProperties"], field, &join(path, name), violations);
                    } else if !(path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&&**name)) {
                        violations.push(Violation::Unknown(join(path, name)));
                    }
                }
                if schema["maxProperties"].as_u64().is_some_and(|most| fields.len() as u64 > most) {
                    violations.push(Violation::TooMany(path.to_owned()));
                }
            }
            Value::Array(items) => {
                if schema["maxItems"].as_u64().is_some_and(|most| items.len() as u64 > most) {
                    violations.push(Violation::TooMany(path.to_owned()));
                }
                if schema["minItems"].as_u64().is_some_and(|least| (items.len() as u64) < least) {
                    violations.push(invalid());
                }
                for (at, item) in items.iter().enumerate() {
                    let path = format!("{path}[{at}]");
                    if schema["x-kubernetes-list-type"] == "set" && items[..at].contains(item) {
                        violations.push(Violation::Duplicate(path.clone()));
                    }
                    self.value(&schema["items"], item, &path, violations);
                }
            }
            Value::String(text) => {
                let length = text.chars().count() as u64;
                if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
                    violations.push(Violation::Unsupported(path.to_owned()));
                } else if schema["minLength"].as_u64().is_some_and(|least| length < least)
                    || schema["maxLength"].as_u64().is_some_and(|most| length > most)
                    || schema["pattern"].as_str().is_some_and(|pattern| !self.patterns[pattern].is_match(text))
                {
                    violations.push(invalid());
                }
            }
            Value::Number(number) => {
                let number = number.as_f64().unwrap();
                if schema["minimum"].as_f64().is_some_and(|least| number < least)
                    || schema["maximum"].as_f64().is_some_and(|most| number > most)
                {
                    violations.push(invalid());
                }
            }
            Value::Bool(_) | Value::Null => {}
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn collect(schema: &Value, patterns: &mut BTreeMap<String, Regex>) {
    let fields = schema.as_object().unwrap();
    for (keyword, value) in fields {
        assert!(KEYWORDS.contains(&keyword.as_str()), "unsupported keyword {keyword}");
        match keyword.as_str() {
            "pattern" => {
                let pattern = value.as_str().unwrap();
                patterns.insert(pattern.to_owned(), Regex::new(pattern).unwrap());
            }
            "properties" => value.as_object().unwrap().values().for_each(|schema| collect(schema, patterns)),
            "items" | "additionalProperties" => collect(value, patterns),
            _ => {}
        }
    }
}
