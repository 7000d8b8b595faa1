//! Log lines with known times, levels and texts: the pattern of the TezEdge debugger's tests, ten thousand lines one second
//! apart, and a line for each combination of a few words.

use std::ops::Range;

/// Time of line 0, seconds since 1970: 2021-07-14T12:00:00Z.
pub const START: u64 = 1_626_264_000;
/// Number of lines of the pattern; all of them are of one day.
pub const LINES: u64 = 10_000;
/// The words of [`word_lines`].
pub const WORDS: [&str; 8] = ["peer", "branch", "head", "chain", "address", "ip", "message", "connection"];

/// A line and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Seconds since 1970.
    pub time: u64,
    /// Name of the level in answers of the API: `Info`, `Warning` or `Error`.
    pub level: &'static str,
    /// The text without time and level.
    pub text: String,
}

/// Lines of the pattern: line `i` is of the time `START + i`. The same numbers give the same lines.
///
/// # Panics
/// If a number is not less than [`LINES`].
pub fn lines(numbers: Range<u64>) -> impl Iterator<Item = LogLine> {
    assert!(numbers.end <= LINES, "{} lines", numbers.end);
    numbers.map(|number| {
        let time = START + number;
        let level = match time % 19 {
            1 | 4 | 5 | 8 => "Warning",
            7 | 10 => "Error",
            _ => "Info",
        };
        let mut random = Random(number);
        let mut text = String::from("some");
        for _ in 0..16 {
            text.push_str(&format!(" {:016x}", random.next()));
        }
        LogLine { time, level, text }
    })
}

/// 255 lines of the level Info and the time [`START`]: one for each non-empty set of [`WORDS`], each in an order of its own.
#[must_use]
pub fn word_lines() -> Vec<LogLine> {
    let mut random = Random(u64::MAX);
    let line = |set: u32| {
        let mut words: Vec<&str> = (0..8).filter(|bit| set & 1 << bit != 0).map(|bit| WORDS[bit]).collect();
        for last in (1..words.len()).rev() {
            words.swap(last, random.next() as usize % (last + 1));
        }
        LogLine { time: START, level: "Info", text: words.join(" ") }
    };
    (1..256).map(line).collect()
}

impl LogLine {
    /// The time in nanoseconds since 1970.
    #[must_use]
    pub fn time_ns(&self) -> i64 {
        self.time as i64 * 1_000_000_000
    }

    /// As a node's syslog driver sends it (RFC 5424), with the node's own time and level in the text.
    #[must_use]
    pub fn syslog(&self) -> String {
        let (time, word) = (self.clock(), self.word());
        let text = &self.text;
        format!("<27>1 {time}Z wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000 {word} {text}")
    }

    /// As Octez writes it to its log file.
    #[must_use]
    pub fn octez(&self) -> String {
        let number = match self.level {
            "Warning" => 4,
            "Error" => 3,
            _ => 6,
        };
        format!("<{number:03}> {}.000-00:00 [test.lines] {}", self.clock(), self.text)
    }

    fn clock(&self) -> String {
        let seconds = self.time - START;
        format!("2021-07-14T{:02}:{:02}:{:02}", 12 + seconds / 3600, seconds / 60 % 60, seconds % 60)
    }

    fn word(&self) -> &'static str {
        match self.level {
            "Warning" => "WARN",
            "Error" => "ERROR",
            _ => "INFO",
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
