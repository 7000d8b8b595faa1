//! Own log lines, at a bounded rate a place, and foreign text in them made harmless.

use std::{
    fmt,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Lines a place may write in a row.
const BURST: u64 = 5;
/// Nanoseconds in which a place regains one line.
const REGAIN_NS: u64 = 10_000_000_000;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How much one place in the code has logged lately: a token bucket in one word, the time up to which its lines are
/// paid for.
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
        self.may_log_at(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn may_log_at(&self, now_ns: u64) -> Option<u64> {
        let next = self.paid_until_ns.load(Ordering::Relaxed).max(now_ns).saturating_add(REGAIN_NS);
        // A race lets one line more through, or one less: harmless.
        if next <= now_ns.saturating_add(BURST * REGAIN_NS) {
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
        match PLACE.may_log() {
            Some(0) => tracing::warn!($($arg)*),
            Some(unsaid) => tracing::warn!(unsaid, $($arg)*),
            None => {}
        }
    }};
}
pub(crate) use warn_limited;

/// Foreign text as it may appear in a log line or an error: control characters are shown as escapes, and what is too
/// long is cut.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

/// Characters of a foreign text that are shown.
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
    use super::{BURST, Clean, Place, REGAIN_NS, SHOWN};

    #[test]
    fn a_place_logs_a_burst_and_then_one_line_each_interval() {
        let place = Place::new();
        let start = 1_000_000_000_000;
        assert_eq!((0..100).filter(|_| place.may_log_at(start).is_some()).count() as u64, BURST);
        assert_eq!(place.may_log_at(start + REGAIN_NS), Some(95));
        assert_eq!(place.may_log_at(start + REGAIN_NS), None);
    }

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(Clean("a\u{1b}[2J\n\u{202e}x é").to_string(), "a\\u{1b}[2J\\u{a}\\u{202e}x é");
        assert_eq!(Clean(&"x".repeat(1000)).to_string().chars().count(), SHOWN + 1);
    }
}
