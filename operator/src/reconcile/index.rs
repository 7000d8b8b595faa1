//! Which nodes may select a pod, without asking every node.
//!
//! Selectors of one namespace are grouped by the label keys that they name in `matchLabels`. A pod's values of these
//! keys are looked up, so that the cost is the number of different sets of keys, not the number of nodes. What is found
//! is then asked for the rest of its selector.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_spec::PodSelector;

use super::input::{Key, PodInput};

/// Keys of labels, or their values.
type Labels = Box<[Box<str>]>;
type ByValues = BTreeMap<Labels, BTreeSet<Key>>;

/// The selectors of one namespace.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    groups: BTreeMap<Labels, ByValues>,
}

impl Selectors {
    pub(super) fn insert(&mut self, node: &Key, selector: &PodSelector) {
        let (keys, values) = split(selector);
        self.groups.entry(keys).or_default().entry(values).or_default().insert(node.clone());
    }

    pub(super) fn remove(&mut self, node: &Key, selector: &PodSelector) {
        let (keys, values) = split(selector);
        let Some(group) = self.groups.get_mut(&keys) else { return };
        if let Some(nodes) = group.get_mut(&values) {
            nodes.remove(node);
            if nodes.is_empty() {
                group.remove(&values);
            }
        }
        if group.is_empty() {
            self.groups.remove(&keys);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Nodes whose `matchLabels` the pod satisfies.
    pub(super) fn candidates<'a>(&'a self, pod: &'a PodInput) -> impl Iterator<Item = &'a Key> {
        self.groups
            .iter()
            .filter_map(|(keys, group)| {
                let values: Option<Labels> = keys.iter().map(|key| pod.label(key).map(Into::into)).collect();
                group.get(&values?)
            })
            .flatten()
    }
}

/// Keys and values of the labels, in order of the keys.
fn split(selector: &PodSelector) -> (Labels, Labels) {
    let keys = selector.match_labels.keys().map(|key| key.as_str().into()).collect();
    let values = selector.match_labels.values().map(|value| value.as_str().into()).collect();
    (keys, values)
}
