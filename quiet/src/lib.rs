//! What must not get out of our programs. What peers and other programs can make us print: log lines at a bounded rate a
//! place ([`warn_limited`]), and their text without the characters that a terminal or a log viewer would obey ([`Clean`],
//! [`Harmless`]). And memory with keys in it ([`protect_process`]).

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

/// Lines a place may write in a row.
const BURST: u64 = 5;
/// Nanoseconds in which a place regains one line.
const REGAIN_NS: u64 = 10_000_000_000;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How much one place in the code has logged lately: a token bucket in one word, the time up to which its lines are
/// paid for.
#[derive(Debug, Default)]
pub struct Place {
    paid_until_ns: AtomicU64,
    silent: AtomicU64,
}

impl Place {
    /// A place that has logged nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { paid_until_ns: AtomicU64::new(0), silent: AtomicU64::new(0) }
    }

    /// Whether the place may log now; if so, how many lines it kept to itself since the last.
    pub fn may_log(&self) -> Option<u64> {
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

/// Logs a warning, rate-limited for this place in the code: five in a row, then one in ten seconds, which says how many
/// were kept back. Takes what `tracing::warn!` takes.
#[macro_export]
macro_rules! warn_limited {
    ($($arg:tt)*) => {{
        static PLACE: $crate::Place = $crate::Place::new();
        match PLACE.may_log() {
            Some(0) => $crate::tracing::warn!($($arg)*),
            Some(unsaid) => $crate::tracing::warn!(unsaid, $($arg)*),
            None => {}
        }
    }};
}
#[doc(hidden)]
pub use tracing;

/// Foreign text with control characters, and what turns the direction of text around it, shown as escapes.
#[derive(Debug, Clone, Copy)]
pub struct Harmless<'a>(pub &'a str);

/// The same for a log line or an error: what is too long is cut.
#[derive(Debug, Clone, Copy)]
pub struct Clean<'a>(pub &'a str);

/// Characters of a foreign text that a log line shows.
const SHOWN: usize = 200;

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| show(character, f))
    }
}

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        characters.by_ref().take(SHOWN).try_for_each(|character| show(character, f))?;
        if characters.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

fn show(character: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if is_harmless(character) { f.write_char(character) } else { write!(f, "{}", character.escape_unicode()) }
}

/// Neither a control character nor one of those that turn the direction of text around it.
fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BURST, Clean, Harmless, Place, REGAIN_NS, SHOWN};

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

    proptest! {
        #[test]
        fn nothing_controls_a_terminal(text in any::<String>()) {
            prop_assert!(Harmless(&text).to_string().chars().all(|character| !character.is_control()));
            prop_assert!(Clean(&text).to_string().chars().all(|character| !character.is_control()));
        }
    }
}
