//! Levels of log messages.

use std::fmt;
use std::str::FromStr;

/// Level of a log message, in ascending order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Finest.
    Trace = 0,
    /// For developers.
    Debug = 1,
    /// Normal operation.
    Info = 2,
    /// Normal, but significant.
    Notice = 3,
    /// A condition to look at.
    Warning = 4,
    /// Something failed.
    Error = 5,
    /// The program or a part of it cannot continue.
    Fatal = 6,
}

/// A name that is no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown log level {0:?}; levels are trace, debug, info, notice, warning (or warn), error and fatal")]
pub struct UnknownLevel(pub String);

impl Level {
    /// All levels, ascending.
    pub const ALL: [Self; 7] =
        [Self::Trace, Self::Debug, Self::Info, Self::Notice, Self::Warning, Self::Error, Self::Fatal];

    /// Name in answers of the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "Trace",
            Self::Debug => "Debug",
            Self::Info => "Info",
            Self::Notice => "Notice",
            Self::Warning => "Warning",
            Self::Error => "Error",
            Self::Fatal => "Fatal",
        }
    }

    /// The level of a number that [`Level`] was converted to.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The level of a syslog severity, 0 to 7 (RFC 5424, 6.2.1).
    #[must_use]
    pub fn from_severity(severity: u8) -> Option<Self> {
        Some(match severity {
            0..=2 => Self::Fatal,
            3 => Self::Error,
            4 => Self::Warning,
            5 => Self::Notice,
            6 => Self::Info,
            7 => Self::Debug,
            _ => return None,
        })
    }

    /// The level of a word in upper case, as Octez and slog-term write it.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "TRACE" | "TRCE" => Self::Trace,
            "DEBUG" | "DEBG" => Self::Debug,
            "INFO" => Self::Info,
            "NOTICE" => Self::Notice,
            "WARN" | "WARNING" => Self::Warning,
            "ERROR" | "ERRO" => Self::Error,
            "FATAL" | "CRIT" => Self::Fatal,
            _ => return None,
        })
    }

    /// The level of a number of bunyan, as slog-json writes it.
    pub(crate) fn from_bunyan(number: u64) -> Option<Self> {
        Some(match number {
            10 => Self::Trace,
            20 => Self::Debug,
            30 => Self::Info,
            40 => Self::Warning,
            50 => Self::Error,
            60 => Self::Fatal,
            _ => return None,
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;

    /// Reads a name of the API's filter, in any case.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is = |level: &&Self| level.name().eq_ignore_ascii_case(name);
        match Self::ALL.iter().find(is) {
            Some(level) => Ok(*level),
            None if name.eq_ignore_ascii_case("warn") => Ok(Self::Warning),
            None => Err(UnknownLevel(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for level in Level::ALL {
            assert_eq!(level.name().to_uppercase().parse(), Ok(level));
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
        assert_eq!("warn".parse(), Ok(Level::Warning));
        assert_eq!("foo".parse::<Level>(), Err(UnknownLevel("foo".to_owned())));
        assert_eq!(Level::from_number(7), None);
    }

    #[test]
    fn severities_keep_their_order() {
        let levels: Vec<_> = (0..8).filter_map(Level::from_severity).collect();
        assert!(levels.windows(2).all(|pair| pair[0] >= pair[1]), "{levels:?}");
        assert_eq!((levels.len(), Level::from_severity(8)), (8, None));
    }
}
