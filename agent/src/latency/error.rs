//! Errors of a recording.

use std::{
    io,
    path::{Path, PathBuf},
};

use chainscope_functions::{Error as FileError, FindError};

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
    #[error("{}: {cause}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Its symbols cannot be read.
    #[error("{}: {cause}", .path.display())]
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
    #[error("{}: a Go program, whose stacks move while a function runs: its functions cannot be timed", .0.display())]
    Go(PathBuf),
    /// The program is written in OCaml, with effects.
    #[error(
        "{}: an OCaml program with effects, whose stacks move while a function runs: its functions cannot be timed", .0.display()
    )]
    OcamlEffects(PathBuf),
    /// Return probes were demanded for a program that is written in OCaml.
    #[error(
        "{}: an OCaml program, which a return probe would crash in its next garbage collection: probe its exits by instruction",
        .0.display()
    )]
    OcamlReturns(PathBuf),
    /// The process has not mapped code of the file.
    #[error("process {pid} has not loaded {}{}", .path.display(), elsewhere(.known.as_deref()))]
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
    known.map(|known| format!(": it has loaded {}", known.display())).unwrap_or_default()
}

fn reasons(skipped: &[Skipped]) -> String {
    skipped.iter().map(|skipped| format!("; {}: {}", skipped.function, skipped.reason)).collect()
}
