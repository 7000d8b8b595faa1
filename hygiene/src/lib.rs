//! Output hygiene for every Chainscope program: rate-limited warnings ([`warn_limited`]), escaping of untrusted text for
//! terminals and logs ([`Escaped`], [`EscapedTruncated`], [`EscapedJson`]), and processes without core dumps ([`protect_process`]).

#![forbid(unsafe_code)]

mod protect;

use std::{
    fmt::{self, Write as _},
    path::Path,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

pub use protect::protect_process;

/// Burst size of a call site, in log lines.
const BURST: u64 = 5;
/// Refill interval of a call site's token bucket: one line per interval, in nanoseconds.
const REFILL_NS: u64 = 10_000_000_000;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Rate limiter of one call site: a token bucket stored as the time until which its lines are paid for (GCRA).
#[derive(Debug, Default)]
pub struct RateLimit {
    paid_until_ns: AtomicU64,
    suppressed: AtomicU64,
}

impl RateLimit {
    /// Returns a full bucket.
    #[must_use]
    pub const fn new() -> Self {
        Self { paid_until_ns: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Takes a token. Returns the number of lines suppressed since the last permitted one, or `None` if the limit is
    /// exceeded.
    pub fn acquire(&self) -> Option<u64> {
        self.acquire_at(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn acquire_at(&self, now_ns: u64) -> Option<u64> {
        let next = self.paid_until_ns.load(Ordering::Relaxed).max(now_ns).saturating_add(REFILL_NS);
        // Two threads that race permit one line more or less, which does not matter for a log.
        if next <= now_ns.saturating_add(BURST * REFILL_NS) {
            self.paid_until_ns.store(next, Ordering::Relaxed);
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Logs a warning, rate-limited per call site: a burst of five lines, then one line every ten seconds, whose
/// `suppressed` field counts the lines that were not written. Takes the arguments of `tracing::warn!`.
#[macro_export]
macro_rules! warn_limited {
    ($($arg:tt)*) => {{
        static LIMIT: $crate::RateLimit = $crate::RateLimit::new();
        match LIMIT.acquire() {
            Some(0) => $crate::tracing::warn!($($arg)*),
            Some(suppressed) => $crate::tracing::warn!(suppressed, $($arg)*),
            None => {}
        }
    }};
}
#[doc(hidden)]
pub use tracing;

/// Displays untrusted text with characters that are not [printable](is_printable) escaped as `\u{…}`.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

/// Like [`Escaped`], truncated to 200 characters: for log lines and error messages.
#[derive(Debug, Clone, Copy)]
pub struct EscapedTruncated<'a>(pub &'a str);

/// A path that another process may have chosen, [escaped](Escaped).
#[must_use]
pub fn escaped_path(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}

/// Displays untrusted JSON with characters that are not [printable](is_printable) escaped as `\uXXXX`: the same JSON.
#[derive(Debug, Clone, Copy)]
pub struct EscapedJson<'a>(pub &'a str);

/// Maximum length of [`EscapedTruncated`], in characters before escaping.
const MAX_CHARS: usize = 200;

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| write_escaped(character, f))
    }
}

impl fmt::Display for EscapedTruncated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        characters.by_ref().take(MAX_CHARS).try_for_each(|character| write_escaped(character, f))?;
        if characters.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

impl fmt::Display for EscapedJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            // White space between tokens; inside a string it is an escape already.
            '\n' | '\r' | '\t' => f.write_char(character),
            _ if is_printable(character) => f.write_char(character),
            _ => character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}")),
        })
    }
}

fn write_escaped(character: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if is_printable(character) { f.write_char(character) } else { write!(f, "{}", character.escape_unicode()) }
}

/// Whether a character is shown as itself, alone and in its place: no control, bidirectional, zero-width, combining, private
/// or unassigned character, no separator other than the space.
#[must_use]
pub fn is_printable(character: char) -> bool {
    match character {
        // Printable ASCII, of which the standard library escapes quotes and the backslash.
        ' '..='~' => true,
        // Letters without a glyph (`Default_Ignorable_Code_Point`).
        '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' => false,
        // The standard library's table of printable characters.
        _ => character.escape_debug().len() == 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BURST, Escaped, EscapedJson, EscapedTruncated, MAX_CHARS, REFILL_NS, RateLimit, is_printable};

    #[test]
    fn a_call_site_logs_a_burst_and_then_one_line_per_interval() {
        let limit = RateLimit::new();
        let start = 1_000_000_000_000;
        assert_eq!((0..100).filter(|_| limit.acquire_at(start).is_some()).count() as u64, BURST);
        assert_eq!(limit.acquire_at(start + REFILL_NS), Some(95));
        assert_eq!(limit.acquire_at(start + REFILL_NS), None);
    }

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(EscapedTruncated("a\u{1b}[2J\n\u{202e}x é").to_string(), "a\\u{1b}[2J\\u{a}\\u{202e}x é");
        assert_eq!(EscapedTruncated(&"x".repeat(1000)).to_string().chars().count(), MAX_CHARS + 1);
    }

    #[test]
    fn invisible_and_reordering_characters_are_shown_as_escapes() {
        // Cc, Cf, Zl, Zp and Default_Ignorable_Code_Point of Unicode, and examples of Co, Cn, Zs and Mn.
        let hidden = [
            0x00..=0x1f,
            0x7f..=0xa0,
            0xad..=0xad,
            0x301..=0x301,
            0x34f..=0x34f,
            0x378..=0x378,
            0x600..=0x605,
            0x61c..=0x61c,
            0x6dd..=0x6dd,
            0x70f..=0x70f,
            0x890..=0x891,
            0x8e2..=0x8e2,
            0x115f..=0x1160,
            0x17b4..=0x17b5,
            0x180b..=0x180f,
            0x2000..=0x200f,
            0x2028..=0x202f,
            0x205f..=0x206f,
            0x3164..=0x3164,
            0xe000..=0xf8ff,
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xffa0..=0xffa0,
            0xfff0..=0xfffb,
            0x110bd..=0x110bd,
            0x110cd..=0x110cd,
            0x13430..=0x1343f,
            0x1bca0..=0x1bca3,
            0x1d173..=0x1d17a,
            0xe0000..=0xe0fff,
            0x10_0000..=0x10_ffff,
        ];
        for character in hidden.into_iter().flatten().filter_map(char::from_u32) {
            let text = format!("a{character}b");
            let escaped = Escaped(&text).to_string();
            assert_eq!(escaped, format!("a{}b", character.escape_unicode()));
            assert_eq!(EscapedTruncated(&text).to_string(), escaped);
        }
        let shown = "'\"\\ ~é→…ß日本語Ωж🙂";
        assert_eq!(Escaped(shown).to_string(), shown);
    }

    proptest! {
        #[test]
        fn escaped_json_is_the_same_json(text in any::<String>()) {
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let escaped = EscapedJson(&json).to_string();
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&escaped).unwrap(), [text]);
            prop_assert!(escaped.chars().all(|character| character == '\n' || is_printable(character)));
        }

        #[test]
        fn no_output_controls_a_terminal(text in any::<String>()) {
            prop_assert!(Escaped(&text).to_string().chars().all(is_printable));
            prop_assert!(EscapedTruncated(&text).to_string().chars().all(is_printable));
        }
    }
}
