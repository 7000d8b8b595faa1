//! Errors with an exit code and advice.

use std::{error::Error, fmt};

/// How the program exits after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command failed: 1.
    Error,
    /// The command line is wrong, or a right or a prerequisite is missing: 2. Repeating the command does not help.
    Refused,
    /// The command did what it was asked for, and the result is a failure: its own code.
    Result(u8),
}

impl Exit {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Error => 1,
            Self::Refused => 2,
            Self::Result(code) => code,
        }
    }
}

/// An error with advice on what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    exit: Exit,
    /// Status of the response that it comes from.
    status: Option<u16>,
}

impl Failure {
    /// An error with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: Exit::Error, status: None }
    }

    /// A right or a prerequisite is missing, or the command line is wrong: exit code 2.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { exit: Exit::Refused, ..Self::new(message) }
    }

    /// A result that is a failure, with an exit code of its own.
    pub(crate) fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { exit: Exit::Result(code), ..Self::new(message) }
    }

    /// A response with a status that is an error.
    pub(crate) fn response(status: u16, message: impl Into<String>) -> Self {
        let exit = if matches!(status, 401 | 403) { Exit::Refused } else { Exit::Error };
        Self { exit, status: Some(status), ..Self::new(message) }
    }

    /// The same with advice.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The failure that an error is, or is caused by.
    fn of(error: &anyhow::Error) -> Option<&Self> {
        error.chain().find_map(|cause| cause.downcast_ref())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

/// An error with its causes on one line, each once: many messages repeat the cause that they have.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        let cause = cause.trim_end();
        if !text.ends_with(cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text += separator;
            text += cause;
        }
    }
    text
}

/// The exit code after an error.
pub(crate) fn exit(error: &anyhow::Error) -> Exit {
    Failure::of(error).map_or(Exit::Error, |failure| failure.exit)
}

/// What to do about an error.
pub(crate) fn hint(error: &anyhow::Error) -> Option<&str> {
    Failure::of(error)?.hint.as_deref()
}

/// Status of the response that an error comes from.
pub(crate) fn status(error: &anyhow::Error) -> Option<u16> {
    Failure::of(error)?.status
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cause_that_a_message_repeats_is_shown_once() {
        let error = anyhow::anyhow!("line 1\nwrong\n").context("a.toml: line 1\nwrong\n").context("configuration");
        assert_eq!(super::one_line(&error), "configuration: a.toml: line 1\nwrong");
    }
}
