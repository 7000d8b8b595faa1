//! Loading of BPF objects: BTF of the running kernel, programs, maps of an object.

use std::collections::HashSet;

use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError, RawTracePointRunOptions, TestRun as _};
use aya::{Btf, Ebpf};
use rustix::io::Errno;

use crate::error::Error;
use crate::kernel;
use crate::mmap_array::MmapArray;

/// Maximum number of attempts to load a program. libbpf makes 5 (`PROG_LOAD_ATTEMPTS`); verifying a large program takes up
/// to a second, so a signal is more likely here.
const MAX_LOAD_ATTEMPTS: u32 = 10;

/// The running kernel, as far as loading depends on it.
pub(crate) struct Kernel {
    /// `uname -r`.
    pub(crate) release: String,
    /// Types for CO-RE relocations.
    pub(crate) btf: Btf,
    raw_btf: Vec<u8>,
    /// The last field, so that it is dropped after the others.
    _trim: TrimHeapOnDrop,
}

/// Returns free heap memory to the kernel when dropped. Parsed, the kernel's BTF takes some 20 MiB in small blocks, which
/// malloc otherwise keeps for the life of the process.
struct TrimHeapOnDrop;

impl Drop for TrimHeapOnDrop {
    fn drop(&mut self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: has no preconditions.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

impl Kernel {
    /// Reads BTF and checks that the kernel has the helpers that all programs need.
    ///
    /// # Errors
    /// [`Error::NoBtf`], [`Error::KernelTooOld`].
    pub(crate) fn read() -> Result<Self, Error> {
        let no_btf = |cause: String| Error::NoBtf { path: kernel::BTF_PATH, cause };
        let release = kernel::release();
        let raw_btf = std::fs::read(kernel::BTF_PATH).map_err(|error| no_btf(error.to_string()))?;
        if let Some(need) = kernel::missing_helper(&release, &kernel::names_of(&raw_btf)) {
            return Err(Error::KernelTooOld { release, need });
        }
        let btf = Btf::from_sys_fs().map_err(|error| no_btf(error.to_string()))?;
        Ok(Self { release, btf, raw_btf, _trim: TrimHeapOnDrop })
    }

    /// Names of the types, functions and enumerators in BTF.
    pub(crate) fn names(&self) -> HashSet<&str> {
        kernel::names_of(&self.raw_btf)
    }
}

/// Loads a program, again after EAGAIN: the verifier returns it when the thread has a pending signal.
pub(crate) fn retry_eagain(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    for _ in 1..MAX_LOAD_ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {}
            result => return result,
        }
    }
    load()
}

/// Loads a raw tracepoint program and runs it once in the calling thread; returns what it returns.
pub(crate) fn run_raw_tracepoint(bpf: &mut Ebpf, name: &str, args: &[u64]) -> Result<u32, ProgramError> {
    let Some(Program::RawTracePoint(program)) = bpf.program_mut(name) else { return Err(ProgramError::NotLoaded) };
    retry_eagain(|| program.load())?;
    let mut options = RawTracePointRunOptions::new();
    options.args.iter_mut().zip(args).for_each(|(to, from)| *to = *from);
    Ok(program.test_run(options)?.return_value)
}

/// Takes a typed map out of a loaded object.
///
/// # Errors
/// [`Error::Load`]: the object has no such map, or one of another type.
pub(crate) fn take_map<T: TryFrom<Map, Error = MapError>>(bpf: &mut Ebpf, name: &str) -> Result<T, Error> {
    let map = bpf.take_map(name).ok_or_else(|| missing_map(name))?;
    T::try_from(map).map_err(|error| Error::Load { action: format!("use the map {name}"), cause: error.to_string() })
}

/// The error for a map that the object does not have.
pub(crate) fn missing_map(name: &str) -> Error {
    Error::Load { action: format!("find the map {name}"), cause: "it is not in the object".to_owned() }
}

/// Takes an array out of a loaded object and maps it.
pub(crate) fn mmap_array<T: aya::Pod>(bpf: &mut Ebpf, name: &'static str, length: u32) -> Result<MmapArray<T>, Error> {
    let fail = |cause: String| Error::Load { action: format!("map the array {name}"), cause };
    let map = bpf.take_map(name).ok_or_else(|| missing_map(name))?;
    let Map::Array(data) = map else { return Err(fail("it is no array".to_owned())) };
    MmapArray::of(&data, length).map_err(|error| fail(error.to_string()))
}
