//! What is timed.

use super::abi::cookie;

/// A span: from any of its entries to any of its exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// File offsets of the instructions where it starts: in a call before its function has changed the stack pointer.
    pub entries: Vec<u64>,
    /// Where it ends.
    pub exits: Vec<Exit>,
    /// How an exit is matched with an entry.
    pub scope: Scope,
    /// Whether the value that the function returns, as 32 bits, is counted.
    pub counts_returns: bool,
}

/// Where a span ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// When the function returns whose entry is at this file offset. Not for functions that exceptions leave, nor for Go: see the
    /// [module](super).
    Return(u64),
    /// Before the `ret` at this file offset, where the stack pointer is the one of the entry.
    Instruction(u64),
    /// Before the jump to another function at this file offset. There is no return code then.
    TailCall(u64),
}

/// How an exit is matched with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the same call. Recursive calls are spans of their own.
    Call,
    /// The last entry in the same thread.
    Thread,
}

impl Span {
    /// Whether a location is one of it.
    pub(super) fn has(&self, wanted: u64) -> bool {
        let is_exit = |exit: &Exit| match *exit {
            Exit::Return(offset) | Exit::Instruction(offset) | Exit::TailCall(offset) => offset == wanted,
        };
        self.entries.contains(&wanted) || self.exits.iter().any(is_exit)
    }

    /// The cookie of its probes, without [`cookie::RETURNED`].
    pub(super) fn cookie(&self, number: u32) -> u64 {
        let thread = if self.scope == Scope::Thread { cookie::BY_THREAD } else { 0 };
        let returns = if self.counts_returns { cookie::COUNT_RETURNS } else { 0 };
        u64::from(number) | thread | returns
    }
}
