//! Demangling of Rust (legacy and v0), C++ and OCaml symbols. The length of the result is bounded for any input.

use std::fmt::{self, Write};

use chainscope_hygiene::Escaped;
use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

use crate::ocaml;

/// Maximum length of a symbol and of its demangled name, in bytes; longer ones are truncated.
pub const MAX_NAME: usize = 16 << 10;

/// Maximum nesting of types in a C++ symbol.
const MAX_DEPTH: u32 = 64;

/// A demangled function name, and whether the symbol uses a Rust mangling scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demangled {
    /// The name.
    pub name: String,
    /// Whether the symbol uses a mangling scheme of Rust.
    pub is_rust: bool,
}

/// Demangles a symbol. Legacy Rust names keep their hash (`::h` and 16 digits); for v0 names the crate disambiguators
/// are omitted. Symbols that are not mangled are returned unchanged.
#[must_use]
pub fn demangle(symbol: &str) -> Demangled {
    let symbol = truncate(symbol, MAX_NAME);
    let mut name = BoundedString::default();
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        let is_v0 = symbol.starts_with("_R") || symbol.starts_with("R") || symbol.starts_with("__R");
        let written = if is_v0 { write!(name, "{rust:#}") } else { write!(name, "{rust}") };
        return Demangled { name: name.finish(written, symbol), is_rust: true };
    }
    let cpp = ParseOptions::default().recursion_limit(MAX_DEPTH);
    if (symbol.starts_with("_Z") || symbol.starts_with("__Z"))
        && let Ok((cpp, _)) = BorrowedSymbol::with_tail_and_options(symbol.as_bytes(), &cpp)
    {
        let options = DemangleOptions::new().recursion_limit(MAX_DEPTH);
        let written = cpp.structured_demangle(&mut name, &options);
        return Demangled { name: name.finish(written, symbol), is_rust: false };
    }
    let plain = ocaml::demangle(symbol).unwrap_or_else(|| symbol.to_owned());
    Demangled { name: escape(&plain), is_rust: false }
}

/// The path of a C++ or Rust function alone: without parameters, return type, and hash. `None` if the symbol is not mangled.
pub(crate) fn demangle_path(symbol: &str) -> Option<String> {
    let symbol = truncate(symbol, MAX_NAME);
    let mut name = BoundedString::default();
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        let written = write!(name, "{rust:#}");
        return Some(name.finish(written, symbol));
    }
    let cpp = ParseOptions::default().recursion_limit(MAX_DEPTH);
    if !symbol.starts_with("_Z") && !symbol.starts_with("__Z") {
        return None;
    }
    let (cpp, _) = BorrowedSymbol::with_tail_and_options(symbol.as_bytes(), &cpp).ok()?;
    let options = DemangleOptions::new().recursion_limit(MAX_DEPTH).no_params().no_return_type();
    let written = cpp.structured_demangle(&mut name, &options);
    Some(name.finish(written, symbol))
}

/// Text of at most [`MAX_NAME`] bytes: a symbol of a few hundred bytes can expand to gigabytes.
#[derive(Debug, Default)]
struct BoundedString(String);

impl Write for BoundedString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_NAME - self.0.len();
        self.0.push_str(truncate(text, left));
        if text.len() > left { Err(fmt::Error) } else { Ok(()) }
    }
}

impl BoundedString {
    /// Returns the text. If demangling failed, returns the truncated text if the limit was reached, else the symbol.
    fn finish(mut self, written: fmt::Result, symbol: &str) -> String {
        let is_full = self.0.len() + 4 > MAX_NAME;
        match written {
            Err(_) if is_full => {
                self.0.truncate(truncate(&self.0, MAX_NAME - 3).len());
                self.0.push('…');
            }
            Err(_) => self.0 = symbol.to_owned(),
            Ok(()) => {}
        }
        escape(&self.0)
    }
}

fn escape(name: &str) -> String {
    Escaped(name).to_string()
}

/// Returns the longest prefix of at most `max` bytes that ends at a character boundary.
fn truncate(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(symbol: &str) -> String {
        demangle(symbol).name
    }

    #[test]
    fn rust_names_keep_their_hash() {
        let legacy = "_ZN59_$LT$std..process..ChildStderr$u20$as$u20$std..io..Read$GT$4read17h2b39f2a53104c282E";
        let expected = "<std::process::ChildStderr as std::io::Read>::read::h2b39f2a53104c282";
        assert_eq!(demangle(legacy), Demangled { name: expected.to_owned(), is_rust: true });
        let v0 = "_RNvMs0_NtCs5l0EXMQXRMU_4node5chainNtB5_5Chain5apply";
        assert_eq!(demangle(v0), Demangled { name: "<node::chain::Chain>::apply".to_owned(), is_rust: true });
        // Suffix added by link-time optimisation.
        assert_eq!(name("_ZN4node3run17h0123456789abcdefE.llvm.1234"), "node::run::h0123456789abcdef");
    }

    #[test]
    fn cpp_names_include_parameters() {
        assert_eq!(
            name("_ZN7rocksdb6DBImpl5WriteERKNS_12WriteOptionsE"),
            "rocksdb::DBImpl::Write(rocksdb::WriteOptions const&)"
        );
        assert!(!demangle("_ZN7rocksdb6DBImpl5WriteEv").is_rust);
        assert_eq!(name("_Z4holdm.constprop.0"), "hold(unsigned long) [clone .constprop.0]");
    }

    #[test]
    fn ocaml_separators_become_dots() {
        assert_eq!(name("camlStdlib__List__map_123"), "Stdlib.List.map_123");
    }

    #[test]
    fn unmangled_names_are_unchanged() {
        for plain in ["main", "_start", "main.(*Tree).Hold", "caml_alloc_shr", "_Zzz", "_ZN", "", "R", "camlp4"] {
            assert_eq!(name(plain), plain);
        }
        assert_eq!(name("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
    }

    #[test]
    fn an_exponentially_expanding_symbol_is_truncated() {
        // Each parameter repeats the previous one twice.
        let mut symbol = "_Z1fN1a1bE".to_owned();
        symbol.push_str("St4pairIS_S_E");
        for back in
            ["S1_", "S2_", "S3_", "S4_", "S5_", "S6_", "S7_", "S8_", "S9_", "SA_", "SB_", "SC_", "SD_", "SE_", "SF_"]
        {
            symbol.push_str(&format!("St4pairI{back}{back}E"));
        }
        assert!(name(&symbol).len() <= 3 * MAX_NAME);
        assert!(name(&"x".repeat(1 << 20)).len() <= MAX_NAME);
    }

    proptest! {
        #[test]
        fn any_symbol_has_a_bounded_name(symbol in "\\PC{0,200}") {
            prop_assert!(name(&symbol).len() <= 8 * MAX_NAME);
        }

        #[test]
        fn mangled_looking_symbols_have_bounded_names(
            head in prop::sample::select(vec!["_R", "_ZN", "_Z", "_Z1f", "caml", "camlA__", "__ZN"]),
            tail in "[A-Z0-9a-z_$.]{0,120}",
        ) {
            let symbol = format!("{head}{tail}");
            prop_assert!(name(&symbol).len() <= 8 * MAX_NAME);
        }
    }
}
