//! Processes of the target table, as plans match them.

use std::time::Instant;

use super::{Assignment, Owner, ProcessFacts, system::ExitWatch};

/// The state of a known process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TargetState {
    /// Captured and interpreted.
    Observed(Owner, Assignment),
    /// Captured, and kept until it is decided whether it is a target.
    Held { since: Instant, exited: bool },
    /// Not captured any more.
    Released,
}

/// A process of the table.
pub(crate) struct TrackedProcess {
    pub(crate) facts: ProcessFacts,
    pub(crate) exit: Box<dyn ExitWatch>,
    pub(crate) state: TargetState,
}

impl TrackedProcess {
    /// Whose process it is observed as.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match &self.state {
            TargetState::Observed(owner, _) => Some(owner),
            _ => None,
        }
    }
}

/// The result of matching a process with a plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MatchResult {
    Observe(Owner, Assignment),
    /// A later configuration may name it.
    Hold,
    Ignore,
}
