//! The files of what is observed, and those that are added while it is: libraries that a process loads, the programs of processes
//! that start in a container, a file that takes the place of the observed one.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use chainscope_hygiene::EscapedTruncated;
use chainscope_usdt::{Image, ReadCache};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    attach::{AttachError, Mapped, Observed},
    process::{KnownImages, ProcessError, containers_named, new_images_of, processes_of},
};
use crate::targets::ContainerId;

/// What is observed, as it is at the moment.
#[derive(Debug)]
pub(super) struct Followed {
    what: What,
    processes: Vec<Process>,
}

#[derive(Debug)]
enum What {
    /// Every process of a file. Device and inode are those of the one that is attached; `problem` is why another one is not.
    File {
        path: PathBuf,
        identity: (u64, u64),
        problem: Option<String>,
    },
    Process,
    Container(Vec<ContainerId>),
}

/// A process that is observed.
#[derive(Debug)]
struct Process {
    pid: u32,
    handle: OwnedFd,
    /// The files that it has, or had, mapped as code.
    known: KnownImages,
}

/// What was added.
#[derive(Debug, Default)]
pub(super) struct Added {
    pub(super) files: Vec<Mapped>,
    /// What the user has to know of it.
    pub(super) notices: Vec<String>,
}

impl Followed {
    /// Finds the files.
    pub(super) fn begin(observed: &Observed) -> Result<(Self, Vec<Mapped>), AttachError> {
        match observed {
            Observed::File(path) => {
                let (mapped, identity) = open(path).map_err(|cause| AttachError::File { path: path.clone(), cause })?;
                let what = What::File { path: path.clone(), identity, problem: None };
                Ok((Self { what, processes: Vec::new() }, vec![mapped]))
            }
            Observed::Process(pid) => {
                let mut process = Process::open(*pid)?;
                let files = process.added()?;
                Ok((Self { what: What::Process, processes: vec![process] }, files))
            }
            Observed::Container(name) => {
                let fail = |cause| AttachError::Container { name: name.clone(), cause };
                let containers = containers_named(name).map_err(fail)?;
                let mut followed = Self { what: What::Container(containers), processes: Vec::new() };
                let files = followed.find_processes()?;
                if followed.processes.is_empty() {
                    return Err(fail(io::Error::new(io::ErrorKind::NotFound, "no process runs in such a container")));
                }
                Ok((followed, files))
            }
        }
    }

    /// Looks again. What cannot be read is passed over: processes end.
    pub(super) fn rescan(&mut self) -> Added {
        self.processes.retain(|process| !process.has_ended());
        let mut added = Added::default();
        for process in &mut self.processes {
            added.files.extend(process.added().unwrap_or_default());
        }
        match &mut self.what {
            What::Process => {}
            What::Container(_) => added.files.extend(self.find_processes().unwrap_or_default()),
            What::File { path, identity, problem } => {
                let found = fs::metadata(&*path).map(|found| (found.dev(), found.ino()));
                if found.is_ok_and(|found| found != *identity) {
                    let shown = path.to_string_lossy();
                    let shown = EscapedTruncated(&shown);
                    match open(path) {
                        Ok((mapped, other)) => {
                            (*identity, *problem) = (other, None);
                            added.files.push(mapped);
                            added
                                .notices
                                .push(format!("{shown} was replaced: processes of the new file are traced as well"));
                        }
                        // It may not be complete yet.
                        Err(cause) => {
                            let cause =
                                format!("{shown} was replaced: processes of the new file are not traced: {cause}");
                            if problem.as_ref() != Some(&cause) {
                                added.notices.push(cause.clone());
                                *problem = Some(cause);
                            }
                        }
                    }
                }
            }
        }
        added
    }

    /// Whether every observed process has ended, as far as it was looked. Of a file others may start.
    pub(super) fn has_ended(&self) -> bool {
        self.processes.is_empty() && !matches!(self.what, What::File { .. })
    }

    /// Adds the processes of the containers that are not known, and returns their files.
    fn find_processes(&mut self) -> Result<Vec<Mapped>, ProcessError> {
        let What::Container(containers) = &self.what else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for pid in processes_of(containers) {
            if self.processes.iter().any(|process| process.pid == pid) {
                continue;
            }
            match Process::open(pid).and_then(|mut process| Ok((process.added()?, process))) {
                Ok((found, process)) => {
                    self.processes.push(process);
                    files.extend(found);
                }
                // The others of the container are still there.
                Err(ProcessError::Missing(_) | ProcessError::Ended(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }
}

impl Process {
    fn open(pid: u32) -> Result<Self, ProcessError> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ProcessError::Missing(pid))?;
        let handle = pidfd_open(id, PidfdFlags::empty()).map_err(|_| ProcessError::Missing(pid))?;
        Ok(Self { pid, handle, known: KnownImages::default() })
    }

    /// The files that it has mapped as code since the last time.
    fn added(&mut self) -> Result<Vec<Mapped>, ProcessError> {
        let images = new_images_of(self.pid, &mut self.known)?.into_iter();
        let readable = images.filter_map(|found| Some((found.path, found.file?, found.image.ok()?, found.bias)));
        let pid = Some(self.pid);
        Ok(readable.map(|(path, file, image, bias)| Mapped { path, file, image, pid, bias }).collect())
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// Opens a file, with its device and inode.
fn open(path: &Path) -> io::Result<(Mapped, (u64, u64))> {
    let file = super::open(path)?;
    let found = file.metadata()?;
    let image = Image::read(&ReadCache::new(file.try_clone()?)).map_err(io::Error::other)?;
    let path = path.to_owned();
    Ok((Mapped { path, file, image, pid: None, bias: None }, (found.dev(), found.ino())))
}
