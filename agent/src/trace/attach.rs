//! Chooses what to attach to: tracepoints by name. `follow` finds the files.

use std::{fmt, fs::File, io, path::PathBuf, sync::Arc};

use chainscope_ebpf::{
    Error as ProbeError,
    trace::{self, LocationId, MAX_ARGUMENTS, TraceProbe},
};
use chainscope_hygiene::{Escaped, EscapedTruncated, escaped_path};
use chainscope_trace::{Attachment, Pattern};
use chainscope_usdt::{Argument, Contract, Image, Location, best_match};
use parking_lot::Mutex;

use super::{
    process::{self, ProcessError},
    values::fetch_of,
};

/// What is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Every process that runs this file, those that start later as well.
    File(PathBuf),
    /// A process, with the libraries that it has loaded.
    Process(u32),
    /// The processes that run in a container, those that start later as well: by its id, or its name in Docker.
    Container(String),
}

/// What is wanted of it.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Tracepoints of any of the patterns; all if there are none.
    pub patterns: Vec<Pattern>,
    /// The one that fits a file best names the arguments and gives their types.
    pub contracts: Vec<Contract>,
    /// Whether the user named them. Otherwise one has to have most tracepoints in common with the file.
    pub is_contract_named: bool,
}

/// A tracepoint location that is selected, and cannot be attached, or is attached in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// `provider:name`
    pub tracepoint: String,
    /// Path of the ELF file.
    pub file: String,
    /// Address of the location in the image.
    pub location: u64,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tracepoint, file, location, reason } = self;
        let (tracepoint, file, reason) = (Escaped(tracepoint), EscapedTruncated(file), Escaped(reason));
        write!(f, "{tracepoint} at {location:#x} of {file} is not traced: {reason}")
    }
}

/// Nothing can be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The probe cannot be loaded, or not be attached.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The thread that reads events cannot be started.
    #[error(transparent)]
    Reader(#[from] crate::Error),
    /// The file cannot be read.
    #[error("{}: {cause}", escaped_path(.path))]
    File {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The process cannot be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The container has no processes, or is not known.
    #[error("container {name}: {cause}")]
    Container {
        /// What was asked for.
        name: String,
        /// Why.
        cause: io::Error,
    },
    /// There is no such tracepoint, or none that can be attached.
    #[error("no tracepoint to attach to matches {}{}", .patterns.join(", "), reasons(.skipped))]
    Nothing {
        /// The patterns.
        patterns: Vec<String>,
        /// Those that match.
        skipped: Vec<Skipped>,
    },
}

impl AttachError {
    /// Whether there is not enough memory for the ring.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Probe(ProbeError::NoMemory { .. }))
    }
}

fn reasons(skipped: &[Skipped]) -> String {
    let reasons = skipped.iter().map(|Skipped { tracepoint, location, reason, .. }| {
        format!("; {} at {location:#x}: {}", Escaped(tracepoint), Escaped(reason))
    });
    reasons.collect()
}

/// A location that is attached.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) id: LocationId,
    pub(super) attachment: Arc<Attachment>,
    /// What the note says of the arguments.
    pub(super) arguments: Vec<Argument>,
}

/// A file to attach to.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) image: Image,
    /// The process that has it mapped, if not all are observed.
    pub(super) pid: Option<u32>,
    /// What is added to an address of the image to get the address in that process.
    pub(super) bias: Option<u64>,
}

/// What is to be attached.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) wanted: Wanted,
    /// Longest payload.
    pub(super) max_payload: u64,
}

/// What was attached, and what was not.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) attached: Vec<Attached>,
    pub(super) skipped: Vec<Skipped>,
}

/// Attaches the probe to what is selected of files.
pub(super) fn attach(probe: &Mutex<TraceProbe>, files: &[Mapped], selected: &Selected) -> Result<Outcome, AttachError> {
    let mut outcome = Outcome::default();
    for mapped in files {
        attach_file(probe, mapped, selected, &mut outcome)?;
    }
    if outcome.attached.is_empty() {
        return Err(AttachError::Nothing {
            patterns: selected.wanted.patterns.iter().map(Pattern::to_string).collect(),
            skipped: outcome.skipped,
        });
    }
    Ok(outcome)
}

/// Attaches to files that were added. What cannot be attached is skipped.
pub(super) fn attach_added(probe: &Mutex<TraceProbe>, files: &[Mapped], selected: &Selected) -> Outcome {
    let mut outcome = Outcome::default();
    for mapped in files {
        if let Err(error) = attach_file(probe, mapped, selected, &mut outcome) {
            let (tracepoint, file) = ("*:*".to_owned(), mapped.path.display().to_string());
            outcome.skipped.push(Skipped { tracepoint, file, location: 0, reason: error.to_string() });
        }
    }
    outcome
}

fn attach_file(
    probe: &Mutex<TraceProbe>,
    mapped: &Mapped,
    Selected { wanted, max_payload }: &Selected,
    outcome: &mut Outcome,
) -> Result<(), AttachError> {
    let Wanted { patterns, contracts, is_contract_named } = wanted;
    let file = mapped.path.display().to_string();
    let program = mapped.path.file_name().and_then(|name| name.to_str());
    let found = best_match(contracts, &mapped.image, program);
    let contract = found.filter(|found| *is_contract_named || found.is_likely()).map(|found| found.contract);
    let (build_id, mut points, mut described) = (mapped.image.build_id_hex(), Vec::new(), Vec::new());
    for tracepoint in &mapped.image.tracepoints {
        let name = tracepoint.full_name();
        let is_match = |pattern: &Pattern| pattern.matches(&tracepoint.provider, &tracepoint.name);
        if !patterns.is_empty() && !patterns.iter().any(is_match) {
            continue;
        }
        let expected = contract
            .and_then(|contract| Some((contract.name(), contract.tracepoint(&tracepoint.provider, &tracepoint.name)?)));
        for location in &tracepoint.locations {
            let expected = expected.as_ref().map(|(contract, expected)| (contract.as_str(), *expected));
            let attachment = Attachment::new(&tracepoint.provider, &tracepoint.name, &file, location, expected);
            let attachment = Attachment { build_id: build_id.clone(), ..attachment };
            match point(location, &attachment, *max_payload) {
                Ok(point) => {
                    points.push(point);
                    described.push((Arc::new(attachment), location));
                }
                Err(reason) => {
                    let (tracepoint, file) = (name.clone(), file.clone());
                    outcome.skipped.push(Skipped { tracepoint, file, location: location.address, reason });
                }
            }
        }
    }
    if points.is_empty() {
        return Ok(());
    }
    let (_, ids) = probe.lock().attach(&mapped.file, mapped.pid, &points)?;
    for (id, (attachment, location)) in ids.into_iter().zip(described) {
        if let Some(reason) = silence(mapped, location) {
            let (tracepoint, file) = (attachment.full_name(), file.clone());
            outcome.skipped.push(Skipped { tracepoint, file, location: location.address, reason });
        }
        outcome.attached.push(Attached { id, attachment, arguments: location.arguments.clone() });
    }
    Ok(())
}

/// Why the program does not hit a location that is attached: the kernel increments semaphores in writable mappings only, and passes
/// over others in silence.
fn silence(mapped: &Mapped, location: &Location) -> Option<String> {
    let address = location.semaphore?.address.wrapping_add(mapped.bias?);
    // One that cannot be read may be right.
    let value = process::semaphore(mapped.pid?, address).ok()?;
    (value == 0)
        .then(|| format!("its semaphore is 0 all the same: the memory at {address:#x} of the process is read-only"))
}

/// How the probe captures a location.
fn point(location: &Location, attachment: &Attachment, max_payload: u64) -> Result<trace::Location, String> {
    let count = location.arguments.len();
    if count > MAX_ARGUMENTS {
        return Err(format!("{count} arguments are more than {MAX_ARGUMENTS}"));
    }
    let offset = location.offset.ok_or("its address is in no executable segment")?;
    let semaphore = match location.semaphore {
        None => None,
        Some(semaphore) => Some(semaphore.offset.ok_or("its semaphore is in no writable segment")?),
    };
    let kinds = attachment.arguments.iter().map(|argument| fetch_of(argument.meaning.kind, max_payload));
    Ok(trace::Location { offset, semaphore, arguments: location.arguments.iter().cloned().zip(kinds).collect() })
}

#[cfg(test)]
mod tests {
    use std::io;

    use chainscope_hygiene::is_printable;

    use super::{AttachError, Skipped};

    #[test]
    fn names_of_an_observed_process_do_not_control_a_terminal() {
        let name = "net\u{1b}]0;title\u{7}:\u{202e}sent\n";
        let escaped = "net\\u{1b}]0;title\\u{7}:\\u{202e}sent\\u{a}";
        let skipped = Skipped {
            tracepoint: name.to_owned(),
            file: format!("/opt/{name}"),
            location: 0x1000,
            reason: format!("{name} is in no executable segment"),
        };
        let note = skipped.to_string();
        let nothing = AttachError::Nothing { patterns: vec!["net:*".to_owned()], skipped: vec![skipped] }.to_string();
        let file = AttachError::File { path: name.into(), cause: io::ErrorKind::NotFound.into() }.to_string();
        for text in [note, nothing, file] {
            assert!(text.chars().all(is_printable) && text.contains(escaped), "{text:?}");
        }
    }
}
