//! Address of the kernel's array of `struct page` (vmemmap): raw tracepoints pass pages by their address in it.

use std::collections::BTreeMap;

use aya::maps::{Array, MapError};
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::Error;
use crate::load::{retry_eagain, run_raw_tracepoint};

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_VMEMMAP_BPF"));

/// `MAX_SAMPLES` of `vmemmap.bpf.c`.
const MAX_SAMPLES: usize = 32;
/// `PAGE_STRUCT` of `folio.h`.
const SIZE_OF_PAGE: u32 = 64;
/// Alignment of the array under KASLR.
const ALIGNMENT: u64 = 1 << 30;

const ACTION: &str = "find the kernel's array of struct page";

/// `struct samples` of `vmemmap.bpf.c`
#[repr(C)]
#[derive(Clone, Copy)]
struct Samples {
    pages: u32,
    pfns: u32,
    size_of_page: u32,
    thread: u32,
    page: [u64; MAX_SAMPLES],
    pfn: [u64; MAX_SAMPLES],
}

// SAFETY: a repr(C) struct of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for Samples {}

/// Finds the address of the array by allocating a few pages under two kinds of tracepoint programs.
///
/// Without tracefs there is no classic tracepoint: then the address of a page is rounded down, if the array is small enough.
pub(super) fn find_base(btf: &Btf, max_pfn: u32) -> Result<u64, Error> {
    let fail = |error: &(dyn std::error::Error + 'static)| Error::from_loader(ACTION.to_owned(), error, 0);
    let unknown = |cause: String| Error::Load { action: ACTION.to_owned(), cause };
    let mut bpf = EbpfLoader::new().btf(Some(btf)).load(OBJECT).map_err(|error| fail(&error))?;
    run_raw_tracepoint(&mut bpf, "select_thread", &[]).map_err(|error| fail(&error))?;
    attach(&mut bpf, "on_alloc_page").map_err(|error| fail(&error))?;
    let classic = attach(&mut bpf, "on_alloc_pfn");
    touch_new_pages().map_err(|error| fail(&error))?;
    let samples = read_samples(&bpf).map_err(|error| fail(&error))?.ok_or_else(|| unknown("no samples".to_owned()))?;
    if samples.pages > 0 && samples.size_of_page != SIZE_OF_PAGE {
        return Err(unknown(format!("struct page has {} bytes, not {SIZE_OF_PAGE}", samples.size_of_page)));
    }
    let pages = in_order(samples.page, samples.pages);
    let base = match classic {
        Ok(()) => by_pfns(&pages, &in_order(samples.pfn, samples.pfns)),
        Err(error) => by_alignment(&pages, max_pfn).ok_or_else(|| fail(&error)).map(Some)?,
    };
    base.ok_or_else(|| unknown(format!("{} allocations gave no consistent address", pages.len())))
}

/// The samples of a ring that `count` samples were written to, oldest first.
fn in_order(mut ring: [u64; MAX_SAMPLES], count: u32) -> Vec<u64> {
    let count = count as usize;
    if count > MAX_SAMPLES {
        ring.rotate_left(count % MAX_SAMPLES);
    }
    ring.iter().take(count).copied().collect()
}

/// The base on which most pairs of neighbouring samples agree: either program may have missed some allocations.
fn by_pfns(pages: &[u64], pfns: &[u64]) -> Option<u64> {
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, page) in pages.iter().rev().enumerate() {
        for pfn in pfns.iter().rev().skip(at.saturating_sub(2)).take(5) {
            *votes.entry(page.wrapping_sub(pfn.wrapping_mul(SIZE_OF_PAGE.into()))).or_default() += 1;
        }
    }
    let (base, count) = votes.into_iter().max_by_key(|(_, count)| *count)?;
    (count * 2 > pages.len() && count > 2).then_some(base)
}

/// The base of an array that is not larger than [`ALIGNMENT`], by rounding down.
fn by_alignment(pages: &[u64], max_pfn: u32) -> Option<u64> {
    let bytes = u64::from(max_pfn) * u64::from(SIZE_OF_PAGE);
    let base = pages.first()? & !(ALIGNMENT - 1);
    (bytes <= ALIGNMENT && pages.iter().all(|page| page.wrapping_sub(base) < bytes)).then_some(base)
}

fn attach(bpf: &mut Ebpf, name: &str) -> Result<(), ProgramError> {
    match bpf.program_mut(name) {
        Some(Program::RawTracePoint(program)) => {
            retry_eagain(|| program.load())?;
            program.attach("mm_page_alloc").map(drop)
        }
        Some(Program::TracePoint(program)) => {
            retry_eagain(|| program.load())?;
            program.attach("kmem", "mm_page_alloc").map(drop)
        }
        _ => Err(ProgramError::NotLoaded),
    }
}

/// Allocates pages by writing to new anonymous memory.
fn touch_new_pages() -> std::io::Result<()> {
    let page = rustix::param::page_size();
    let bytes = 4 * MAX_SAMPLES * page;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address chosen by the kernel aliases no Rust object.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
    for offset in (0..bytes).step_by(page) {
        // SAFETY: within the mapping, which nothing else refers to.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
    // SAFETY: the mapping was created above and nothing refers to it.
    unsafe { munmap(start, bytes)? };
    Ok(())
}

fn read_samples(bpf: &Ebpf) -> Result<Option<Samples>, MapError> {
    let Some(map) = bpf.map(".bss") else { return Ok(None) };
    let samples: Array<_, Samples> = Array::try_from(map)?;
    samples.get(&0, 0).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_program_may_miss_some_allocations() {
        let base = 0xffff_ea00_0000_0000;
        let pfns = [7, 99, 3, 12, 8, 77, 21, 4];
        let pages = pfns.map(|pfn| base + 64 * pfn);
        assert_eq!(by_pfns(&pages, &pfns), Some(base));
        assert_eq!(by_pfns(&pages[1..], &pfns), Some(base));
        assert_eq!(by_pfns(&pages, &[5, 7, 99, 3, 12, 8, 77, 21]), Some(base));
        let mut ring = [0; MAX_SAMPLES];
        (0..40_u64).for_each(|number| ring[number as usize % MAX_SAMPLES] = number);
        assert_eq!(in_order(ring, 40), (8..40).collect::<Vec<u64>>());
        assert_eq!(in_order(ring, 3).len(), 3);
        assert_eq!(by_pfns(&pages, &[]), None);
        assert_eq!(by_pfns(&[], &pfns), None);
    }

    #[test]
    fn a_small_array_is_found_without_pfns() {
        let base = 0xffff_ea00_4000_0000;
        let pages = [base + 64 * 1000, base + 64 * 5_000_000];
        assert_eq!(by_alignment(&pages, 6 << 20), Some(base));
        assert_eq!(by_alignment(&pages, 4 << 20), None, "a pfn beyond the array");
        assert_eq!(by_alignment(&pages, 32 << 20), None, "too large");
    }
}
