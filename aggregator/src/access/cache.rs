//! Cache of answers, bounded in number, with a lifetime for each answer.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use moka::{Expiry, policy::EvictionPolicy, sync};

/// Maximum number of answers.
const MAX_ENTRIES: u64 = 16_384;

/// A bounded cache.
pub(super) struct Cache<K, V>(sync::Cache<K, (Duration, V)>);

/// Each value has its lifetime beside it.
struct ByValue;

impl<K, V> Expiry<K, (Duration, V)> for ByValue {
    fn expire_after_create(&self, _: &K, (ttl, _): &(Duration, V), _: Instant) -> Option<Duration> {
        Some(*ttl)
    }

    fn expire_after_update(
        &self,
        _: &K,
        (ttl, _): &(Duration, V),
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(*ttl)
    }
}

impl<K, V> Default for Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn default() -> Self {
        let cache = sync::Cache::builder().max_capacity(MAX_ENTRIES).eviction_policy(EvictionPolicy::lru());
        Self(cache.expire_after(ByValue).build())
    }
}

impl<K, V> Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).map(|(_, value)| value)
    }

    pub(super) fn put(&self, key: K, value: V, ttl: Duration) {
        self.0.insert(key, (ttl, value));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Cache, MAX_ENTRIES};

    #[test]
    fn answers_end_and_their_number_is_bounded() {
        let cache = Cache::default();
        let later = Duration::from_secs(3600);
        cache.put(0, 'a', Duration::ZERO);
        assert_eq!(cache.get(&0), None, "expired");
        cache.put(0, 'b', later);
        assert_eq!(cache.get(&0), Some('b'));
        for key in 1..=2 * MAX_ENTRIES {
            cache.put(key, 'c', later);
        }
        cache.0.run_pending_tasks();
        assert!(cache.0.entry_count() <= MAX_ENTRIES);
        assert_eq!((0..=2 * MAX_ENTRIES).filter(|key| cache.get(key).is_some()).count() as u64, cache.0.entry_count());
    }
}
