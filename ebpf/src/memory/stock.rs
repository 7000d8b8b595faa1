//! In which page frames a process has its anonymous memory, by `/proc/<pid>/pagemap` and `/proc/kpageflags`. The kernel
//! tells frames to those with `CAP_SYS_ADMIN` only; others read zeros.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use super::process::Area;

/// Entries of `pagemap` that are read at once.
const AT_ONCE: usize = 1 << 16;
/// Entries that are read for a process: 256 GiB of addresses take some seconds.
const MOST: u64 = 1 << 26;
/// Frames whose flags are read at once: no folio is larger or crosses such a block.
const BLOCK: u32 = 512;

// include/uapi/linux/kernel-page-flags.h
const ANON: u64 = 1 << 12;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

/// How often it is looked again while the kernel moves pages, which takes it microseconds.
const LOOKS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// A page of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Page {
    pub(crate) frame: u32,
    /// Which of the areas it is in: 8 bytes a page in all, for there may be millions.
    pub(crate) area: u32,
}

/// Anonymous memory at one moment.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    /// Sorted by frame; each once.
    pub(crate) pages: Vec<Page>,
    /// First frames of the large folios that they are in, and their orders.
    pub(crate) folios: Vec<(u32, u32)>,
}

/// What a process has now; `None` if that cannot be told exactly.
pub(crate) fn of(pid: u32, areas: &[Area]) -> Option<Stock> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let flags = File::open("/proc/kpageflags").ok()?;
    let swaps = fs::read_to_string("/proc/swaps").ok()?.lines().skip(1).count();
    let mut pages = Vec::new();
    for _ in 0..LOOKS {
        let found = mapped(&pagemap, areas, swaps as u64)?;
        pages = found.pages;
        if !found.is_moving {
            break;
        }
        thread::sleep(PAUSE);
    }
    pages.sort_unstable();
    // Two addresses may lead to one frame: that of the zero page, which is nobody's, or one that has just moved.
    pages.dedup_by_key(|page| page.frame);
    anonymous(&flags, pages)
}

/// What `pagemap` tells.
#[derive(Default)]
struct Mapped {
    pages: Vec<Page>,
    /// Some are on their way from one frame to another.
    is_moving: bool,
}

/// Frames that are mapped and no file's. Swap entries of a type that there is no swap area for stand for pages on their way.
fn mapped(pagemap: &File, areas: &[Area], swaps: u64) -> Option<Mapped> {
    let mut found = Mapped::default();
    let mut left = MOST;
    for (index, area) in (0..).zip(areas).filter(|(_, area)| area.anon > 0) {
        let (mut next, end) = (area.start >> 12, area.end >> 12);
        left = left.checked_sub(end.saturating_sub(next))?;
        while next < end {
            let count = usize::try_from(end - next).unwrap_or(AT_ONCE).min(AT_ONCE);
            let entries = words(pagemap, next, count).ok()?;
            // The process gave its addresses back: nothing is there.
            if entries.is_empty() {
                break;
            }
            next += entries.len() as u64;
            for entry in entries {
                let (is_present, is_swap, is_file) = (entry >> 63 & 1 == 1, entry >> 62 & 1 == 1, entry >> 61 & 1 == 1);
                found.is_moving |= is_swap && !is_present && (entry & 31) >= swaps;
                if is_present && !is_file {
                    let frame = u32::try_from(entry & ((1 << 55) - 1)).ok().filter(|&frame| frame != 0)?;
                    found.pages.push(Page { frame, area: index });
                }
            }
        }
    }
    Some(found)
}

/// Leaves out what is not anonymous (the zero page), and tells which folios there are.
fn anonymous(flags: &File, pages: Vec<Page>) -> Option<Stock> {
    let mut stock = Stock::default();
    for block in pages.chunk_by(|one, other| one.frame / BLOCK == other.frame / BLOCK) {
        let first = block.first()?.frame / BLOCK * BLOCK;
        let flags = words(flags, first.into(), BLOCK as usize).ok()?;
        let of = |frame: u32| flags.get((frame - first) as usize).copied().unwrap_or(0);
        let mut folios: HashMap<u32, u32> = HashMap::new();
        for page in block.iter().filter(|page| of(page.frame) & ANON != 0) {
            stock.pages.push(*page);
            if of(page.frame) & (COMPOUND_HEAD | COMPOUND_TAIL) != 0 {
                let head = (first..=page.frame).rev().find(|&frame| of(frame) & COMPOUND_HEAD != 0);
                let Some(head) = head else { continue };
                let tails = (head + 1..first + BLOCK).take_while(|&frame| of(frame) & COMPOUND_TAIL != 0).count();
                folios.insert(head, (tails + 1).ilog2());
            }
        }
        stock.folios.extend(folios);
    }
    Some(stock)
}

/// Words of a file of words; fewer where it ends.
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

/// Frames of `these` that are not among `those`; both sorted.
pub(crate) fn without<'a>(these: &'a [Page], those: &'a [Page]) -> impl Iterator<Item = Page> + 'a {
    let is_there = |frame: u32| those.binary_search_by_key(&frame, |page| page.frame).is_ok();
    these.iter().copied().filter(move |page| !is_there(page.frame))
}

#[cfg(test)]
mod tests {
    use super::super::process;
    use super::*;

    #[test]
    fn our_own_pages_are_found() {
        let held = std::hint::black_box(vec![1_u8; 8 << 20]);
        let areas = process::areas(std::process::id()).expect("we may look");
        let stock = of(std::process::id(), &areas).expect("the tests of this crate need root");
        assert!(stock.pages.len() > held.len() / 4096);
        assert!(stock.pages.is_sorted() && stock.pages.iter().all(|page| page.frame != 0));
        let counted: u64 = areas.iter().map(|area| area.anon).sum();
        // Other tests run in this process meanwhile.
        assert!(counted.abs_diff(stock.pages.len() as u64) < counted / 2, "{} instead of {counted}", stock.pages.len());
    }

    #[test]
    fn differences() {
        let page = |frame| Page { frame, area: 0 };
        let (these, those) = ([1, 3, 4, 9].map(page), [3, 5, 9].map(page));
        assert_eq!(without(&these, &those).map(|page| page.frame).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(without(&these, &[]).count(), 4);
    }
}
