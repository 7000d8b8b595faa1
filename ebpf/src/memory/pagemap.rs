//! Page frame numbers of the anonymous memory of a process, by `/proc/<pid>/pagemap` and `/proc/kpageflags`. The kernel
//! shows pfns only to processes with `CAP_SYS_ADMIN`; others read zeros.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::process::Area;

/// Entries of `pagemap` read at once.
const READ_ENTRIES: usize = 1 << 16;
/// Maximum number of entries read for a process: 256 GiB of addresses, which take some seconds.
const MAX_ENTRIES: u64 = 1 << 26;
/// Pages whose flags are read at once: no folio is larger or crosses such a block.
const BLOCK_PAGES: u32 = 512;

// include/uapi/linux/kernel-page-flags.h
const ANON: u64 = 1 << 12;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

/// Maximum number of scans while the kernel migrates pages, which takes microseconds.
const MAX_SCANS: usize = 20;
/// Interval between these scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(1);

/// A page of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Page {
    pub(crate) pfn: u32,
    /// Index of its area. The structure has 8 bytes, as there may be millions of pages.
    pub(crate) area: u32,
}

/// Anonymous pages of a process at one moment.
#[derive(Debug, Default)]
pub(crate) struct PagemapScan {
    /// Sorted by pfn, without duplicates.
    pub(crate) pages: Vec<Page>,
    /// First pfn and order of the large folios that contain them.
    pub(crate) folios: Vec<(u32, u32)>,
}

/// Scans the anonymous pages of a process; `None` if the result would not be exact.
pub(crate) fn scan(proc: &Path, pid: u32, areas: &[Area]) -> Option<PagemapScan> {
    let pagemap = File::open(proc.join(format!("{pid}/pagemap"))).ok()?;
    let flags = File::open("/proc/kpageflags").ok()?;
    let swaps = fs::read_to_string("/proc/swaps").ok()?.lines().skip(1).count();
    let mut pages = Vec::new();
    for _ in 0..MAX_SCANS {
        let found = mapped(&pagemap, areas, swaps as u64)?;
        pages = found.pages;
        if !found.is_migrating {
            break;
        }
        thread::sleep(SCAN_INTERVAL);
    }
    pages.sort_unstable();
    // Two addresses may have the same pfn: that of the zero page, or of a page that has just been migrated.
    pages.dedup_by_key(|page| page.pfn);
    anonymous(&flags, pages)
}

/// Result of one pass over `pagemap`.
#[derive(Default)]
struct Mapped {
    pages: Vec<Page>,
    /// Some pages are being migrated.
    is_migrating: bool,
}

/// Pages that are mapped and not of a file. Swap entries of a type without a swap area are migration entries.
fn mapped(pagemap: &File, areas: &[Area], swaps: u64) -> Option<Mapped> {
    let mut found = Mapped::default();
    let mut left = MAX_ENTRIES;
    for (index, area) in (0..).zip(areas).filter(|(_, area)| area.anon > 0) {
        let (mut next, end) = (area.start >> 12, area.end >> 12);
        left = left.checked_sub(end.saturating_sub(next))?;
        while next < end {
            let count = usize::try_from(end - next).unwrap_or(READ_ENTRIES).min(READ_ENTRIES);
            let entries = words(pagemap, next, count).ok()?;
            // The process has unmapped the addresses.
            if entries.is_empty() {
                break;
            }
            next += entries.len() as u64;
            for entry in entries {
                let (is_present, is_swap, is_file) = (entry >> 63 & 1 == 1, entry >> 62 & 1 == 1, entry >> 61 & 1 == 1);
                found.is_migrating |= is_swap && !is_present && (entry & 31) >= swaps;
                if is_present && !is_file {
                    let pfn = u32::try_from(entry & ((1 << 55) - 1)).ok().filter(|&pfn| pfn != 0)?;
                    found.pages.push(Page { pfn, area: index });
                }
            }
        }
    }
    Some(found)
}

/// Removes pages that are not anonymous (the zero page), and finds the folios.
fn anonymous(flags: &File, pages: Vec<Page>) -> Option<PagemapScan> {
    let mut scan = PagemapScan::default();
    for block in pages.chunk_by(|one, other| one.pfn / BLOCK_PAGES == other.pfn / BLOCK_PAGES) {
        let first = block.first()?.pfn / BLOCK_PAGES * BLOCK_PAGES;
        let flags = words(flags, first.into(), BLOCK_PAGES as usize).ok()?;
        let flags_of = |pfn: u32| flags.get((pfn - first) as usize).copied().unwrap_or(0);
        let mut folios: BTreeMap<u32, u32> = BTreeMap::new();
        for page in block.iter().filter(|page| flags_of(page.pfn) & ANON != 0) {
            scan.pages.push(*page);
            if flags_of(page.pfn) & (COMPOUND_HEAD | COMPOUND_TAIL) != 0 {
                let head = (first..=page.pfn).rev().find(|&pfn| flags_of(pfn) & COMPOUND_HEAD != 0);
                let Some(head) = head else { continue };
                let tails =
                    (head + 1..first + BLOCK_PAGES).take_while(|&pfn| flags_of(pfn) & COMPOUND_TAIL != 0).count();
                folios.insert(head, (tails + 1).ilog2());
            }
        }
        scan.folios.extend(folios);
    }
    Some(scan)
}

/// Reads 64-bit words of a file; fewer at its end.
fn words(file: &File, first: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    let mut length = 0;
    while length < bytes.len() {
        let rest = bytes.get_mut(length..).unwrap_or_default();
        match file.read_at(rest, first * 8 + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    let whole = bytes.get(..length).unwrap_or_default().chunks_exact(8);
    Ok(whole.map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
}

/// Pages of `these` that are not in `those`; both sorted.
pub(crate) fn difference<'a>(these: &'a [Page], those: &'a [Page]) -> impl Iterator<Item = Page> + 'a {
    let is_there = |pfn: u32| those.binary_search_by_key(&pfn, |page| page.pfn).is_ok();
    these.iter().copied().filter(move |page| !is_there(page.pfn))
}

#[cfg(test)]
mod tests {
    use super::super::process;
    use super::*;

    #[test]
    fn pages_of_this_process_are_found() {
        let held = std::hint::black_box(vec![1_u8; 8 << 20]);
        let areas = process::areas(Path::new("/proc"), std::process::id()).expect("we may look");
        let scan = scan(Path::new("/proc"), std::process::id(), &areas).expect("the tests of this crate need root");
        assert!(scan.pages.len() > held.len() / 4096);
        assert!(scan.pages.is_sorted() && scan.pages.iter().all(|page| page.pfn != 0));
        let counted: u64 = areas.iter().map(|area| area.anon).sum();
        // Other tests run in this process meanwhile.
        assert!(counted.abs_diff(scan.pages.len() as u64) < counted / 2, "{} instead of {counted}", scan.pages.len());
    }

    #[test]
    fn differences() {
        let page = |pfn| Page { pfn, area: 0 };
        let (these, those) = ([1, 3, 4, 9].map(page), [3, 5, 9].map(page));
        assert_eq!(difference(&these, &those).map(|page| page.pfn).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(difference(&these, &[]).count(), 4);
    }
}
