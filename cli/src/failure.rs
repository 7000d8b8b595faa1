//! Errors with an exit code and advice.

use std::{
    error::Error,
    fmt,
    io::{self, ErrorKind},
};

use chainscope_agent::{Error as AgentError, ProbeError, latency::RecordError, trace::AttachError};
use chainscope_hygiene::Escaped;

/// What to do where the kernel does not permit eBPF programs, or where processes of other users cannot be read.
const RIGHTS: &str =
    "run it as root, or with the capabilities BPF and PERFMON; `chainscope run --check` lists what is missing";

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

    /// A right that recording needs is missing: exit code 2.
    pub(crate) fn not_permitted(message: impl Into<String>) -> Self {
        Self::refused(message).hint(RIGHTS)
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

/// A message with each of its lines escaped.
pub(crate) fn escaped(message: &str) -> String {
    let lines: Vec<String> = message.lines().map(|line| Escaped(line).to_string()).collect();
    lines.join("\n")
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

/// The error with advice, unless it has some. Its message, exit code and status stay.
pub(crate) fn with_hint(error: impl Into<anyhow::Error>, advice: impl Into<String>) -> anyhow::Error {
    let error = error.into();
    if hint(&error).is_some() {
        return error;
    }
    let (exit, status) = (exit(&error), status(&error));
    Failure { message: one_line(&error), hint: Some(advice.into()), exit, status }.into()
}

/// The error of a file or directory, with the advice for its kind, if there is one. A right that is missing makes it a refusal.
pub(crate) fn of_file(error: impl Into<anyhow::Error>, advice: &[(ErrorKind, &str)]) -> anyhow::Error {
    let error = error.into();
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    match advice.iter().find(|(known, _)| Some(*known) == kind) {
        Some((ErrorKind::PermissionDenied, advice)) => Failure::refused(one_line(&error)).hint(*advice).into(),
        Some((_, advice)) => with_hint(error, *advice),
        None => error,
    }
}

/// The error of what loads a probe: a refusal if the kernel does not permit it.
pub(crate) fn of_probe(error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    match error.chain().find_map(probe_error) {
        Some(ProbeError::NotPermitted { .. }) => Failure::not_permitted(one_line(&error)).into(),
        _ => error,
    }
}

/// The error of a probe that an error of the agent wraps. These are transparent, so that it is not among their sources.
fn probe_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ProbeError> {
    let (started, attached, recorded) = (error.downcast_ref(), error.downcast_ref(), error.downcast_ref());
    match (started, attached, recorded) {
        (Some(AgentError::Probe(probe)), ..)
        | (_, Some(AttachError::Probe(probe)), _)
        | (.., Some(RecordError::Probe(probe))) => Some(probe),
        _ => None,
    }
}

/// The error of a request, with advice if the server says that this parameter is malformed.
pub(crate) fn of_parameter(error: anyhow::Error, name: &str, advice: &str) -> anyhow::Error {
    let is_meant = status(&error) == Some(400) && error.to_string().contains(&format!(": {name}: "));
    if is_meant { with_hint(error, advice) } else { error }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use anyhow::Context as _;
    use chainscope_agent::{Error as AgentError, ProbeError, latency::RecordError, trace::AttachError};

    use super::{Exit, Failure, escaped, exit, hint, of_file, of_parameter, of_probe, one_line, with_hint};

    #[test]
    fn a_cause_that_a_message_repeats_is_shown_once() {
        let error = anyhow::anyhow!("line 1\nwrong\n").context("a.toml: line 1\nwrong\n").context("configuration");
        assert_eq!(one_line(&error), "configuration: a.toml: line 1\nwrong");
    }

    #[test]
    fn lines_of_a_message_remain_and_what_they_contain_is_escaped() {
        assert_eq!(escaped("a.toml: line 1\n  \u{1b}[2Jé\u{202e}\n"), "a.toml: line 1\n  \\u{1b}[2Jé\\u{202e}");
    }

    #[test]
    fn what_the_kernel_does_not_permit_is_refused() {
        let error = || ProbeError::NotPermitted { action: "load the probe".to_owned(), missing: "CAP_BPF".to_owned() };
        let wrapped: [anyhow::Error; 3] =
            [AgentError::from(error()).into(), AttachError::from(error()).into(), RecordError::from(error()).into()];
        for denied in wrapped.map(|error| of_probe(error.context("starting"))) {
            assert_eq!(exit(&denied), Exit::Refused);
            assert!(hint(&denied).is_some_and(|hint| hint.starts_with("run it as root")), "{denied}");
            assert!(one_line(&denied).starts_with("starting: not permitted to load the probe"), "{denied}");
        }
        let other = of_probe(anyhow::anyhow!("the kernel has no BTF"));
        assert_eq!((exit(&other), hint(&other)), (Exit::Error, None));
    }

    #[test]
    fn advice_on_a_file_depends_on_the_error() {
        let advice = [(ErrorKind::NotFound, "name another"), (ErrorKind::PermissionDenied, "run it as root")];
        let error = |kind: ErrorKind| {
            let read = Err::<(), _>(io::Error::from(kind));
            of_file(read.context("cannot read a.toml").unwrap_err(), &advice)
        };
        let missing = error(ErrorKind::NotFound);
        assert_eq!(one_line(&missing), "cannot read a.toml: entity not found");
        assert_eq!((exit(&missing), hint(&missing)), (Exit::Error, Some("name another")));
        let denied = error(ErrorKind::PermissionDenied);
        assert_eq!((exit(&denied), hint(&denied)), (Exit::Refused, Some("run it as root")));
        assert_eq!(hint(&error(ErrorKind::IsADirectory)), None);
    }

    #[test]
    fn advice_of_a_response_remains() {
        let response = || Failure::response(400, "http://a/v2/p2p: 400 Bad Request: types: unknown type");
        let advised = of_parameter(response().into(), "types", "name a type");
        assert_eq!((hint(&advised), super::status(&advised)), (Some("name a type"), Some(400)));
        assert_eq!(hint(&of_parameter(response().into(), "query", "quote it")), None);
        assert_eq!(hint(&with_hint(response().hint("first"), "second")), Some("first"));
    }
}
