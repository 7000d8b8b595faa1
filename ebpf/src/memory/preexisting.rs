//! Estimate of the memory that was resident before a process was watched, and still is.

use super::reading::Resident;

/// Minimum time of a window of samples. The kernel decrements the count of a process some milliseconds before it frees a
/// page, and increments it after the allocation. A single sample may therefore be too small: the maximum of a window
/// counts.
const SAMPLE_WINDOW_NS: u64 = 1_000_000_000;
/// Minimum number of samples of a window.
const MIN_SAMPLES: u32 = 3;
/// Pages in the per-CPU batches (folio batches) of a CPU. After the process has unmapped them, they remain allocated until
/// the batch is drained, on an idle CPU for minutes; this number of pages is not subtracted as freed.
const BATCHED_PAGES_PER_CPU: u64 = 64;

/// Upper bound of the pages that are left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PreexistingPages {
    /// Upper bound.
    resident: Resident,
    /// Pages in the batches of all CPUs.
    batched: u64,
    /// Start of the window.
    window_start_ns: u64,
    /// Samples in the window, and their maximum.
    samples: u32,
    max: u64,
}

impl PreexistingPages {
    /// The state at the moment of attach.
    pub(super) fn new(resident: Resident, cpus: u32) -> Self {
        Self {
            resident: Resident { swap: 0, ..resident },
            batched: BATCHED_PAGES_PER_CPU * u64::from(cpus),
            ..Self::default()
        }
    }

    /// Takes a sample: the count of the kernel, and the anonymous pages of it that are not attributed; `None` if pages are
    /// shared after a fork. Returns the pages that are left.
    pub(super) fn sample(&mut self, at_ns: u64, rss: Resident, anon: Option<u64>) -> Resident {
        self.resident.file = self.resident.file.min(rss.file);
        self.resident.shmem = self.resident.shmem.min(rss.shmem);
        let Some(anon) = anon else { return self.resident };
        if self.samples == 0 {
            (self.window_start_ns, self.max) = (at_ns, 0);
        }
        (self.samples, self.max) = (self.samples.saturating_add(1), self.max.max(anon));
        if self.samples >= MIN_SAMPLES && at_ns.saturating_sub(self.window_start_ns) >= SAMPLE_WINDOW_NS {
            self.resident.anon = self.resident.anon.min(self.max.saturating_add(self.batched));
            self.samples = 0;
        }
        Resident { anon: self.resident.anon.min(anon), ..self.resident }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(anon: u64) -> Resident {
        Resident { anon, ..Resident::default() }
    }

    #[test]
    fn one_sample_that_is_too_small_changes_nothing() {
        let mut preexisting = PreexistingPages::new(pages(100), 0);
        for second in 1..10 {
            let left = if second % 3 == 0 { 70 } else { 110 };
            let shown = preexisting.sample(second * SAMPLE_WINDOW_NS, pages(200), Some(left));
            assert_eq!(shown.anon, left.min(100), "never more than the unattributed pages");
        }
        assert_eq!(preexisting.sample(10 * SAMPLE_WINDOW_NS, pages(200), Some(100)).anon, 100);
    }

    #[test]
    fn freed_pages_do_not_come_back() {
        let mut preexisting = PreexistingPages::new(pages(100), 0);
        let first = (1..4).map(|second| preexisting.sample(second * SAMPLE_WINDOW_NS, pages(70), Some(70)).anon);
        assert_eq!(first.collect::<Vec<_>>(), [70; 3]);
        assert_eq!(preexisting.sample(4 * SAMPLE_WINDOW_NS, pages(170), Some(170)).anon, 70);
    }

    #[test]
    fn pages_in_cpu_batches_come_back() {
        let mut preexisting = PreexistingPages::new(pages(1000), 2);
        let held = (1..9).map(|second| preexisting.sample(second * SAMPLE_WINDOW_NS, pages(900), Some(900)).anon);
        assert_eq!(held.collect::<Vec<_>>(), [900; 8]);
        assert_eq!(preexisting.sample(9 * SAMPLE_WINDOW_NS, pages(1000), Some(1000)).anon, 1000);
        let edge_generation =
            (10..19).map(|second| preexisting.sample(second * SAMPLE_WINDOW_NS, pages(500), Some(500)).anon);
        assert_eq!(edge_generation.collect::<Vec<_>>(), [500; 9]);
        assert_eq!(
            preexisting.sample(20 * SAMPLE_WINDOW_NS, pages(900), Some(900)).anon,
            500 + 2 * BATCHED_PAGES_PER_CPU
        );
    }

    #[test]
    fn samples_at_one_moment_count_once() {
        let mut preexisting = PreexistingPages::new(pages(100), 0);
        for moment in 0..50 {
            assert_eq!(preexisting.sample(moment, pages(60), Some(60)).anon, 60);
        }
        assert_eq!(preexisting.sample(SAMPLE_WINDOW_NS / 2, pages(100), Some(100)).anon, 100);
    }
}
