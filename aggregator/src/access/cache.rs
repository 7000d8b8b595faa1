//! Answers that are remembered for a while, and not too many of them.

use std::{collections::HashMap, hash::Hash, time::Instant};

use parking_lot::Mutex;

/// Answers of one generation. There are two; the older one is dropped when the younger is full.
const GENERATION: usize = 8192;

/// A bounded memory of answers, each good until its time.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    kept: Mutex<[HashMap<K, (Instant, V)>; 2]>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { kept: Mutex::new([HashMap::new(), HashMap::new()]) }
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let kept = self.kept.lock();
        let [young, old] = &*kept;
        let (until, value) = young.get(key).or_else(|| old.get(key))?;
        (Instant::now() < *until).then(|| value.clone())
    }

    pub(super) fn put(&self, key: K, value: V, until: Instant) {
        let mut kept = self.kept.lock();
        let [young, old] = &mut *kept;
        if young.len() >= GENERATION && !young.contains_key(&key) {
            *old = std::mem::take(young);
        }
        young.insert(key, (until, value));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Cache, GENERATION};

    #[test]
    fn answers_end_and_their_number_is_bounded() {
        let cache = Cache::default();
        let later = Instant::now() + Duration::from_secs(3600);
        cache.put(0, 'a', Instant::now());
        assert_eq!(cache.get(&0), None, "its time is over");
        cache.put(0, 'b', later);
        assert_eq!(cache.get(&0), Some('b'));
        for key in 1..=2 * GENERATION {
            cache.put(key, 'c', later);
        }
        assert_eq!(cache.get(&0), None);
        assert_eq!(cache.get(&(2 * GENERATION)), Some('c'));
        let kept = cache.kept.lock();
        assert!(kept.iter().all(|generation| generation.len() <= GENERATION));
    }
}
