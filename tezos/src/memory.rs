//! Memory that the buffers of several conversations share: a budget, reservations of it, and buffers that hold one. The
//! same conversations share the processing of their resynchronisations (`work`).
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::work::SharedWork;

/// A number of bytes that the conversations of one node share for what they buffer: incomplete chunks and messages, and
/// the windows and tables of resynchronisations. Unlimited by default. A clone is the same budget.
///
/// What the beginning of a message needs is taken from half of the budget only, so that messages, which are recorded
/// without it as well, leave memory to chunks.
///
/// These conversations also share a budget of processing for their resynchronisations, refilled by the bytes captured of
/// them and by the time of capture. It is not part of any other budget.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    used: AtomicUsize,
    work: SharedWork,
    /// The budget that this one is part of.
    parent: MemoryBudget,
}

/// Part of a budget that a reservation may use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    Whole,
    Half,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self::default().part(limit)
    }

    /// A budget of `limit` bytes, each of which is also taken from this one.
    #[must_use]
    pub fn part(&self, limit: usize) -> Self {
        let work = SharedWork::new();
        Self(Some(Arc::new(Shared { limit, used: AtomicUsize::new(0), work, parent: self.clone() })))
    }

    /// Number of reserved bytes; 0 if the budget is unlimited.
    pub fn used(&self) -> usize {
        self.0.as_ref().map_or(0, |shared| shared.used.load(Ordering::Relaxed))
    }

    /// Processing spent on resynchronisations so far, in units of about 0.1 µs; 0 if the budget is unlimited.
    pub fn search_units(&self) -> u64 {
        self.work().map_or(0, SharedWork::spent)
    }

    /// The budget of processing; `None` if it is unlimited.
    pub(crate) fn work(&self) -> Option<&SharedWork> {
        self.0.as_deref().map(|shared| &shared.work)
    }

    /// An empty reservation.
    pub(crate) fn reservation(&self, share: Share) -> Reservation {
        Reservation { budget: self.0.clone(), share, bytes: 0 }
    }
}

/// Bytes of a budget, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Option<Arc<Shared>>,
    share: Share,
    bytes: usize,
}

impl Reservation {
    /// Changes the number of reserved bytes. Returns false, and leaves it as it is, if the budget does not have them.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let is_reserved = self.budget.as_deref().is_none_or(|shared| shared.resize(self.bytes, bytes, self.share));
        if is_reserved {
            self.bytes = bytes;
        }
        is_reserved
    }
}

impl Shared {
    /// Changes a reservation from `before` to `after` bytes, here and in the budgets that this one is part of, or in none.
    fn resize(&self, before: usize, after: usize, share: Share) -> bool {
        let limit = match share {
            Share::Whole => self.limit,
            Share::Half => self.limit / 2,
        };
        let fits = |total: usize| Some(total - before + after).filter(|total| *total <= limit || after <= before);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        let is_reserved = self.parent.0.as_ref().is_none_or(|parent| parent.resize(before, after, share));
        if !is_reserved {
            // Only a reservation that grows is refused.
            self.used.fetch_sub(after - before, Ordering::Relaxed);
        }
        is_reserved
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// A byte buffer whose capacity is reserved of a budget, but for its first `free` bytes.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    free: usize,
    reservation: Reservation,
}

impl Buffer {
    pub(crate) fn new(budget: &MemoryBudget, share: Share, free: usize) -> Self {
        Self { bytes: Vec::new(), free, reservation: budget.reservation(share) }
    }

    /// Appends bytes, to a length of at most `max` bytes in the end. Returns false, and appends none, if the budget does
    /// not have them.
    pub(crate) fn extend(&mut self, bytes: &[u8], max: usize) -> bool {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let doubled = (2 * self.bytes.capacity()).min(max).max(needed);
            let mut reserve = |capacity: usize| self.reservation.resize(capacity.saturating_sub(self.free));
            let Some(capacity) = [doubled, needed].into_iter().find(|capacity| reserve(*capacity)) else {
                return false;
            };
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Removes the first `count` bytes.
    pub(crate) fn remove_first(&mut self, count: usize) {
        self.bytes.drain(..count);
    }

    /// Takes the bytes; the buffer is empty then.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.reservation.resize(0);
        std::mem::take(&mut self.bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_share_the_budget_and_give_it_back() {
        let budget = MemoryBudget::new(100);
        let mut first = Buffer::new(&budget, Share::Whole, 10);
        assert!(first.extend(&[1; 10], usize::MAX));
        assert_eq!(budget.used(), 0, "the first bytes are free");
        assert!(first.extend(&[1; 50], usize::MAX));
        assert_eq!(budget.used(), 50);
        let mut second = Buffer::new(&budget, Share::Whole, 0);
        assert!(!second.extend(&[2; 51], usize::MAX));
        assert!(second.is_empty());
        assert!(second.extend(&[2; 50], usize::MAX));
        assert!(!first.extend(&[1; 1], usize::MAX));
        assert_eq!((first.len(), budget.used()), (60, 100));
        assert_eq!(first.take(), [1; 60]);
        assert_eq!(budget.used(), 50);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn half_of_the_budget_is_kept_for_chunks() {
        let budget = MemoryBudget::new(100);
        let mut message = Buffer::new(&budget, Share::Half, 0);
        assert!(!message.extend(&[0; 51], usize::MAX));
        assert!(message.extend(&[0; 50], usize::MAX));
        let mut chunk = Buffer::new(&budget, Share::Whole, 0);
        assert!(chunk.extend(&[0; 50], usize::MAX));
        assert!(!message.extend(&[0; 1], usize::MAX));
    }

    #[test]
    fn parts_share_the_whole() {
        let whole = MemoryBudget::new(100);
        let (first, second) = (whole.part(80), whole.part(80));
        let mut greedy = Buffer::new(&first, Share::Whole, 0);
        assert!(!greedy.extend(&[0; 81], usize::MAX));
        assert_eq!((first.used(), whole.used()), (0, 0));
        assert!(greedy.extend(&[0; 80], usize::MAX));
        let mut other = Buffer::new(&second, Share::Whole, 0);
        assert!(!other.extend(&[0; 21], usize::MAX));
        assert_eq!((second.used(), whole.used()), (0, 80));
        assert!(other.extend(&[0; 20], usize::MAX));
        drop(greedy);
        assert_eq!((first.used(), second.used(), whole.used()), (0, 20, 20));
    }

    #[test]
    fn capacity_grows_up_to_the_announced_length() {
        let budget = MemoryBudget::new(1_000);
        let mut buffer = Buffer::new(&budget, Share::Whole, 0);
        for _ in 0..100 {
            assert!(buffer.extend(&[0], 100));
        }
        assert_eq!(budget.used(), 100);
    }
}
