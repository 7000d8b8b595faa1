//! What a source has delivered, and what it has not.

use std::{borrow::Cow, collections::BTreeMap};

use crate::event::Timestamp;

/// Hits of all attached tracepoints between two points in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// When the source was attached.
    pub from: Timestamp,
    /// When it was detached, or now.
    pub until: Timestamp,
    /// By `provider:name`. A tracepoint that is attached but was not hit is listed, too.
    pub tracepoints: BTreeMap<String, Counts>,
}

/// Hits of a tracepoint: `hits = delivered + dropped`, the sum over all reasons, plus those that are still on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was hit.
    pub hits: u64,
    /// Events that the source has returned.
    pub delivered: u64,
    /// Events, of those delivered, of which the end of a payload was lost because there was no room for it.
    pub incomplete: u64,
    /// Events that were lost, by reason in `snake_case`, such as `ring_full`.
    pub dropped: BTreeMap<Cow<'static, str>, u64>,
}

impl Accounting {
    /// The sum over all tracepoints.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self.tracepoints.values() {
            total.hits += counts.hits;
            total.delivered += counts.delivered;
            total.incomplete += counts.incomplete;
            for (reason, count) in &counts.dropped {
                *total.dropped.entry(reason.clone()).or_default() += count;
            }
        }
        total
    }
}

impl Counts {
    /// The sum over all reasons.
    #[must_use]
    pub fn all_dropped(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Hits that are neither delivered nor counted as dropped: on their way, or not explained. Negative if more was delivered
    /// than was hit.
    #[must_use]
    pub fn residual(&self) -> i64 {
        self.hits.wrapping_sub(self.delivered).wrapping_sub(self.all_dropped()).cast_signed()
    }
}
