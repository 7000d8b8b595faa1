//! The probe's call tree with resolved frames.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chainscope_ebpf::memory::{Frame, Node, StackEnd};

use crate::symbols::{Location, Symbols};

/// A resolved frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResolvedFrame {
    /// Code in a known file.
    Code { offset: u64, location: Arc<Location> },
    /// Code outside any known file.
    Unmapped { offset: u64, name: &'static str },
}

/// A call in the tree.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Number of the caller; 0 if there is none.
    pub(super) parent: u32,
    pub(super) frame: ResolvedFrame,
}

/// All calls by number. Number 0 is the root, which is not a call.
#[derive(Debug, Default)]
pub(super) struct Tree {
    calls: BTreeMap<u32, Call>,
    /// Calls that the probe has removed, but not yet this tree.
    removed: BTreeSet<u32>,
}

impl Tree {
    /// Adds calls. A caller precedes its callees or is already present. Numbers are never reused: a resolved call is
    /// kept as it is even after its file was deleted.
    pub(super) fn add(&mut self, calls: Vec<(u32, Call)>) {
        for (number, call) in calls {
            self.calls.entry(number).or_insert(call);
        }
    }

    /// Removes calls that the probe has removed, except those that are still `needed`, and their callers: they follow at a
    /// later call.
    pub(super) fn remove(&mut self, calls: impl Iterator<Item = u32>, needed: impl Iterator<Item = u32>) {
        self.removed.extend(calls);
        if self.removed.is_empty() {
            return;
        }
        let mut kept = BTreeSet::new();
        for number in needed {
            let mut next = number;
            while next != 0 && kept.insert(next) {
                next = self.calls.get(&next).map_or(0, |call| call.parent);
            }
        }
        let calls = &mut self.calls;
        self.removed.retain(|number| {
            let is_kept = kept.contains(number);
            if !is_kept {
                calls.remove(number);
            }
            is_kept
        });
    }

    /// Returns the call with a number.
    pub(super) fn call(&self, number: u32) -> Option<&Call> {
        self.calls.get(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }
}

/// Symbolizes calls, which may take seconds.
pub(super) fn symbolize_all(nodes: &[Node], symbols: &mut Symbols) -> Vec<(u32, Call)> {
    let call = |node: &Node| (node.id.0, Call { parent: node.parent.0, frame: resolve(&node.frame, symbols) });
    nodes.iter().map(call).collect()
}

fn resolve(frame: &Frame, symbols: &mut Symbols) -> ResolvedFrame {
    match *frame {
        Frame::Code { module, offset, exact } => match symbols.symbolize(module.0, offset, !exact) {
            Some(location) => ResolvedFrame::Code { offset, location },
            None => ResolvedFrame::Unmapped { offset, name: "" },
        },
        Frame::Anonymous { pc, .. } => ResolvedFrame::Unmapped { offset: pc, name: "[anon]" },
        Frame::Incomplete(end) => ResolvedFrame::Unmapped { offset: 0, name: incomplete(end) },
    }
}

/// Label of the node above a stack whose outer frames are missing.
fn incomplete(end: StackEnd) -> &'static str {
    match end {
        StackEnd::Complete => "",
        StackEnd::Loading => "[process begins]",
        StackEnd::NoMapping => "[stack: no mapping]",
        StackEnd::NoRule => "[stack: no rule]",
        StackEnd::Unreadable => "[stack: unreadable]",
        StackEnd::Truncated => "[stack truncated]",
        StackEnd::TreeFull => "[call tree full]",
        StackEnd::NoStack => "[no stack]",
    }
}
