//! The order of events.
//!
//! The ring has events in the order in which their capture ended. A hit holds a slot from before its time is taken until its
//! event is in the ring. So if the slots are read first, and then the ring up to its end, every event of an earlier time than
//! that of the oldest hit in progress has been read, and can be delivered in order.

use std::time::Duration;

use super::abi::STARTING;
use super::event::Event;

/// What the kernel's clock for programs may be behind `CLOCK_MONOTONIC`, or ahead.
const CLOCK_TOLERANCE: u64 = 10_000;

/// Events that wait for earlier ones.
#[derive(Debug)]
pub(super) struct Order {
    max_hold: u64,
    max_bytes: u64,
    waiting: Vec<Event>,
    /// All events before this time have been read from the ring.
    complete: u64,
}

impl Order {
    /// Maximum time that events wait, and maximum of their bytes.
    pub(super) fn new(max_hold: Duration, max_bytes: u64) -> Self {
        let max_hold = u64::try_from(max_hold.as_nanos()).unwrap_or(u64::MAX);
        Self { max_hold, max_bytes, waiting: Vec::new(), complete: 0 }
    }

    /// All events before this time have been read, unless they are later than what events wait for.
    pub(super) fn complete(&self) -> u64 {
        self.complete
    }

    /// Whether there are events that wait for earlier ones.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn add(&mut self, event: Event) {
        self.waiting.push(event);
    }

    /// The time before which no event will follow once the ring is read to its end, from the slots as they were after `now`.
    pub(super) fn horizon(&self, now: u64, slots: impl Iterator<Item = u64>) -> u64 {
        let oldest = slots.filter(|time| *time != 0).min();
        let horizon = match oldest {
            None => now,
            // It has no time yet; not before the last horizon, when it had no slot, or none of its own.
            Some(STARTING) => self.complete,
            Some(time) => time.min(now),
        };
        horizon.saturating_sub(CLOCK_TOLERANCE).max(now.saturating_sub(self.max_hold))
    }

    /// Passes events before the horizon to `f`, in the order of time, and returns their number.
    pub(super) fn deliver(&mut self, horizon: u64, f: &mut dyn FnMut(Event)) -> usize {
        self.complete = self.complete.max(horizon);
        self.waiting.sort_by_key(|event| event.time_ns);
        self.complete = self.complete.max(self.least_horizon());
        let count = self.waiting.partition_point(|event| event.time_ns < self.complete);
        self.waiting.drain(..count).for_each(f);
        count
    }

    /// The horizon with which not too many bytes wait.
    fn least_horizon(&self) -> u64 {
        let mut bytes = 0_u64;
        let first_too_many = self.waiting.iter().rev().find(|event| {
            bytes += event.bytes();
            bytes > self.max_bytes
        });
        first_too_many.map_or(0, |event| event.time_ns.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::event::LocationId;

    fn event(time_ns: u64) -> Event {
        let comm = Vec::new();
        Event { location: LocationId(0), time_ns, pid: 1, tid: 1, cpu: 0, comm, arguments: Vec::new() }
    }

    #[test]
    fn a_later_event_waits_for_a_hit_in_progress() {
        let mut order = Order::new(Duration::from_millis(500), u64::MAX);
        let start = 1_000_000_000;
        let mut delivered = Vec::new();
        order.add(event(start + 300));
        order.add(event(start + 100));
        let horizon = order.horizon(start + 1_000_000, [0, start + 200 + CLOCK_TOLERANCE].into_iter());
        assert_eq!(order.deliver(horizon, &mut |event| delivered.push(event.time_ns - start)), 1);
        // A hit that has no time yet does not move the horizon.
        let horizon = order.horizon(start + 2_000_000, [STARTING, 0].into_iter());
        assert_eq!(order.deliver(horizon, &mut |event| delivered.push(event.time_ns - start)), 0);
        order.add(event(start + 200));
        let horizon = order.horizon(start + 3_000_000, [0, 0].into_iter());
        assert_eq!(order.deliver(horizon, &mut |event| delivered.push(event.time_ns - start)), 2);
        assert_eq!(delivered, [100, 200, 300]);
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut order = Order::new(Duration::from_millis(500), u64::MAX);
        let mut delivered = 0;
        order.add(event(2_000_000_000));
        let hung = [1_000_000_000];
        let horizon = order.horizon(2_499_999_999, hung.into_iter());
        assert_eq!(order.deliver(horizon, &mut |_| delivered += 1), 0);
        let horizon = order.horizon(2_500_000_001, hung.into_iter());
        assert_eq!(order.deliver(horizon, &mut |_| delivered += 1), 1);
        assert_eq!(delivered, 1);
    }

    #[test]
    fn the_bytes_that_wait_are_bounded() {
        let one = event(0).bytes();
        let mut order = Order::new(Duration::from_secs(1_000_000), 3 * one);
        let mut delivered = Vec::new();
        for time in [50, 10, 40, 20, 30] {
            order.add(event(time));
        }
        assert_eq!(order.deliver(0, &mut |event| delivered.push(event.time_ns)), 2);
        assert_eq!((&*delivered, order.complete()), (&[10, 20][..], 21));
        // What they waited for is late; it does not wait itself.
        order.add(event(5));
        assert_eq!(order.deliver(0, &mut |event| delivered.push(event.time_ns)), 1);
        assert_eq!(order.deliver(100, &mut |event| delivered.push(event.time_ns)), 3);
        assert_eq!(delivered, [10, 20, 5, 30, 40, 50]);
    }
}
