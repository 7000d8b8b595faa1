//! Where the kernel keeps its array of `struct page`: raw tracepoints speak of pages by address there.

use aya::maps::{Array, MapError};
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::Error;

/// The object that build.rs compiled, aligned as the ELF reader wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_PAGE_BASE_BPF"));

const SAMPLES: usize = 16;
/// What `frame_of` of `memory.bpf.c` divides by.
const SIZE_OF_PAGE: u32 = 64;

/// `struct found` of `page_base.bpf.c`
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    page: u64,
    samples: u32,
    size_of_page: u32,
    base: [u64; SAMPLES],
}

// SAFETY: a repr(C) struct of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for Found {}

/// Finds the array's address, by allocating a few pages under two kinds of probe.
pub(super) fn find(btf: &Btf) -> Result<u64, Error> {
    let fail = |error: &(dyn std::error::Error + 'static)| {
        Error::from_loader("find the kernel's array of pages".to_owned(), error, 0)
    };
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or_default();
    let mut bpf = EbpfLoader::new()
        .btf(Some(btf))
        .override_global("thread", &thread, true)
        .load(OBJECT)
        .map_err(|error| fail(&error))?;
    attach(&mut bpf, "on_alloc_page").map_err(|error| fail(&error))?;
    attach(&mut bpf, "on_alloc_frame").map_err(|error| fail(&error))?;
    touch_new_pages().map_err(|error| fail(&error))?;
    let found = found(&bpf).map_err(|error| fail(&error))?;
    let unknown = |cause: String| Error::Load { action: "find the kernel's array of pages".to_owned(), cause };
    let Some(found) = found else { return Err(unknown("nothing was written".to_owned())) };
    if found.samples > 0 && found.size_of_page != SIZE_OF_PAGE {
        return Err(unknown(format!("struct page has {} bytes, not {SIZE_OF_PAGE}", found.size_of_page)));
    }
    // An interrupt's allocation between the two probes gives a wrong sample.
    let samples = found.base.get(..(found.samples as usize).min(SAMPLES)).unwrap_or_default();
    let most = samples.iter().max_by_key(|base| samples.iter().filter(|other| other == base).count()).copied();
    match most {
        Some(base) if samples.iter().filter(|&&other| other == base).count() * 2 > samples.len() => Ok(base),
        _ => Err(unknown(format!("{} allocations gave no clear answer", samples.len()))),
    }
}

fn attach(bpf: &mut Ebpf, name: &str) -> Result<(), ProgramError> {
    match bpf.program_mut(name) {
        Some(Program::RawTracePoint(program)) => {
            program.load()?;
            program.attach("mm_page_alloc").map(drop)
        }
        Some(Program::TracePoint(program)) => {
            program.load()?;
            program.attach("kmem", "mm_page_alloc").map(drop)
        }
        _ => Err(ProgramError::NotLoaded),
    }
}

/// Anonymous memory that nobody had before: a page is allocated for each that is written to.
fn touch_new_pages() -> std::io::Result<()> {
    let page = rustix::param::page_size();
    let bytes = 4 * SAMPLES * page;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
    for offset in (0..bytes).step_by(page) {
        // SAFETY: within the mapping, which nobody else knows.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
    // SAFETY: the mapping is ours and nothing refers to it.
    unsafe { munmap(start, bytes)? };
    Ok(())
}

fn found(bpf: &Ebpf) -> Result<Option<Found>, MapError> {
    let Some(map) = bpf.map(".bss") else { return Ok(None) };
    let found: Array<_, Found> = Array::try_from(map)?;
    found.get(&0, 0).map(Some)
}
