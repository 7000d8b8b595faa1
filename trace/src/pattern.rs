//! Selection: tracepoints by pattern, events by conditions.

use std::{cmp::Ordering, fmt, str::FromStr};

use globset::{Glob, GlobMatcher};

use crate::{
    event::{Event, Value},
    view::field,
};

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
pub struct Condition {
    field: String,
    operator: Operator,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
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

impl FromStr for Condition {
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

impl Condition {
    /// Whether it holds. Numbers are compared as numbers, others as they are shown. Of what was not captured, and of arguments
    /// that the tracepoint does not have, nothing holds.
    #[must_use]
    pub fn holds(&self, event: &Event) -> bool {
        let argument = event.get(&self.field);
        if matches!(argument, Some(Value::Unreadable { .. } | Value::Unsupported)) {
            return false;
        }
        let shown = field(event, &self.field);
        if argument.is_none() && shown == "<missing>" {
            return false;
        }
        let number = match argument {
            Some(Value::Float(number)) => Number::parse(&number.to_string()),
            Some(value) => value.integer().map(Number::Integer),
            None => Number::parse(&shown),
        };
        let order = number.zip(Number::parse(&self.value)).and_then(|(found, wanted)| found.compare(wanted));
        let is_equal = order == Some(Ordering::Equal) || shown == self.value;
        match self.operator {
            Operator::Equal => is_equal,
            Operator::NotEqual => !is_equal,
            Operator::Less => order.is_some_and(Ordering::is_lt),
            Operator::LessOrEqual => order.is_some_and(Ordering::is_le),
            Operator::Greater => order.is_some_and(Ordering::is_gt),
            Operator::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
            Operator::Contains => shown.contains(&self.value),
        }
    }
}

/// A number; integers are compared exactly.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        text.parse().map(Self::Integer).or_else(|_| text.parse().map(Self::Float)).ok()
    }

    fn compare(self, other: Self) -> Option<Ordering> {
        let float = |number| match number {
            Self::Integer(number) => number as f64,
            Self::Float(number) => number,
        };
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            _ => float(self).partial_cmp(&float(other)),
        }
    }
}
