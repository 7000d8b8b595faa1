//! Where the kernel keeps its array of `struct page`: raw tracepoints speak of pages by address there.

use std::collections::HashMap;

use aya::maps::{Array, MapError};
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::Error;
use crate::load::in_spite_of_signals;

/// The object that build.rs compiled, aligned as the ELF reader wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_PAGE_BASE_BPF"));

const SAMPLES: usize = 32;
/// What `frame_of` of `memory.bpf.c` divides by.
const SIZE_OF_PAGE: u32 = 64;
/// Where the kernel is loaded at random, the array begins at a multiple of this.
const ALIGNMENT: u64 = 1 << 30;

const ACTION: &str = "find the kernel's array of pages";

/// `struct found` of `page_base.bpf.c`
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    pages: u32,
    frames: u32,
    size_of_page: u32,
    pad: u32,
    page: [u64; SAMPLES],
    frame: [u64; SAMPLES],
}

// SAFETY: a repr(C) struct of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for Found {}

/// Finds the array's address, by allocating a few pages under two kinds of probe; `frames` are those of the machine.
///
/// Without tracefs there is no classic probe: then the address is rounded down, if the array is small enough for that.
pub(super) fn find(btf: &Btf, frames: u32) -> Result<u64, Error> {
    let fail = |error: &(dyn std::error::Error + 'static)| Error::from_loader(ACTION.to_owned(), error, 0);
    let unknown = |cause: String| Error::Load { action: ACTION.to_owned(), cause };
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or_default();
    let mut bpf = EbpfLoader::new()
        .btf(Some(btf))
        .override_global("thread", &thread, true)
        .load(OBJECT)
        .map_err(|error| fail(&error))?;
    attach(&mut bpf, "on_alloc_page").map_err(|error| fail(&error))?;
    let classic = attach(&mut bpf, "on_alloc_frame");
    touch_new_pages().map_err(|error| fail(&error))?;
    let found = found(&bpf).map_err(|error| fail(&error))?.ok_or_else(|| unknown("nothing was seen".to_owned()))?;
    if found.pages > 0 && found.size_of_page != SIZE_OF_PAGE {
        return Err(unknown(format!("struct page has {} bytes, not {SIZE_OF_PAGE}", found.size_of_page)));
    }
    let pages = in_order(found.page, found.pages);
    let base = match classic {
        Ok(()) => by_frames(&pages, &in_order(found.frame, found.frames)),
        Err(error) => by_alignment(&pages, frames).ok_or_else(|| fail(&error)).map(Some)?,
    };
    base.ok_or_else(|| unknown(format!("{} allocations gave no clear answer", pages.len())))
}

/// The last of `count` numbers, of which the kernel keeps a ring; oldest first.
fn in_order(mut ring: [u64; SAMPLES], count: u32) -> Vec<u64> {
    let count = count as usize;
    if count > SAMPLES {
        ring.rotate_left(count % SAMPLES);
    }
    ring.iter().take(count).copied().collect()
}

/// Both have seen the same allocations, but for some that one of them missed.
fn by_frames(pages: &[u64], frames: &[u64]) -> Option<u64> {
    let mut votes: HashMap<u64, usize> = HashMap::new();
    for (at, page) in pages.iter().rev().enumerate() {
        for frame in frames.iter().rev().skip(at.saturating_sub(2)).take(5) {
            *votes.entry(page.wrapping_sub(frame.wrapping_mul(SIZE_OF_PAGE.into()))).or_default() += 1;
        }
    }
    let (base, count) = votes.into_iter().max_by_key(|(_, count)| *count)?;
    (count * 2 > pages.len() && count > 2).then_some(base)
}

/// Every page is within the first [`ALIGNMENT`] bytes of a small array.
fn by_alignment(pages: &[u64], frames: u32) -> Option<u64> {
    let bytes = u64::from(frames) * u64::from(SIZE_OF_PAGE);
    let base = pages.first()? & !(ALIGNMENT - 1);
    (bytes <= ALIGNMENT && pages.iter().all(|page| page.wrapping_sub(base) < bytes)).then_some(base)
}

fn attach(bpf: &mut Ebpf, name: &str) -> Result<(), ProgramError> {
    match bpf.program_mut(name) {
        Some(Program::RawTracePoint(program)) => {
            in_spite_of_signals(|| program.load())?;
            program.attach("mm_page_alloc").map(drop)
        }
        Some(Program::TracePoint(program)) => {
            in_spite_of_signals(|| program.load())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_probe_may_miss_some() {
        let base = 0xffff_ea00_0000_0000;
        let frames = [7, 99, 3, 12, 8, 77, 21, 4];
        let pages = frames.map(|frame| base + 64 * frame);
        assert_eq!(by_frames(&pages, &frames), Some(base));
        assert_eq!(by_frames(&pages[1..], &frames), Some(base));
        assert_eq!(by_frames(&pages, &[5, 7, 99, 3, 12, 8, 77, 21]), Some(base));
        let mut ring = [0; SAMPLES];
        (0..40_u64).for_each(|number| ring[number as usize % SAMPLES] = number);
        assert_eq!(in_order(ring, 40), (8..40).collect::<Vec<u64>>());
        assert_eq!(in_order(ring, 3).len(), 3);
        assert_eq!(by_frames(&pages, &[]), None);
        assert_eq!(by_frames(&[], &frames), None);
    }

    #[test]
    fn a_small_array_is_found_without_frames() {
        let base = 0xffff_ea00_4000_0000;
        let pages = [base + 64 * 1000, base + 64 * 5_000_000];
        assert_eq!(by_alignment(&pages, 6 << 20), Some(base));
        assert_eq!(by_alignment(&pages, 4 << 20), None, "a frame that is not there");
        assert_eq!(by_alignment(&pages, 32 << 20), None, "too large");
    }
}
