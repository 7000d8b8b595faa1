//! Chooses what to attach to: tracepoints by name, of a file, a process or a container.

use std::{fs::File, io, path::PathBuf, sync::Arc};

use chainscope_ebpf::{
    Error as ProbeError,
    trace::{self, LocationId, MAX_ARGUMENTS, TraceProbe},
};
use chainscope_trace::{Attachment, Pattern};
use chainscope_usdt::{Argument, Contract, Image, Location, ReadCache, best_match};

use super::{
    process::{KnownImages, ProcessError, new_images_of, processes_of_container},
    values::fetch_of,
};

/// What is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Every process that runs this file, those that start later as well.
    File(PathBuf),
    /// A process, with the libraries that it has loaded.
    Process(u32),
    /// The processes that run in a container: by its id, or its name in Docker.
    Container(String),
}

/// A tracepoint location that is selected, and cannot be attached.
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

/// Nothing can be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The probe cannot be loaded, or not be attached.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The file cannot be read.
    #[error("{}: {cause}", .path.display())]
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

fn reasons(skipped: &[Skipped]) -> String {
    let reasons = skipped
        .iter()
        .map(|skipped| format!("; {} at {:#x}: {}", skipped.tracepoint, skipped.location, skipped.reason));
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
struct Mapped {
    path: PathBuf,
    file: File,
    image: Image,
    pid: Option<u32>,
}

/// What is to be attached.
#[derive(Debug)]
pub(super) struct Selected {
    /// Tracepoints of any of the patterns, or all if there are none.
    pub(super) patterns: Vec<Pattern>,
    /// The one that fits an image best names its arguments.
    pub(super) contracts: Vec<Contract>,
    /// Longest payload.
    pub(super) max_payload: u64,
}

/// A process that is observed.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The files that it has, or had, mapped as code.
    known: KnownImages,
}

/// What was attached, and what was not.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) attached: Vec<Attached>,
    pub(super) skipped: Vec<Skipped>,
    /// The processes that are observed, unless it is every one of a file.
    pub(super) processes: Vec<Process>,
}

/// Attaches the probe to what is selected.
pub(super) fn attach(
    probe: &mut TraceProbe,
    observed: &Observed,
    selection: &Selected,
) -> Result<Outcome, AttachError> {
    let mut outcome = Outcome::default();
    for mapped in files(observed, &mut outcome.processes)? {
        attach_file(probe, &mapped, selection, &mut outcome)?;
    }
    if outcome.attached.is_empty() {
        return Err(AttachError::Nothing {
            patterns: selection.patterns.iter().map(Pattern::to_string).collect(),
            skipped: outcome.skipped,
        });
    }
    Ok(outcome)
}

/// Attaches to the files that a process has mapped since the last time: libraries that it has loaded, a program that it
/// executes. What cannot be attached is skipped.
pub(super) fn attach_new(probe: &mut TraceProbe, process: &mut Process, selection: &Selected) -> Outcome {
    let mut outcome = Outcome::default();
    // Of a process that ends there is nothing new.
    for mapped in of_process(process).unwrap_or_default() {
        if let Err(error) = attach_file(probe, &mapped, selection, &mut outcome) {
            let (tracepoint, file) = ("*:*".to_owned(), mapped.path.display().to_string());
            outcome.skipped.push(Skipped { tracepoint, file, location: 0, reason: error.to_string() });
        }
    }
    outcome
}

fn files(observed: &Observed, processes: &mut Vec<Process>) -> Result<Vec<Mapped>, AttachError> {
    match observed {
        Observed::File(path) => {
            let fail = |cause| AttachError::File { path: path.clone(), cause };
            let file = super::open(path).map_err(fail)?;
            let copy = file.try_clone().map_err(fail)?;
            let image = Image::read(&ReadCache::new(copy)).map_err(io::Error::other).map_err(fail)?;
            Ok(vec![Mapped { path: path.clone(), file, image, pid: None }])
        }
        Observed::Process(pid) => {
            let mut process = Process { pid: *pid, known: KnownImages::default() };
            let files = of_process(&mut process)?;
            processes.push(process);
            Ok(files)
        }
        Observed::Container(name) => {
            let found = processes_of_container(name);
            let found = found.map_err(|cause| AttachError::Container { name: name.clone(), cause })?;
            let mut files = Vec::new();
            for pid in found {
                let mut process = Process { pid, known: KnownImages::default() };
                match of_process(&mut process) {
                    Ok(mapped) => {
                        processes.push(process);
                        files.extend(mapped);
                    }
                    // The others of the container are still there.
                    Err(ProcessError::Missing(_) | ProcessError::Ended(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(files)
        }
    }
}

fn of_process(process: &mut Process) -> Result<Vec<Mapped>, ProcessError> {
    let pid = process.pid;
    let images = new_images_of(pid, &mut process.known)?.into_iter();
    let readable = images.filter_map(|mapped| Some((mapped.path, mapped.file?, mapped.image.ok()?)));
    Ok(readable.map(|(path, file, image)| Mapped { path, file, image, pid: Some(pid) }).collect())
}

fn attach_file(
    probe: &mut TraceProbe,
    mapped: &Mapped,
    Selected { patterns, contracts, max_payload }: &Selected,
    outcome: &mut Outcome,
) -> Result<(), AttachError> {
    let file = mapped.path.display().to_string();
    let program = mapped.path.file_name().and_then(|name| name.to_str());
    let contract = best_match(contracts, &mapped.image, program).map(|found| found.contract);
    let (mut points, mut described) = (Vec::new(), Vec::new());
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
            match point(location, &attachment, *max_payload) {
                Ok(point) => {
                    points.push(point);
                    described.push((Arc::new(attachment), location.arguments.clone()));
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
    let (_, ids) = probe.attach(&mapped.file, mapped.pid, &points)?;
    let attached = ids.into_iter().zip(described);
    outcome.attached.extend(attached.map(|(id, (attachment, arguments))| Attached { id, attachment, arguments }));
    Ok(())
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
