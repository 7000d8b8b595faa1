//! Addresses of the symbols that operands name.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Unsupported;

/// Names with the addresses found for them.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    by_name: BTreeMap<String, BTreeSet<u64>>,
    longest: usize,
}

impl Symbols {
    pub(crate) fn want(&mut self, name: &str) {
        self.by_name.entry(name.to_owned()).or_default();
        self.longest = self.longest.max(name.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Length of the longest name, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The name, if it is wanted and has no address yet.
    pub(crate) fn missing(&self, name: &[u8]) -> Option<&str> {
        let (name, found) = self.by_name.get_key_value(std::str::from_utf8(name).ok()?)?;
        found.is_empty().then_some(name)
    }

    pub(crate) fn add(&mut self, found: BTreeMap<String, Vec<u64>>) {
        for (name, addresses) in found {
            self.by_name.entry(name).or_default().extend(addresses);
        }
    }

    pub(crate) fn resolve(&self, name: &str) -> Result<u64, Unsupported> {
        let mut addresses = self.by_name.get(name).into_iter().flatten();
        match (addresses.next(), addresses.next()) {
            (Some(address), None) => Ok(*address),
            (None, _) => Err(Unsupported::NoSymbol(name.to_owned())),
            (Some(_), Some(_)) => Err(Unsupported::AmbiguousSymbol(name.to_owned())),
        }
    }
}
