//! Errors of loading and using a probe; each message is one sentence that names the cause.

use std::io;
use std::path::PathBuf;

use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::{BtfError, EbpfError};

/// Why a probe cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no type information.
    #[error("the kernel has no BTF ({path}: {cause}): it must be built with CONFIG_DEBUG_INFO_BTF")]
    NoBtf {
        /// Path of the BTF file.
        path: &'static str,
        /// Why it could not be read.
        cause: String,
    },
    /// The kernel lacks a helper that all programs need.
    #[error("kernel {release} lacks {need}: {} is needed", crate::kernel::KERNELS)]
    KernelTooOld {
        /// `uname -r`.
        release: String,
        /// Name of the helper.
        need: &'static str,
    },
    /// The kernel does not support the requested capture mode.
    #[error(
        "capture at sockets was asked for, but kernel {release} has no tracepoint {tracepoint} (Linux 6.3 or later)"
    )]
    NoSockTracepoints {
        /// `uname -r`.
        release: String,
        /// Name of the missing tracepoint.
        tracepoint: &'static str,
    },
    /// A required tracepoint is missing.
    #[error("kernel {release} has no tracepoint {tracepoint}: it is built without it, or too old")]
    NoTracepoint {
        /// `uname -r`.
        release: String,
        /// Name of the missing tracepoint.
        tracepoint: &'static str,
    },
    /// The process to watch does not exist or has exited.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Process id.
        pid: u32,
    },
    /// The pid namespace of a proc file system is unknown, or this process is not in it.
    #[error("the process ids of {proc} cannot be used: {cause}")]
    PidNamespace {
        /// Where it is mounted.
        proc: PathBuf,
        /// Why.
        cause: String,
    },
    /// This process lacks a capability.
    #[error("not permitted to {action}: CAP_BPF and CAP_PERFMON are needed, missing here: {missing}")]
    NotPermitted {
        /// Action that was refused.
        action: String,
        /// Names of the missing capabilities, or another possible reason.
        missing: String,
    },
    /// The kernel could not allocate a map.
    #[error("not enough memory to {action} (the ring has {ring_bytes} bytes)")]
    NoMemory {
        /// Action that was refused.
        action: String,
        /// Size of the ring.
        ring_bytes: u32,
    },
    /// The ring size is invalid.
    #[error("ring size of {0} bytes is not a power of two times the page size")]
    RingSize(u32),
    /// A limit is larger than the programs can keep.
    #[error("{limit} of {value} bytes is more than the {max} that can be captured")]
    LimitTooLarge {
        /// The limit.
        limit: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        max: u64,
    },
    /// The verifier refused a program.
    #[error("the kernel refused the program {program}: {cause}")]
    Refused {
        /// Name of the program.
        program: String,
        /// The error number and the last lines of the verifier log.
        cause: String,
    },
    /// A map of the kernel is full.
    #[error("the kernel's table of {table} is full")]
    TableFull {
        /// Name of the table.
        table: &'static str,
    },
    /// Any other error of the loader.
    #[error("cannot {action}: {cause}")]
    Load {
        /// Action that failed.
        action: String,
        /// Why it failed.
        cause: String,
    },
    /// The ring could not be mapped or waited for.
    #[error("the ring buffer cannot be used: {0}")]
    Ring(#[source] io::Error),
}

impl Error {
    /// Converts an error of the loader, without the thousands of lines of the verifier log.
    pub(crate) fn from_loader(action: String, error: &(dyn std::error::Error + 'static), ring_bytes: u32) -> Self {
        match system_error(error).and_then(io::Error::raw_os_error) {
            Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
                Self::NotPermitted { action, missing: crate::kernel::missing_capabilities() }
            }
            Some(code) if code == rustix::io::Errno::NOMEM.raw_os_error() && ring_bytes > 0 => {
                Self::NoMemory { action, ring_bytes }
            }
            _ => match error.downcast_ref::<ProgramError>() {
                Some(ProgramError::LoadError { io_error, verifier_log }) => {
                    Self::Refused { program: action, cause: format!("{io_error}; {}", tail(&verifier_log.to_string())) }
                }
                _ => Self::Load { action, cause: shorten(&chain(error)) },
            },
        }
    }

    /// Converts an error of a system call.
    pub(crate) fn from_system(action: String, error: &io::Error) -> Self {
        let code = error.raw_os_error();
        if code == Some(rustix::io::Errno::PERM.raw_os_error())
            || code == Some(rustix::io::Errno::ACCESS.raw_os_error())
        {
            return Self::NotPermitted { action, missing: crate::kernel::missing_capabilities() };
        }
        Self::Load { action, cause: error.to_string() }
    }
}

/// The I/O error at the end of the chain of sources, if there is one.
fn system_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = match error.downcast_ref::<ProgramError>() {
            Some(ProgramError::LoadError { io_error, .. }) => return Some(io_error),
            Some(ProgramError::SyscallError(inner)) => return Some(&inner.io_error),
            _ => match error.downcast_ref::<EbpfError>() {
                Some(EbpfError::MapError(inner)) => Some(inner),
                Some(EbpfError::ProgramError(inner)) => Some(inner),
                Some(EbpfError::BtfError(inner)) => Some(inner),
                _ => match error.downcast_ref::<MapError>() {
                    Some(MapError::CreateError { io_error, .. }) => return Some(io_error),
                    Some(MapError::SyscallError(inner)) => return Some(&inner.io_error),
                    _ => match error.downcast_ref::<BtfError>() {
                        Some(BtfError::FileError { error, .. }) => return Some(error),
                        _ => error.source(),
                    },
                },
            },
        };
    }
    None
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// The last lines of the verifier log before the statistics, which have its reason.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| {
            !line.is_empty()
                && !line.starts_with("processed ")
                && !line.starts_with("stack depth ")
                && !line.starts_with("verification time")
        })
        .collect();
    shorten(&lines.get(lines.len().saturating_sub(2)..).unwrap_or_default().join("; "))
}

fn shorten(text: &str) -> String {
    const LIMIT: usize = 300;
    match text.char_indices().nth(LIMIT) {
        Some((at, _)) => format!("{} ...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
