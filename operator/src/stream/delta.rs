//! Updates of one stream: the difference between the state the client holds and the desired state.
//!
//! Updates are not queued for a slow client: the next update is computed when the client can receive it, and contains all
//! changes since the last one.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message;

/// Maximum size of a part, so that a gRPC frame stays below 1 MiB.
pub(crate) const PART_BYTES: usize = 1_000_000;

/// Encoding overhead of an item or a removed key: field tag and length.
const ITEM_OVERHEAD: usize = 8;

/// The state of a client after it has applied all sent updates.
#[derive(Debug)]
pub(crate) struct ClientState<T> {
    held: BTreeMap<String, Arc<T>>,
    /// Generation of the last update; 0 before the first.
    generation: u64,
    part_bytes: usize,
}

/// A part of an update; fields as in `HostUpdate` and `CatalogUpdate`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part<T> {
    pub(crate) generation: u64,
    pub(crate) snapshot: bool,
    pub(crate) more: bool,
    pub(crate) changed: Vec<Arc<T>>,
    pub(crate) removed: Vec<String>,
}

impl<T: Message + PartialEq> ClientState<T> {
    /// The state before the first update.
    pub(crate) fn new(part_bytes: usize) -> Self {
        Self { held: BTreeMap::new(), generation: 0, part_bytes }
    }

    /// Returns the parts of the update to `desired` and assumes that they are sent. The first update is a snapshot, later
    /// ones are the changes; without changes there are no parts. An item larger than a part gets a part of its own.
    pub(crate) fn update(&mut self, desired: &BTreeMap<String, Arc<T>>) -> Vec<Part<T>> {
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
        let mut parts = Parts { parts: Vec::new(), bytes: 0, limit: self.part_bytes, empty: self.empty(snapshot) };
        for key in removed {
            parts.part_for(key.len()).removed.push(key.clone());
            self.held.remove(&key);
        }
        for (key, item) in changed {
            parts.part_for(item.encoded_len()).changed.push(Arc::clone(&item));
            self.held.insert(key, item);
        }
        let mut parts = parts.parts;
        if parts.is_empty() {
            // An empty snapshot is sent as well: it replaces the state of an earlier stream.
            parts.push(self.empty(snapshot));
        }
        if let Some(last) = parts.last_mut() {
            last.more = false;
        }
        parts
    }

    fn empty(&self, snapshot: bool) -> Part<T> {
        Part { generation: self.generation, snapshot, more: true, changed: Vec::new(), removed: Vec::new() }
    }
}

struct Parts<T> {
    parts: Vec<Part<T>>,
    /// Size of the last part.
    bytes: usize,
    limit: usize,
    empty: Part<T>,
}

impl<T> Parts<T> {
    /// The part for an item of this size: the last one, or a new one if it is full.
    fn part_for(&mut self, bytes: usize) -> &mut Part<T> {
        let bytes = bytes + ITEM_OVERHEAD;
        let full = self.bytes + bytes > self.limit;
        if let (false, Some(at)) = (full, self.parts.len().checked_sub(1)) {
            self.bytes += bytes;
            return &mut self.parts[at];
        }
        self.bytes = bytes;
        let Part { generation, snapshot, more, .. } = self.empty;
        self.parts.push(Part { generation, snapshot, more, changed: Vec::new(), removed: Vec::new() });
        let at = self.parts.len() - 1;
        &mut self.parts[at]
    }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{CatalogNode, CatalogUpdate};
    use proptest::prelude::*;

    use super::{Arc, BTreeMap, ClientState, ITEM_OVERHEAD, Message as _, Part};

    type Map = BTreeMap<String, Arc<CatalogNode>>;

    fn node(name: &str, keep_rows: u64, hosts: usize) -> Arc<CatalogNode> {
        let hosts = vec!["host".to_owned(); hosts];
        Arc::new(CatalogNode { node: name.to_owned(), keep_rows: Some(keep_rows), hosts, ..Default::default() })
    }

    /// A client that applies updates as `config.proto` specifies.
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
        fn applied_updates_equal_the_desired_state(maps in maps(), limit in 20..600_usize, stale in any::<bool>()) {
            let mut sent = ClientState::new(limit);
            let mut client = Client::default();
            if stale {
                // State of an earlier stream.
                client.map.insert("z".to_owned(), node("z", 1, 1));
            }
            let mut before: Option<Map> = None;
            for desired in maps {
                let parts = sent.update(&desired);
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
    fn a_slow_client_receives_the_accumulated_changes() {
        let mut client = ClientState::new(1000);
        client.update(&Map::new());
        // Changes and reverts between two updates are not sent.
        for _ in 0..3 {
            assert!(client.update(&Map::new()).is_empty());
        }
        let desired: Map = [("a".to_owned(), node("a", 3, 1))].into();
        let parts = client.update(&desired);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].changed, vec![node("a", 3, 1)]);
        assert!(client.update(&desired.clone()).is_empty(), "equal items in another allocation are unchanged");
    }

    #[test]
    fn parts_are_filled_up_to_the_limit() {
        let desired: Map = (0..10).map(|at| format!("n{at}")).map(|name| (name.clone(), node(&name, 0, 0))).collect();
        let one = desired["n0"].encoded_len() + ITEM_OVERHEAD;
        let mut client = ClientState::new(one * 4);
        let counts: Vec<_> = client.update(&desired).iter().map(|part| (part.changed.len(), part.more)).collect();
        assert_eq!(counts, [(4, true), (4, true), (2, false)]);
    }
}
