//! The probe's call tree with resolved frames.

use std::sync::Arc;

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
    calls: Vec<Option<Call>>,
}

impl Tree {
    /// Adds calls. A caller precedes its callees or is already present. Numbers are never reused: a resolved call is
    /// kept as it is even after its file was deleted.
    pub(super) fn add(&mut self, calls: Vec<(u32, Call)>) {
        for (number, call) in calls {
            let index = number as usize;
            if self.calls.len() <= index {
                self.calls.resize(index + 1, None);
            }
            if let Some(free @ None) = self.calls.get_mut(index) {
                *free = Some(call);
            }
        }
    }

    /// Returns the call with a number.
    pub(super) fn call(&self, number: u32) -> Option<&Call> {
        self.calls.get(number as usize)?.as_ref()
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
