//! Values as text: on one line, control characters escaped, and never as something that they are not.

use std::fmt::{self, Write as _};

use chainscope_hygiene::Escaped;
use chainscope_usdt::{ArgumentContract, Kind};

use crate::event::{Event, Incomplete, Value};

/// The value of an argument as text. Width and alignment of the format apply.
///
/// What was not captured is shown in angle brackets (`<unreadable>`), truncated text ends with `…`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    value: Option<&'a Value>,
    meaning: Option<&'a ArgumentContract>,
    has_names: bool,
}

impl Event {
    /// The argument with this name as text; values that have a name by it, others as numbers.
    #[must_use]
    pub fn show(&self, name: &str) -> Shown<'_> {
        let index = self.attachment.index_of(name);
        match index {
            Some(index) => self.show_at(index),
            None => Shown { value: None, meaning: None, has_names: true },
        }
    }

    /// The argument at this index as text.
    #[must_use]
    pub fn show_at(&self, index: usize) -> Shown<'_> {
        let argument = self.attachment.arguments.get(index);
        Shown { value: self.arguments.get(index), meaning: argument.map(|argument| &argument.meaning), has_names: true }
    }

    /// The argument with this name, if it is an integer or a Boolean.
    #[must_use]
    pub fn integer(&self, name: &str) -> Option<i128> {
        self.get(name)?.integer()
    }
}

impl Value {
    /// Its number, if it is an integer or a Boolean.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        match self {
            Self::Signed(number) => Some(i128::from(*number)),
            Self::Unsigned(number) => Some(i128::from(*number)),
            Self::Bool(is_true) => Some(i128::from(*is_true)),
            _ => None,
        }
    }
}

impl Shown<'_> {
    /// Numbers as numbers, also those that have a name.
    #[must_use]
    pub fn without_names(self) -> Self {
        Self { has_names: false, ..self }
    }

    fn text(self) -> String {
        let Some(value) = self.value else { return "<missing>".to_owned() };
        match value {
            Value::Signed(number) => self.number(i128::from(*number)),
            Value::Unsigned(number) => self.number(i128::from(*number)),
            Value::Float(number) => number.to_string(),
            Value::Bool(is_true) => is_true.to_string(),
            Value::Text { bytes, is_truncated } => {
                let mut text = escape(bytes);
                if *is_truncated {
                    text.push('…');
                }
                text
            }
            Value::Bytes { bytes, claimed, incomplete } => self.bytes(bytes, *claimed, *incomplete),
            Value::Unreadable { .. } => "<unreadable>".to_owned(),
            Value::Unsupported => "<unsupported>".to_owned(),
        }
    }

    fn number(self, number: i128) -> String {
        let name = self.meaning.filter(|_| self.has_names).and_then(|meaning| {
            let number = i64::try_from(number).ok()?;
            meaning.values.get(&number)
        });
        name.map_or_else(|| number.to_string(), |name| escape(name.as_bytes()))
    }

    fn bytes(self, bytes: &[u8], claimed: u64, incomplete: Option<Incomplete>) -> String {
        let is_hash = self.meaning.is_some_and(|meaning| meaning.kind == Kind::Hash32);
        let Some(cause) = incomplete else {
            return if is_hash { reversed_hex(bytes) } else { hex::encode(bytes) };
        };
        let cause = match cause {
            Incomplete::Limit => "limit",
            Incomplete::Unreadable => "unreadable",
            Incomplete::Dropped => "dropped",
        };
        if is_hash {
            return format!("<{cause}>");
        }
        format!("{}<{cause}: {} of {claimed} bytes>", hex::encode(bytes), bytes.len())
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

/// Hexadecimal digits of a hash as nodes and block explorers show it: the last byte first.
#[must_use]
pub fn reversed_hex(bytes: &[u8]) -> String {
    hex::encode(bytes.iter().rev().copied().collect::<Vec<u8>>())
}

/// Untrusted text with characters that are not printable escaped as `\u{…}`, and bytes that are no UTF-8 as `\x…`.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}", Escaped(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}
