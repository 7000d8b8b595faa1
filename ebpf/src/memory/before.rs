//! What was resident before a process was watched, and still is.

use super::reading::Resident;

/// The kernel takes a page off a process's count some milliseconds before it frees it, and enters one after it was
/// allocated. So a single look may find less left than there is: the most of several looks counts, of at least this time.
const WINDOW_NS: u64 = 1_000_000_000;
/// Looks in that time.
const LOOKS: u32 = 3;
/// Pages that a processor may be about to put on the kernel's lists. Given back by the process, they stay allocated until
/// it does, for want of other work perhaps for minutes: so many are not taken for freed ones of before.
const IN_HAND: u64 = 64;

/// What is left of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// At most.
    resident: Resident,
    /// Pages that all processors may have in hand.
    in_hand: u64,
    began_ns: u64,
    looks: u32,
    most: u64,
}

impl Before {
    /// At the moment of attach.
    pub(super) fn new(resident: Resident, cpus: u32) -> Self {
        Self { resident: Resident { swap: 0, ..resident }, in_hand: IN_HAND * u64::from(cpus), ..Self::default() }
    }

    /// Takes what the kernel counts at a moment, and the anonymous pages of it that are not attributed; none if pages are
    /// shared after a fork. Gives what is left.
    pub(super) fn look(&mut self, at_ns: u64, control: Resident, anon: Option<u64>) -> Resident {
        self.resident.file = self.resident.file.min(control.file);
        self.resident.shmem = self.resident.shmem.min(control.shmem);
        let Some(anon) = anon else { return self.resident };
        if self.looks == 0 {
            (self.began_ns, self.most) = (at_ns, 0);
        }
        (self.looks, self.most) = (self.looks.saturating_add(1), self.most.max(anon));
        if self.looks >= LOOKS && at_ns.saturating_sub(self.began_ns) >= WINDOW_NS {
            self.resident.anon = self.resident.anon.min(self.most.saturating_add(self.in_hand));
            self.looks = 0;
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
    fn one_look_that_finds_too_little_changes_nothing() {
        let mut before = Before::new(pages(100), 0);
        for second in 1..10 {
            let left = if second % 3 == 0 { 70 } else { 110 };
            let shown = before.look(second * WINDOW_NS, pages(200), Some(left));
            assert_eq!(shown.anon, left.min(100), "never more than there is");
        }
        assert_eq!(before.look(10 * WINDOW_NS, pages(200), Some(100)).anon, 100);
    }

    #[test]
    fn what_was_freed_does_not_come_back() {
        let mut before = Before::new(pages(100), 0);
        let first = (1..4).map(|second| before.look(second * WINDOW_NS, pages(70), Some(70)).anon);
        assert_eq!(first.collect::<Vec<_>>(), [70; 3]);
        assert_eq!(before.look(4 * WINDOW_NS, pages(170), Some(170)).anon, 70);
    }

    #[test]
    fn what_processors_have_in_hand_comes_back() {
        let mut before = Before::new(pages(1000), 2);
        let held = (1..9).map(|second| before.look(second * WINDOW_NS, pages(900), Some(900)).anon);
        assert_eq!(held.collect::<Vec<_>>(), [900; 8]);
        assert_eq!(before.look(9 * WINDOW_NS, pages(1000), Some(1000)).anon, 1000);
        let freed = (10..19).map(|second| before.look(second * WINDOW_NS, pages(500), Some(500)).anon);
        assert_eq!(freed.collect::<Vec<_>>(), [500; 9]);
        assert_eq!(before.look(20 * WINDOW_NS, pages(900), Some(900)).anon, 500 + 2 * IN_HAND);
    }

    #[test]
    fn looks_at_one_moment_are_one() {
        let mut before = Before::new(pages(100), 0);
        for moment in 0..50 {
            assert_eq!(before.look(moment, pages(60), Some(60)).anon, 60);
        }
        assert_eq!(before.look(WINDOW_NS / 2, pages(100), Some(100)).anon, 100);
    }
}
