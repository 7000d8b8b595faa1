//! Own log lines, at a bounded rate a place, and with peers' strings made harmless.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::clock::monotonic_ns;

/// Lines a place may write in a row.
const BURST: u64 = 5;
/// Nanoseconds in which a place regains one line.
const REGAIN_NS: u64 = 10_000_000_000;

/// How much one place in the code has logged lately.
///
/// A token bucket in one word: the time at which it would be empty of past lines. Each line moves that time by
/// [`REGAIN_NS`]; a line is refused when it would lie more than [`BURST`] lines ahead of now.
#[derive(Debug)]
pub(crate) struct Place {
    paid_until_ns: AtomicU64,
    silent: AtomicU64,
}

impl Place {
    pub(crate) const fn new() -> Self {
        Self { paid_until_ns: AtomicU64::new(0), silent: AtomicU64::new(0) }
    }

    /// Whether the place may log now; if so, how many lines it kept to itself since the last.
    pub(crate) fn may_log(&self) -> Option<u64> {
        self.may_log_at(monotonic_ns())
    }

    fn may_log_at(&self, now_ns: u64) -> Option<u64> {
        let paid = self.paid_until_ns.load(Ordering::Relaxed);
        let next = paid.max(now_ns).saturating_add(REGAIN_NS);
        let is_allowed = next <= now_ns.saturating_add(BURST * REGAIN_NS);
        // A race lets one line more through, or one less: harmless.
        if is_allowed {
            self.paid_until_ns.store(next, Ordering::Relaxed);
            return Some(self.silent.swap(0, Ordering::Relaxed));
        }
        self.silent.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Logs a warning, rate-limited for this place in the code.
macro_rules! warn_limited {
    ($($arg:tt)*) => {{
        static PLACE: $crate::quiet::Place = $crate::quiet::Place::new();
        if let Some(unsaid) = PLACE.may_log() {
            if unsaid > 0 {
                tracing::warn!(unsaid, $($arg)*);
            } else {
                tracing::warn!($($arg)*);
            }
        }
    }};
}
pub(crate) use warn_limited;

/// Text of a peer or of another program as it may appear in a log line: control characters are shown as escapes, and
/// what is too long is cut.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

/// Characters of a foreign text that a log line shows.
const SHOWN: usize = 200;

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, character) in self.0.chars().enumerate() {
            if count == SHOWN {
                return f.write_str("…");
            }
            if is_harmless(character) {
                fmt::Write::write_char(f, character)?;
            } else {
                write!(f, "{}", character.escape_unicode())?;
            }
        }
        Ok(())
    }
}

/// Neither a control character nor one of those that turn the direction of text around it.
fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_logs_a_burst_and_then_one_line_each_interval() {
        let place = Place::new();
        let start = 1_000_000_000_000;
        let allowed = (0..100).filter(|_| place.may_log_at(start).is_some()).count();
        assert_eq!(allowed as u64, BURST);
        assert_eq!(place.may_log_at(start + REGAIN_NS), Some(95));
        assert_eq!(place.may_log_at(start + REGAIN_NS), None);
    }

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(Clean("TEZOS\u{1b}[2J\n\u{202e}x é").to_string(), "TEZOS\\u{1b}[2J\\u{a}\\u{202e}x é");
        assert_eq!(Clean(&"x".repeat(1000)).to_string().chars().count(), SHOWN + 1);
    }
}
