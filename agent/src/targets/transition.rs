//! The transition table of targets: state of a process and result of the match to next state and action. Pure.
//!
//! ```text
//!             matches a node                          exits
//!   unknown ─────────────────▶ observed ───────────────────────────────▶ unknown
//!      │                        ▲    │ matches no more                     ▲
//!      │ may match later        │    ▼                                     │
//!      └──────────▶ held ───────┘  released ───────────────────────────────┤
//!                    │ hold time over, or no match  ▲                      │
//!                    └──────────────────────────────┘        exits         │
//!                      (a held process that exited is kept until then) ────┘
//! ```

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Not in the table.
    Unknown,
    /// Captured and interpreted.
    Observed,
    /// Captured, and kept until it is decided whether it is a target.
    Held {
        /// The process has exited; what it did is still kept.
        exited: bool,
    },
    /// Not captured any more.
    Released {
        /// The kernel has not forgotten it yet.
        settling: bool,
    },
}

/// The result of matching a process with the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// It is a target.
    Observe(Continuity),
    /// A configuration that is on its way may name it.
    Hold,
    /// It is no target.
    Ignore,
}

/// How the assignment of a process relates to the one under which it is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuity {
    /// The same.
    Same,
    /// The same node with other options.
    Options,
    /// Another node, or none until now.
    New,
}

/// What follows from a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    None,
    /// Begin to observe.
    Start,
    /// Begin to observe, with everything that was held.
    StartHeld,
    /// Begin to capture and keep.
    Hold,
    /// Observe with other options.
    Update,
    /// End the observation of a process that goes on.
    Release,
    /// Drop what was held.
    Discard,
    /// Make the kernel forget a process that it captures by itself.
    Dismiss,
    /// End the observation of a process that exited.
    End,
}

/// What happens to a process in `state` whose match has this result. `is_captured`: the kernel captures it already,
/// because it listens on a watched port or executed a watched program.
pub(super) fn on_match(state: State, result: Match, is_captured: bool) -> (State, Action) {
    use State::{Held, Observed, Released, Unknown};
    match (state, result) {
        (Observed, Match::Observe(Continuity::Same)) => (Observed, Action::None),
        (Observed, Match::Observe(Continuity::Options)) => (Observed, Action::Update),
        (Observed, Match::Observe(Continuity::New) | Match::Hold | Match::Ignore) => {
            (Released { settling: true }, Action::Release)
        }
        // Not before the kernel has forgotten it.
        (Released { settling: true }, _) => (state, Action::None),
        (Held { exited: true }, Match::Observe(_)) => (Unknown, Action::StartHeld),
        (Held { exited: false }, Match::Observe(_)) => (Observed, Action::StartHeld),
        (Held { .. }, Match::Hold) => (state, Action::None),
        (Held { exited: true }, Match::Ignore) => (Unknown, Action::Discard),
        (Held { exited: false }, Match::Ignore) => (Released { settling: true }, Action::Discard),
        (Unknown | Released { settling: false }, Match::Observe(_)) => (Observed, Action::Start),
        // Once released, only something new that it does makes it a candidate again.
        (Released { settling: false }, Match::Hold) if !is_captured => (state, Action::None),
        (Unknown | Released { settling: false }, Match::Hold) => (Held { exited: false }, Action::Hold),
        (Unknown | Released { settling: false }, Match::Ignore) if is_captured => (state, Action::Dismiss),
        (Unknown | Released { settling: false }, Match::Ignore) => (state, Action::None),
    }
}

/// What happens to a process that exits.
pub(super) fn on_exit(state: State) -> (State, Action) {
    match state {
        State::Observed => (State::Unknown, Action::End),
        State::Held { exited: false } => (State::Held { exited: true }, Action::End),
        State::Held { exited: true } => (state, Action::None),
        State::Released { .. } | State::Unknown => (State::Unknown, Action::None),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action as A, Continuity::*, Match::*, State::*, *};

    const STATES: [State; 6] = [
        Unknown,
        Observed,
        Held { exited: false },
        Held { exited: true },
        Released { settling: false },
        Released { settling: true },
    ];
    const MATCHES: [Match; 5] = [Observe(Same), Observe(Options), Observe(New), Hold, Ignore];

    /// Every combination: a row for each state, a column for each match as in [`MATCHES`]; where being captured makes a
    /// difference the second table has the row.
    #[test]
    fn every_combination_has_the_written_result() {
        let released = Released { settling: true };
        let free = Released { settling: false };
        let held = Held { exited: false };
        let kept = Held { exited: true };
        let start = (Observed, A::Start);
        let (held_start, late_start) = ((Observed, A::StartHeld), (Unknown, A::StartHeld));
        let rows = |is_captured: bool| {
            let ignored = if is_captured { A::Dismiss } else { A::None };
            let hold_again = if is_captured { (held, A::Hold) } else { (free, A::None) };
            [
                [start, start, start, (held, A::Hold), (Unknown, ignored)],
                [
                    (Observed, A::None),
                    (Observed, A::Update),
                    (released, A::Release),
                    (released, A::Release),
                    (released, A::Release),
                ],
                [held_start, held_start, held_start, (held, A::None), (released, A::Discard)],
                [late_start, late_start, late_start, (kept, A::None), (Unknown, A::Discard)],
                [start, start, start, hold_again, (free, ignored)],
                [(released, A::None); 5],
            ]
        };
        for is_captured in [false, true] {
            for (state, row) in STATES.into_iter().zip(rows(is_captured)) {
                for (result, expected) in MATCHES.into_iter().zip(row) {
                    let found = on_match(state, result, is_captured);
                    assert_eq!(found, expected, "{state:?} {result:?} captured: {is_captured}");
                }
            }
        }
    }

    #[test]
    fn every_state_has_the_written_exit() {
        let expected = [
            (Unknown, A::None),
            (Unknown, A::End),
            (Held { exited: true }, A::End),
            (Held { exited: true }, A::None),
            (Unknown, A::None),
            (Unknown, A::None),
        ];
        assert_eq!(STATES.map(on_exit), expected);
    }

    /// Whatever happens, an action that starts the capture follows only on a state without one, and the other way round.
    #[test]
    fn captures_begin_and_end_in_turn() {
        let is_live = |state: State| matches!(state, Observed | Held { exited: false });
        for state in STATES {
            for result in MATCHES {
                for is_captured in [false, true] {
                    let (next, action) = on_match(state, result, is_captured);
                    let begins = matches!(action, A::Start | A::Hold);
                    let ends = matches!(action, A::Release) || (action == A::Discard && is_live(state));
                    assert_eq!(begins, !is_live(state) && is_live(next), "{state:?} {result:?}");
                    assert_eq!(ends, is_live(state) && !is_live(next), "{state:?} {result:?}");
                }
            }
        }
    }
}
