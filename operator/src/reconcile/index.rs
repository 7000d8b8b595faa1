//! An index of pod selectors.
//!
//! The selectors of a namespace are grouped by the label keys in their `matchLabels`. A lookup takes the pod's values of
//! these keys, so that its cost is the number of different key sets, not the number of nodes. The caller evaluates the
//! complete selector of each candidate.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_spec::PodSelector;

use super::input::{Key, PodInput};

/// Label keys, or label values in the order of their keys.
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

    /// Nodes whose `matchLabels` match the pod.
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

/// The keys and the values of `matchLabels`, both sorted by key.
fn split(selector: &PodSelector) -> (Labels, Labels) {
    let keys = selector.match_labels.keys().map(|key| key.as_str().into()).collect();
    let values = selector.match_labels.values().map(|value| value.as_str().into()).collect();
    (keys, values)
}
