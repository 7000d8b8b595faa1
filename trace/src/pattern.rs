//! Selection: tracepoints by pattern, events by conditions.

use std::{cmp::Ordering, str::FromStr};

pub use chainscope_usdt::Pattern;
use chainscope_usdt::{Comparison, Operator};

use crate::{
    event::{Event, Value},
    view::field,
};

/// A condition on an event: `size>1000`, `message_type=tx`, `address~.onion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Comparison);

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl Condition {
    /// Whether it holds. Numbers are compared as numbers, others as they are shown. Of what was not captured, and of arguments
    /// that the tracepoint does not have, nothing holds.
    #[must_use]
    pub fn holds(&self, event: &Event) -> bool {
        let argument = event.get(&self.0.field);
        if matches!(argument, Some(Value::Unreadable { .. } | Value::Unsupported)) {
            return false;
        }
        let shown = field(event, &self.0.field);
        if argument.is_none() && shown == "<missing>" {
            return false;
        }
        let number = match argument {
            Some(Value::Float(number)) => Number::parse(&number.to_string()),
            Some(value) => value.integer().map(Number::Integer),
            None => Number::parse(&shown),
        };
        let order = number.zip(Number::parse(&self.0.value)).and_then(|(found, wanted)| found.compare(wanted));
        let is_equal = order == Some(Ordering::Equal) || shown == self.0.value;
        match self.0.operator {
            Operator::Equal => is_equal,
            Operator::NotEqual => !is_equal,
            Operator::Less => order.is_some_and(Ordering::is_lt),
            Operator::LessOrEqual => order.is_some_and(Ordering::is_le),
            Operator::Greater => order.is_some_and(Ordering::is_gt),
            Operator::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
            Operator::Contains => shown.contains(&self.0.value),
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
