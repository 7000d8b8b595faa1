//! Selection of tracepoints by name, and of events by what they say: the syntax of both.

use std::{fmt, str::FromStr};

use globset::{Glob, GlobMatcher};

/// Tracepoints by name: `net:*`, `*:block_connected`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    provider: GlobMatcher,
    name: GlobMatcher,
}

impl Pattern {
    /// Whether it matches a tracepoint.
    #[must_use]
    pub fn matches(&self, provider: &str, name: &str) -> bool {
        self.provider.is_match(provider) && self.name.is_match(name)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((provider, name)) = text.split_once(':') else {
            return Err("not PROVIDER:NAME, which may have * and ?".to_owned());
        };
        let glob = |text: &str| Glob::new(text).map(|glob| glob.compile_matcher()).map_err(|error| error.to_string());
        Ok(Self { text: text.to_owned(), provider: glob(provider)?, name: glob(name)? })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A condition on an event: `size>1000`, `message_type=tx`, `address~.onion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Name of an argument, or of a property of every event.
    pub field: String,
    /// How they are compared.
    pub operator: Operator,
    /// What it is compared with; a number if the operator is one of order.
    pub value: String,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `~`: the value is a part of it.
    Contains,
}

/// Operators, the longer ones first.
const OPERATORS: [(&str, Operator); 8] = [
    ("!=", Operator::NotEqual),
    ("==", Operator::Equal),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
    ("=", Operator::Equal),
    ("~", Operator::Contains),
];

impl FromStr for Comparison {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find(['!', '=', '<', '>', '~']).ok_or("no operator: one of = != < <= > >= ~")?;
        let (field, rest) = text.split_at(at);
        let found = OPERATORS.iter().find_map(|(sign, operator)| Some((*operator, rest.strip_prefix(sign)?)));
        let (operator, value) = found.ok_or("no operator: one of = != < <= > >= ~")?;
        let (field, value) = (field.trim().to_owned(), value.trim().to_owned());
        if field.is_empty() {
            return Err("no name before the operator".to_owned());
        }
        let is_order = !matches!(operator, Operator::Equal | Operator::NotEqual | Operator::Contains);
        if is_order && value.parse::<f64>().is_err() {
            return Err(format!("{value:?} is no number"));
        }
        Ok(Self { field, operator, value })
    }
}
