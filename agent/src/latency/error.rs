//! Errors of a recording.

use std::{
    io,
    path::{Path, PathBuf},
};

use chainscope_functions::{Error as FileError, FindError};
use chainscope_hygiene::{Escaped, escaped_path};

use super::Skipped;

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is no process with this id.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// Neither a process nor a file is named.
    #[error("no process and no file to observe")]
    NoProgram,
    /// The file cannot be read.
    #[error("{}: {cause}", escaped_path(.path))]
    File {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Its symbols cannot be read.
    #[error("{}: {cause}", escaped_path(.path))]
    Symbols {
        /// Its path.
        path: PathBuf,
        /// Why.
        cause: FileError,
    },
    /// A pattern selects nothing, or too much.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The program is written in Go.
    #[error("{}: a Go program, whose stacks move while a function runs: its functions cannot be timed", escaped_path(.0))]
    Go(PathBuf),
    /// The program is written in OCaml, with effects.
    #[error(
        "{}: an OCaml program with effects, whose stacks move while a function runs: its functions cannot be timed", escaped_path(.0)
    )]
    OcamlEffects(PathBuf),
    /// Return probes were demanded for a program that is written in OCaml.
    #[error(
        "{}: an OCaml program, which a return probe would crash in its next garbage collection: probe its exits by instruction",
        escaped_path(.0)
    )]
    OcamlReturns(PathBuf),
    /// The process has not mapped code of the file.
    #[error("process {pid} has not loaded {}{}", escaped_path(.path), elsewhere(.known.as_deref()))]
    NotMapped {
        /// Its id.
        pid: u32,
        /// The file.
        path: PathBuf,
        /// A file of the same name that it has.
        known: Option<PathBuf>,
    },
    /// More spans are selected than a recording has.
    #[error("{count} functions and spans are selected, more than the {max} of a recording: select fewer")]
    TooManySpans {
        /// How many are selected.
        count: usize,
        /// The maximum.
        max: usize,
    },
    /// Functions were found, and none can be probed.
    #[error("no function can be timed{}", reasons(.0))]
    Nothing(Vec<Skipped>),
    /// The probe cannot be loaded, or not be attached.
    #[error(transparent)]
    Probe(#[from] chainscope_ebpf::Error),
}

fn elsewhere(known: Option<&Path>) -> String {
    known.map(|known| format!(": it has loaded {}", escaped_path(known))).unwrap_or_default()
}

fn reasons(skipped: &[Skipped]) -> String {
    let reason = |skipped: &Skipped| format!("; {}: {}", Escaped(&skipped.function), Escaped(&skipped.reason));
    skipped.iter().map(reason).collect()
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use chainscope_functions::Error as FileError;
    use chainscope_hygiene::is_printable;

    use super::{RecordError, Skipped};

    #[test]
    fn names_of_an_observed_process_do_not_control_a_terminal() {
        let name = "/opt/\u{1b}]0;title\u{7}\u{202e}\n\u{9b}31m";
        let escaped = "/opt/\\u{1b}]0;title\\u{7}\\u{202e}\\u{a}\\u{9b}31m";
        let path = || PathBuf::from(name);
        let skipped = Skipped { function: name.to_owned(), reason: format!("nearest: {name}") };
        let errors = [
            RecordError::File { path: path(), cause: io::ErrorKind::NotFound.into() },
            RecordError::Symbols { path: path(), cause: FileError::Machine(183) },
            RecordError::Go(path()),
            RecordError::OcamlEffects(path()),
            RecordError::OcamlReturns(path()),
            RecordError::NotMapped { pid: 1, path: "/opt/other".into(), known: Some(path()) },
            RecordError::NotMapped { pid: 1, path: path(), known: None },
            RecordError::Nothing(vec![skipped]),
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(error.chars().all(is_printable) && error.contains(escaped), "{error:?}");
        }
    }
}
