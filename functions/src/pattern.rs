//! Selection of functions by name.

use std::{fmt, str::FromStr};

use globset::{GlobBuilder, GlobMatcher};

use crate::{
    demangle::{demangle, demangle_path},
    path::plain,
};

/// A pattern of function names, with `*` (any text) and `?` (any character).
///
/// It matches a function by its path, in any namespace or module that contains it, whatever its parameters and template
/// arguments: `Payment::doApply` matches `ripple::Payment::doApply()` and `xrpl::Payment::doApply()`. With parameters or template
/// arguments, it matches only those: `hold(unsigned long)`, `get<int>`. A leading `::` says that the path is whole. A symbol as it
/// is in the file matches, too.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matchers: Vec<GlobMatcher>,
    /// Text that the symbol of every function that matches contains.
    literal: Option<String>,
}

/// Minimum length of a literal: shorter ones are parts of most symbols.
const MIN_LITERAL: usize = 3;

impl Pattern {
    /// Whether it matches the function of a symbol.
    #[must_use]
    pub fn matches(&self, symbol: &str) -> bool {
        if self.literal.as_ref().is_some_and(|literal| !symbol.contains(literal)) {
            return false;
        }
        if self.is_match(symbol) {
            return true;
        }
        let Some(path) = demangle_path(symbol) else { return self.is_match(&demangle(symbol).name) };
        self.is_match(&path) || self.is_match(plain(&path).trim_end()) || self.is_match(&demangle(symbol).name)
    }

    /// Whether it matches a name that is not mangled.
    pub(crate) fn is_match(&self, name: &str) -> bool {
        self.matchers.iter().any(|matcher| matcher.is_match(name))
    }

    /// Whether the pattern contains a word.
    pub(crate) fn names(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// The pattern without wildcards, for the search of similar names.
    pub(crate) fn without_wildcards(&self) -> String {
        self.text.replace(['*', '?'], "")
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("::").unwrap_or(text);
        if path.trim().is_empty() {
            return Err("no name of a function".to_owned());
        }
        let escaped = escape(path);
        let mut globs = vec![escaped.clone()];
        if path.len() == text.len() {
            globs.push(format!("*::{escaped}"));
        }
        let matcher = |glob: &String| {
            let glob = GlobBuilder::new(glob).literal_separator(false).backslash_escape(false).build();
            glob.map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
        };
        let matchers = globs.iter().map(matcher).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), matchers, literal: literal(path) })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Names have brackets and braces of their own.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '[' | '{' | '}' | ']' | '\\' => escaped.extend(['[', letter, ']']),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The longest identifier of the path. Mangled symbols contain identifiers as they are, but operators are coded.
fn literal(path: &str) -> Option<String> {
    let path = path.split(['(', '<', ' ']).next().unwrap_or_default();
    if path.contains("operator") {
        return None;
    }
    let words = path.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let longest = words.filter(|word| word.len() >= MIN_LITERAL && *word != "std").max_by_key(|word| word.len())?;
    Some(longest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, symbol: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(symbol)
    }

    #[test]
    fn cpp() {
        let apply = "_ZN6ripple7Payment7doApplyEv";
        for pattern in [
            "Payment::doApply",
            "doApply",
            "ripple::Payment::doApply",
            "::ripple::Payment::doApply",
            "ripple::Payment::doApply()",
            "*::doApply",
            "Payment::do*",
            "Pay?ent::doApply",
            apply,
        ] {
            assert!(matches(pattern, apply), "{pattern}");
        }
        for pattern in ["::Payment::doApply", "Apply", "Payment::doApply(int)", "xrpl::Payment::doApply", "doApply*x"] {
            assert!(!matches(pattern, apply), "{pattern}");
        }
        assert!(matches("Transactor::operator()", "_ZN6ripple10TransactorclEv"));
        assert!(matches("operator[]", "_ZN1AixEi"));
        assert!(matches("work::generic", "_ZN4work7genericIiEEvT_"), "template, with a return type");
        assert!(matches("generic<int>", "_ZN4work7genericIiEEvT_"));
        assert!(!matches("generic<long>", "_ZN4work7genericIiEEvT_"));
    }

    #[test]
    fn rust_and_c() {
        assert!(matches("Chain::apply", "_RNvMs0_NtCs5l0EXMQXRMU_4node5chainNtB5_5Chain5apply"));
        assert!(matches("node::run", "_ZN4node3run17h0123456789abcdefE"));
        assert!(matches(
            "ChildStderr::read",
            "_ZN59_$LT$std..process..ChildStderr$u20$as$u20$std..io..Read$GT$4read17h2b39f2a53104c282E"
        ));
        assert!(matches("mem*", "memcpy"));
        assert!(!matches("mem", "memcpy"));
        assert!(matches("Stdlib.List.map_*", "camlStdlib__List__map_123"));
    }

    #[test]
    fn patterns_that_are_none() {
        assert!("".parse::<Pattern>().is_err() && "::".parse::<Pattern>().is_err());
        assert!(matches("a[b]{c}*", "a[b]{c}d"));
    }
}
