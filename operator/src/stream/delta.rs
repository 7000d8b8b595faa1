//! What one stream still has to be told: the difference between what it was sent and what is desired now.
//!
//! Nothing is queued for a client that is slow. Whoever asks gets the way from what this client holds to what is true
//! at that moment, however much happened in between.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message;

/// Bytes of a part at most, so that a frame stays below 1 MiB with everything around it.
pub(crate) const PART_BYTES: usize = 1_000_000;

/// Bytes around an item or a removed key in a message: its tag and length.
const AROUND: usize = 8;

/// What a client of this stream holds once it has applied everything it was sent.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    held: BTreeMap<String, Arc<T>>,
    /// Of the last update; 0 before the first.
    generation: u64,
    part_bytes: usize,
}

/// A part of an update; the fields as in `HostUpdate` and `CatalogUpdate`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part<T> {
    pub(crate) generation: u64,
    pub(crate) snapshot: bool,
    pub(crate) more: bool,
    pub(crate) changed: Vec<Arc<T>>,
    pub(crate) removed: Vec<String>,
}

impl<T: Message + PartialEq> Sent<T> {
    /// Nothing was sent yet.
    pub(crate) fn new(part_bytes: usize) -> Self {
        Self { held: BTreeMap::new(), generation: 0, part_bytes }
    }

    /// The parts of the update that leads to `desired`: a snapshot the first time, afterwards what changed, or nothing.
    /// They are taken for sent. An item that alone is larger than a part is in a part of its own.
    pub(crate) fn next(&mut self, desired: &BTreeMap<String, Arc<T>>) -> Vec<Part<T>> {
        let snapshot = self.generation == 0;
        let changed = desired
            .iter()
            .filter(|(key, item)| {
                !self.held.get(*key).is_some_and(|held| Arc::ptr_eq(held, item) || held.as_ref() == item.as_ref())
            })
            .map(|(key, item)| (key.clone(), Arc::clone(item)))
            .collect::<Vec<_>>();
        let removed = self.held.keys().filter(|key| !desired.contains_key(*key)).cloned().collect::<Vec<_>>();
        if changed.is_empty() && removed.is_empty() && !snapshot {
            return Vec::new();
        }
        self.generation += 1;
        let mut parts = Parts { done: Vec::new(), bytes: 0, limit: self.part_bytes, blank: self.blank(snapshot) };
        for key in removed {
            parts.room(key.len()).removed.push(key.clone());
            self.held.remove(&key);
        }
        for (key, item) in changed {
            parts.room(item.encoded_len()).changed.push(Arc::clone(&item));
            self.held.insert(key, item);
        }
        let mut parts = parts.done;
        if parts.is_empty() {
            // A snapshot of nothing is said, too: what the client holds from before is void.
            parts.push(self.blank(snapshot));
        }
        if let Some(last) = parts.last_mut() {
            last.more = false;
        }
        parts
    }

    fn blank(&self, snapshot: bool) -> Part<T> {
        Part { generation: self.generation, snapshot, more: true, changed: Vec::new(), removed: Vec::new() }
    }
}

struct Parts<T> {
    done: Vec<Part<T>>,
    /// In the last part.
    bytes: usize,
    limit: usize,
    blank: Part<T>,
}

impl<T> Parts<T> {
    /// The part that takes the next `bytes`.
    fn room(&mut self, bytes: usize) -> &mut Part<T> {
        let bytes = bytes + AROUND;
        let full = self.bytes + bytes > self.limit;
        if let (false, Some(at)) = (full, self.done.len().checked_sub(1)) {
            self.bytes += bytes;
            return &mut self.done[at];
        }
        self.bytes = bytes;
        let Part { generation, snapshot, more, .. } = self.blank;
        self.done.push(Part { generation, snapshot, more, changed: Vec::new(), removed: Vec::new() });
        let at = self.done.len() - 1;
        &mut self.done[at]
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{CatalogNode, CatalogUpdate};
    use proptest::prelude::*;

    use super::{AROUND, Arc, BTreeMap, Message as _, Part, Sent};

    type Map = BTreeMap<String, Arc<CatalogNode>>;

    fn node(name: &str, keep_rows: u64, hosts: usize) -> Arc<CatalogNode> {
        let hosts = vec!["host".to_owned(); hosts];
        Arc::new(CatalogNode { node: name.to_owned(), keep_rows: Some(keep_rows), hosts, ..Default::default() })
    }

    /// What a client does, as the protocol's description says.
    #[derive(Default)]
    struct Client {
        map: Map,
        parts: Vec<Part<CatalogNode>>,
        generation: u64,
    }

    impl Client {
        fn take(&mut self, part: Part<CatalogNode>) {
            if let Some(first) = self.parts.first() {
                assert_eq!((first.generation, first.snapshot), (part.generation, part.snapshot));
            }
            let more = part.more;
            self.parts.push(part);
            if more {
                return;
            }
            let parts = std::mem::take(&mut self.parts);
            assert!(parts[0].generation > self.generation);
            self.generation = parts[0].generation;
            if parts[0].snapshot {
                self.map.clear();
            }
            for part in parts {
                for key in part.removed {
                    assert!(self.map.remove(&key).is_some(), "{key} was removed without being there");
                }
                self.map.extend(part.changed.into_iter().map(|node| (node.node.clone(), node)));
            }
        }
    }

    fn encoded(part: &Part<CatalogNode>) -> usize {
        CatalogUpdate {
            version: u32::MAX,
            generation: u64::MAX,
            snapshot: true,
            more: true,
            nodes: part.changed.iter().map(|node| node.as_ref().clone()).collect(),
            removed: part.removed.clone(),
        }
        .encoded_len()
    }

    fn maps() -> impl Strategy<Value = Vec<Map>> {
        let map = prop::collection::btree_map("[a-h]", (0..3_u64, 0..30_usize), 0..8).prop_map(|map| {
            map.into_iter().map(|(name, (rows, hosts))| (name.clone(), node(&name, rows, hosts))).collect::<Map>()
        });
        prop::collection::vec(map, 1..12)
    }

    proptest! {
        #[test]
        fn updates_always_lead_to_what_is_desired(maps in maps(), limit in 20..600_usize, stale in any::<bool>()) {
            let mut sent = Sent::new(limit);
            let mut client = Client::default();
            if stale {
                // What a client holds from an earlier stream.
                client.map.insert("z".to_owned(), node("z", 1, 1));
            }
            let mut before: Option<Map> = None;
            for desired in maps {
                let parts = sent.next(&desired);
                prop_assert_eq!(parts.is_empty(), before.as_ref() == Some(&desired));
                for part in parts {
                    prop_assert_eq!(part.snapshot, before.is_none());
                    let items = part.changed.len() + part.removed.len();
                    prop_assert!(items <= 1 || encoded(&part) <= limit + 32, "{} bytes", encoded(&part));
                    if let Some(before) = &before {
                        prop_assert!(part.changed.iter().all(|node| before.get(&node.node) != Some(node)));
                    }
                    client.take(part);
                }
                prop_assert!(client.parts.is_empty(), "the last part has no more");
                prop_assert_eq!(&client.map, &desired);
                prop_assert_eq!(client.generation, sent.generation);
                before = Some(desired);
            }
        }
    }

    #[test]
    fn a_slow_client_is_told_the_sum() {
        let mut sent = Sent::new(1000);
        sent.next(&Map::new());
        // It comes, changes and goes while the client does not ask.
        for _ in 0..3 {
            assert!(sent.next(&Map::new()).is_empty());
        }
        let desired: Map = [("a".to_owned(), node("a", 3, 1))].into();
        let parts = sent.next(&desired);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].changed, vec![node("a", 3, 1)]);
        assert!(sent.next(&desired.clone()).is_empty(), "equal is unchanged, whatever the allocation");
    }

    #[test]
    fn parts_are_filled() {
        let desired: Map = (0..10).map(|at| format!("n{at}")).map(|name| (name.clone(), node(&name, 0, 0))).collect();
        let one = desired["n0"].encoded_len() + AROUND;
        let mut sent = Sent::new(one * 4);
        let counts: Vec<_> = sent.next(&desired).iter().map(|part| (part.changed.len(), part.more)).collect();
        assert_eq!(counts, [(4, true), (4, true), (2, false)]);
    }
}
