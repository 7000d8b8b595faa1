//! Loads the programs of the latency object.

use std::os::fd::{AsFd, OwnedFd};

use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};

use super::abi::Table;
use crate::error::Error;
use crate::kernel;
use crate::load::{Kernel, retry_eagain};
use crate::uprobe::{self, AttachMode, LinkKind, SURE_MULTI};

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_LATENCY_BPF"));

/// Maximum number of spans of a probe.
pub const MAX_SPANS: u32 = 4096;
/// Memory for tables: with many spans, processors share them.
const MAX_TABLE_BYTES: usize = 64 << 20;
/// Maximum number of tables of a span.
const MAX_SHARDS: usize = 64;

/// Options of [`LatencyProbe::load`](super::LatencyProbe::load).
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// Number of spans that can be attached, at most [`MAX_SPANS`]. Each takes 15 KiB for a processor, 64 MiB in total.
    pub max_spans: u32,
    /// How calls are followed; `None`: the best way that the kernel has.
    pub pairing: Option<Pairing>,
}

impl Default for LatencyOptions {
    fn default() -> Self {
        Self { max_spans: 64, pairing: None }
    }
}

/// How calls are followed that end by [`Exit::Return`](super::Exit::Return), and how probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The kernel keeps the start of each call. All locations of a file by one link. Linux 6.13.
    Session,
    /// By stack frame. All locations of a file by one link. Linux 6.10.
    StackFrame,
    /// By stack frame, with a perf event for each location.
    PerfEvents,
}

impl Pairing {
    pub(super) fn attach_mode(self) -> AttachMode {
        match self {
            Self::Session | Self::StackFrame => AttachMode::Multi,
            Self::PerfEvents => AttachMode::PerfEvent,
        }
    }
}

/// The programs, loaded for one way to attach them.
#[derive(Debug)]
pub(super) struct Programs {
    /// At the entry and the return of a call.
    pub(super) call: Option<OwnedFd>,
    pub(super) entry: OwnedFd,
    pub(super) exit: OwnedFd,
}

/// The loaded object. Nothing is attached yet.
pub(super) struct Object {
    pub(super) bpf: Ebpf,
    pub(super) programs: Programs,
    pub(super) pairing: Pairing,
    /// Number of tables of a span.
    pub(super) shards: u32,
}

impl Object {
    /// Creates the maps and loads the programs.
    ///
    /// # Errors
    /// See [`LatencyProbe::load`](super::LatencyProbe::load).
    pub(super) fn load(options: &LatencyOptions) -> Result<Self, Error> {
        let kernel = Kernel::read()?;
        let spans = options.max_spans.clamp(1, MAX_SPANS);
        let shards = shards(spans, aya::util::nr_cpus().unwrap_or(1));
        let mut bpf = EbpfLoader::new()
            .btf(Some(&kernel.btf))
            .override_global("shards", &shards, true)
            .map_max_entries("tables", spans * shards)
            .load(OBJECT)
            .map_err(|error| Error::from_loader("create the maps of the latency probe".to_owned(), &error, 0))?;
        let (programs, pairing) = match options.pairing {
            Some(pairing) => (programs(&mut bpf, pairing)?, pairing),
            None => best(&mut bpf, &kernel.release)?,
        };
        Ok(Self { bpf, programs, pairing, shards })
    }
}

/// A power of two, so that the programs need no division.
fn shards(spans: u32, cpus: usize) -> u32 {
    let affordable = MAX_TABLE_BYTES / (spans as usize * size_of::<Table>());
    let wanted = cpus.next_power_of_two().min(MAX_SHARDS).min(affordable.max(1));
    1 << wanted.ilog2()
}

fn best(bpf: &mut Ebpf, release: &str) -> Result<(Programs, Pairing), Error> {
    if !kernel::is_before(release, SURE_MULTI) {
        for pairing in [Pairing::Session, Pairing::StackFrame] {
            if let Ok(programs) = programs(bpf, pairing) {
                return Ok((programs, pairing));
            }
        }
    }
    Ok((programs(bpf, Pairing::PerfEvents)?, Pairing::PerfEvents))
}

fn programs(bpf: &mut Ebpf, pairing: Pairing) -> Result<Programs, Error> {
    let call = match pairing {
        Pairing::Session => Some(raw(bpf, "on_call", LinkKind::Session)?),
        Pairing::StackFrame | Pairing::PerfEvents => None,
    };
    let mut load = |name| match pairing.attach_mode() {
        AttachMode::Multi => raw(bpf, name, LinkKind::Multi { is_sleepable: false }),
        AttachMode::PerfEvent => by_aya(bpf, name),
    };
    Ok(Programs { call, entry: load("on_entry")?, exit: load("on_exit")? })
}

fn raw(bpf: &Ebpf, name: &str, kind: LinkKind) -> Result<OwnedFd, Error> {
    uprobe::load(OBJECT, bpf, None, name, kind).map_err(|error| Error::from_loader(name.to_owned(), &error, 0))
}

fn by_aya(bpf: &mut Ebpf, name: &str) -> Result<OwnedFd, Error> {
    let missing = || Error::Load { action: format!("load {name}"), cause: "it is not in the object".to_owned() };
    let Some(Program::UProbe(program)) = bpf.program_mut(name) else { return Err(missing()) };
    if program.fd().is_err() {
        retry_eagain(|| program.load()).map_err(|error| Error::from_loader(name.to_owned(), &error, 0))?;
    }
    let fd = program.fd().map_err(|error| Error::from_loader(name.to_owned(), &error, 0))?;
    fd.as_fd().try_clone_to_owned().map_err(|error| Error::from_system(format!("load {name}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_spans_share_tables() {
        assert_eq!((shards(1, 1), shards(1, 3), shards(1, 1000)), (1, 4, 64));
        assert_eq!((shards(1000, 64), shards(MAX_SPANS, 64)), (4, 1));
    }
}
