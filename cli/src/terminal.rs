//! Output for people: nothing that a peer sent reaches the terminal as a control sequence, and a closed pipe is no error.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
};

/// Whether people are looking.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal()
}

/// Writes to standard output and flushes, so that a line is seen when it is there.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Writes a line.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Whether the reader of standard output has gone, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Text of a peer, fit for a terminal: control characters, and what changes the direction of writing, are escaped.
pub(crate) fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let reorders = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || reorders {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::safe;

    #[test]
    fn escape_sequences_are_shown_not_obeyed() {
        assert_eq!(safe("a\u{1b}[2Jb\r\n"), "a\\u{1b}[2Jb\\u{d}\\u{a}");
        assert_eq!(safe("\u{202e}gnp.exe"), "\\u{202e}gnp.exe");
    }

    proptest! {
        #[test]
        fn nothing_controls_the_terminal(text in any::<String>()) {
            prop_assert!(safe(&text).chars().all(|character| !character.is_control()));
        }
    }
}
