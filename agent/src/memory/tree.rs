//! The probe's call tree, with names.

use std::sync::Arc;

use chainscope_ebpf::memory::{Frame, Node, StackEnd};

use crate::symbols::{Place, Symbols};

/// What is known of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// In a file.
    Code { offset: u64, place: Arc<Place> },
    /// In no file, or of no file that is known.
    Bare { offset: u64, name: &'static str },
}

/// A call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Number of the caller's node; 0: there is none.
    pub(super) parent: u32,
    pub(super) named: Named,
}

/// All calls by number; the root is the first and is none.
#[derive(Debug, Default)]
pub(super) struct Tree {
    calls: Vec<Option<Call>>,
}

impl Tree {
    /// Takes calls in; each comes after its caller, or its caller is known. A number is never used again: what was named
    /// once stays as it is, also when its file is gone.
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

    /// Call of a number.
    pub(super) fn call(&self, number: u32) -> Option<&Call> {
        self.calls.get(number as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }
}

/// Finds the names of calls, which may take long.
pub(super) fn name_all(nodes: &[Node], symbols: &mut Symbols) -> Vec<(u32, Call)> {
    let named = |node: &Node| (node.id.0, Call { parent: node.parent.0, named: name(&node.frame, symbols) });
    nodes.iter().map(named).collect()
}

fn name(frame: &Frame, symbols: &mut Symbols) -> Named {
    match *frame {
        Frame::Code { module, offset, exact } => match symbols.place(module.0, offset, !exact) {
            Some(place) => Named::Code { offset, place },
            None => Named::Bare { offset, name: "" },
        },
        Frame::Anonymous { pc, .. } => Named::Bare { offset: pc, name: "[anon]" },
        Frame::Incomplete(end) => Named::Bare { offset: 0, name: incomplete(end) },
    }
}

/// What stands in the tree above a stack of which the outer frames are missing.
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
