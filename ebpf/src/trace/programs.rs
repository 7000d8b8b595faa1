//! Loads the programs of the trace object.

use std::os::fd::{AsFd, OwnedFd};

use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};

use super::options::{MAX_PAYLOAD, MAX_STRING, Reads, TraceOptions};
use crate::error::Error;
use crate::kernel;
use crate::load::{Kernel, retry_eagain};
use crate::pid_namespace::PidNamespace;
use crate::uprobe::{self, AttachMode, LinkKind, SURE_MULTI};

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_TRACE_BPF"));

/// The loaded object. Nothing is attached yet.
pub(super) struct Object {
    pub(super) bpf: Ebpf,
    /// The program to attach.
    pub(super) program: OwnedFd,
    pub(super) reads: Reads,
    pub(super) mode: AttachMode,
}

impl Object {
    /// Creates the maps and loads the program.
    ///
    /// # Errors
    /// See [`TraceProbe::load`](super::TraceProbe::load).
    pub(super) fn load(options: &TraceOptions) -> Result<Self, Error> {
        let ring_bytes = options.ring_bytes;
        if !ring_bytes.is_power_of_two() || (ring_bytes as usize) < rustix::param::page_size() {
            return Err(Error::RingSize(ring_bytes));
        }
        for (limit, value, max) in [
            ("a length of strings", options.max_string.into(), MAX_STRING.into()),
            ("a length of payloads", options.max_payload, MAX_PAYLOAD),
        ] {
            if value > max {
                return Err(Error::LimitTooLarge { limit, value, max });
            }
        }
        let kernel = Kernel::read()?;
        let (pidns_inode, pidns_level) = PidNamespace::of_proc(&options.proc)?.inode_and_level(&kernel.btf)?;
        let mut bpf = EbpfLoader::new()
            .btf(Some(&kernel.btf))
            .override_global("pidns_inode", &pidns_inode, true)
            .override_global("pidns_level", &pidns_level, true)
            .override_global("wake_bytes", &options.wake_bytes, true)
            .override_global("max_string", &options.max_string, true)
            .override_global("max_payload", &options.max_payload, true)
            .map_max_entries("ring", ring_bytes)
            .load(OBJECT)
            .map_err(|error| {
                Error::from_loader("create the maps of the tracepoint probe".to_owned(), &error, ring_bytes)
            })?;
        let mut load = |reads| load(&mut bpf, reads, options.attach_mode, &kernel).map(|loaded| (reads, loaded));
        let loaded = match options.reads {
            Some(reads) => load(reads),
            // Kernels without sleepable uprobes refuse the first program.
            None => load(Reads::Sleepable).or_else(|_| load(Reads::Atomic)),
        };
        let (reads, (program, mode)) =
            loaded.map_err(|error| Error::from_loader("on_hit".to_owned(), &*error, ring_bytes))?;
        Ok(Self { bpf, program, reads, mode })
    }
}

fn name(reads: Reads) -> &'static str {
    match reads {
        Reads::Sleepable => "on_hit_sleepable",
        Reads::Atomic => "on_hit_atomic",
    }
}

type LoadError = Box<dyn std::error::Error>;

/// Loads a program for the best attach mode that the kernel has, or the given one.
fn load(
    bpf: &mut Ebpf,
    reads: Reads,
    wanted: Option<AttachMode>,
    kernel: &Kernel,
) -> Result<(OwnedFd, AttachMode), LoadError> {
    let is_multi = match wanted {
        Some(mode) => mode == AttachMode::Multi,
        None => !kernel::is_before(&kernel.release, SURE_MULTI),
    };
    if is_multi {
        let kind = LinkKind::Multi { is_sleepable: reads == Reads::Sleepable };
        match uprobe::load(OBJECT, bpf, Some(&kernel.btf), name(reads), kind) {
            Ok(program) => return Ok((program, AttachMode::Multi)),
            Err(error) if wanted.is_some() => return Err(error.into()),
            Err(_) => {}
        }
    }
    let Some(Program::UProbe(program)) = bpf.program_mut(name(reads)) else {
        return Err(format!("no program {} in the object", name(reads)).into());
    };
    retry_eagain(|| program.load())?;
    Ok((program.fd()?.as_fd().try_clone_to_owned()?, AttachMode::PerfEvent))
}
