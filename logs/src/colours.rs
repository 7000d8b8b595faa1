//! Colours of a terminal in what a program logs.

use std::borrow::Cow;

/// Removes the control sequences of terminals (ECMA-48 CSI: `ESC [ … final byte`).
pub(crate) fn without_colours(text: &str) -> Cow<'_, str> {
    const CSI: &str = "\u{1b}[";
    if !text.contains(CSI) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(CSI);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Parameter and intermediate bytes, then one final byte; what is no sequence is kept.
        match part.find(|c: char| !(' '..='?').contains(&c)) {
            Some(end) if ('@'..='~').contains(&part[end..].chars().next().unwrap_or_default()) => {
                clean.push_str(&part[end + 1..])
            }
            _ => {
                clean.push_str(CSI);
                clean.push_str(part);
            }
        }
    }
    Cow::Owned(clean)
}
