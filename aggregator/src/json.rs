//! Compact JSON that is safe to print on a terminal: characters above U+001F that are not
//! [printable](chainscope_hygiene::is_printable), which JSON does not require to be escaped, are escaped too. Strings in it
//! come from peers.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Formatter of compact JSON that escapes characters that are not printable.
struct EscapingFormatter;

impl Formatter for EscapingFormatter {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        // Most text: faster than a look at each character.
        if fragment.is_ascii() && !fragment.as_bytes().contains(&0x7f) {
            return CompactFormatter.write_string_fragment(out, fragment);
        }
        let mut rest = fragment;
        while let Some((at, character)) = rest.char_indices().find(|(_, character)| must_escape(*character)) {
            let (before, from) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = from.get(character.len_utf8()..).unwrap_or_default();
        }
        CompactFormatter.write_string_fragment(out, rest)
    }
}

fn must_escape(character: char) -> bool {
    character >= '\u{7f}' && !chainscope_hygiene::is_printable(character)
}

/// Writes a value as compact JSON.
pub(crate) fn write(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, EscapingFormatter))?)
}

/// Writes a string as [`write`] does; copies a string that needs no escapes, as most names.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    // Without early exit, so that the loop is vectorised.
    let is_plain = text
        .bytes()
        .fold(true, |is_plain, byte| is_plain & matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\'));
    if is_plain {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing to memory does not fail.
        let _ = write(out, &text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{write, write_text};

    fn text(value: &str) -> String {
        let mut out = Vec::new();
        write(&mut out, &value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn characters_that_are_not_printable_are_escaped() {
        assert_eq!(text("a\u{1b}\u{7f}\u{9b}é\u{202e}\"\n"), r#""a\u001b\u007f\u009bé\u202e\"\n""#);
        assert_eq!(text("\u{200b}\u{61c}\u{feff}🙂\u{e0041}"), r#""\u200b\u061c\ufeff🙂\udb40\udc41""#);
    }

    proptest! {
        #[test]
        fn both_writers_agree(value in "[ -~]*|.*|[\u{0}-\u{a0}]*") {
            let mut out = Vec::new();
            write_text(&mut out, &value);
            prop_assert_eq!(String::from_utf8(out).unwrap(), text(&value));
        }

        #[test]
        fn escaped_json_parses_to_the_same_string(value in any::<String>()) {
            let text = text(&value);
            prop_assert!(text.chars().all(chainscope_hygiene::is_printable));
            prop_assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
        }
    }
}
