//! Symbols of OCaml's native compiler: `caml`, compilation unit, separator, function name and number.
//!
//! | since | separator | escape |
//! | --- | --- | --- |
//! | - | `__` | `$xx` |
//! | 5.1.1 | `.` | `$xx` |
//! | 5.4 | `$` | `$$xx` |
//!
//! Build systems name the units of a library `Library__Unit`; that separator becomes a dot too. It cannot be
//! distinguished from an identifier that contains two underscores. Sources: ocaml/ocaml#11430, ocaml/ocaml#13050, and
//! the manual's chapter on native debuggers.

/// Returns the name with dots, or `None` if the symbol is not an OCaml symbol. `camlStdlib__List__map_123` becomes
/// `Stdlib.List.map_123`.
pub(crate) fn demangle(symbol: &str) -> Option<String> {
    let name = symbol.strip_prefix("caml")?;
    if !name.starts_with(|first: char| first.is_ascii_uppercase()) {
        return None;
    }
    let is_dollar = !name.contains('.') && has_dollar_separator(name);
    let mut readable = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = if is_dollar { rest.strip_prefix(b"$$") } else { rest.strip_prefix(b"$") };
        if let Some((byte, after)) = escape.and_then(hexadecimal) {
            readable.push(byte);
            rest = after;
        } else if is_dollar && *first == b'$' {
            readable.push(b'.');
            rest = after;
        } else if let Some(after) = rest.strip_prefix(b"__").filter(|after| is_name(after)) {
            readable.push(b'.');
            rest = after;
        } else {
            readable.push(*first);
            rest = after;
        }
    }
    Some(String::from_utf8_lossy(&readable).into_owned())
}

/// Detects the separator of OCaml 5.4. In earlier versions another separator is present in every function symbol, and
/// each `$` starts an escape.
fn has_dollar_separator(name: &str) -> bool {
    let mut parts = name.split('$');
    let unit = parts.next().unwrap_or_default();
    let is_escape = |part: &str| hexadecimal(part.as_bytes()).is_some();
    name.contains("$$") || parts.any(|part| !is_escape(part)) || (name.contains('$') && !unit.contains("__"))
}

/// Parses two lower-case hexadecimal digits; returns the byte and the rest.
fn hexadecimal(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let [high, low, after @ ..] = text else { return None };
    Some((digit(*high)? << 4 | digit(*low)?, after))
}

/// Returns whether the text can follow a separator.
fn is_name(text: &[u8]) -> bool {
    text.first().is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, b'$' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn all_mangling_schemes_are_demangled() {
        for (symbol, expected) in [
            ("camlStdlib__List__map_123", "Stdlib.List.map_123"),
            ("camlTezos_p2p__P2p_socket__read_1234", "Tezos_p2p.P2p_socket.read_1234"),
            ("camlFib__$5e$2a_272", "Fib.^*_272"),
            ("camlStdlib__List.map_123", "Stdlib.List.map_123"),
            ("camlFib.$5e$2a_272", "Fib.^*_272"),
            ("camlStdlib__List$map_123", "Stdlib.List.map_123"),
            ("camlFib$bar_12", "Fib.bar_12"),
            ("camlFib$$$5e$$2a_272", "Fib.^*_272"),
            ("camlMain__entry", "Main.entry"),
            ("camlMain__fun_1189", "Main.fun_1189"),
        ] {
            assert_eq!(demangle(symbol).as_deref(), Some(expected), "{symbol}");
        }
    }

    #[test]
    fn runtime_and_foreign_symbols_are_not_demangled() {
        for symbol in ["caml_alloc_shr", "caml", "camel", "main", "caml1", "caml_system__code_begin"] {
            assert_eq!(demangle(symbol), None, "{symbol}");
        }
    }
}
