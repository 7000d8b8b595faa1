//! Output hygiene for every Chainscope program: rate-limited warnings ([`warn_limited`]), escaping of untrusted text for
//! terminals and logs ([`Escaped`], [`EscapedTruncated`]), and processes without core dumps ([`protect_process`]).

#![forbid(unsafe_code)]

mod protect;

use std::{
    fmt::{self, Write as _},
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

/// Displays untrusted text with control characters and bidirectional formatting characters escaped as `\u{…}`.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

/// Like [`Escaped`], truncated to 200 characters: for log lines and error messages.
#[derive(Debug, Clone, Copy)]
pub struct EscapedTruncated<'a>(pub &'a str);

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

fn write_escaped(character: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if is_printable(character) { f.write_char(character) } else { write!(f, "{}", character.escape_unicode()) }
}

/// Whether a character is neither a control character nor a bidirectional formatting character.
fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BURST, Escaped, EscapedTruncated, MAX_CHARS, REFILL_NS, RateLimit};

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

    proptest! {
        #[test]
        fn no_output_controls_a_terminal(text in any::<String>()) {
            prop_assert!(Escaped(&text).to_string().chars().all(|character| !character.is_control()));
            prop_assert!(EscapedTruncated(&text).to_string().chars().all(|character| !character.is_control()));
        }
    }
}
