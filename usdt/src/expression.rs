//! Expressions of the assembler in operands: `8`, `-0x10`, `g`, `g+8`, `8+g`.

use crate::error::Unsupported;

/// The sum of numbers and at most one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expression<'a> {
    pub(crate) number: i128,
    pub(crate) symbol: Option<&'a str>,
}

impl<'a> Expression<'a> {
    /// The empty expression is 0.
    pub(crate) fn parse(text: &'a str) -> Result<Self, Unsupported> {
        let mut sum = Self { number: 0, symbol: None };
        let mut rest = text;
        while !rest.is_empty() {
            let (is_negative, term) = match rest.strip_prefix('-') {
                Some(term) => (true, term),
                None => (false, rest.strip_prefix('+').unwrap_or(rest)),
            };
            let (term, tail) = term.split_at(term.find(['+', '-']).unwrap_or(term.len()));
            if term.starts_with(|first: char| first.is_ascii_digit()) {
                let number = number(term)?;
                sum.number += if is_negative { -number } else { number };
            } else if is_symbol(term) && !is_negative && sum.symbol.is_none() {
                sum.symbol = Some(term);
            } else {
                return Err(Unsupported::Operand);
            }
            rest = tail;
        }
        Ok(sum)
    }
}

fn number(digits: &str) -> Result<i128, Unsupported> {
    let (digits, radix) = match digits.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (digits, 10),
    };
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    if !is_number {
        return Err(Unsupported::Operand);
    }
    u64::from_str_radix(digits, radix).map(i128::from).map_err(|_| Unsupported::Number)
}

fn is_symbol(term: &str) -> bool {
    !term.is_empty() && term.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.$".contains(letter))
}
