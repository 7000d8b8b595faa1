//! The current session of each agent.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

/// Maximum number of agents. Beyond it the disconnected agent with the oldest session is dropped.
const MAX_AGENTS: usize = 1000;

/// The latest session of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latest {
    pub(super) number: u64,
    pub(super) began: Instant,
    pub(super) is_open: bool,
}

/// The latest session of every agent.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    agents: BTreeMap<Arc<str>, Latest>,
}

impl Sessions {
    /// Begins a session; returns its number.
    pub(super) fn begin(&self, agent: &Arc<str>) -> u64 {
        let mut state = self.0.lock();
        if state.agents.len() >= MAX_AGENTS && !state.agents.contains_key(agent) {
            let disconnected = state.agents.iter().filter(|(_, latest)| !latest.is_open);
            if let Some(agent) =
                disconnected.min_by_key(|(_, latest)| latest.number).map(|(agent, _)| Arc::clone(agent))
            {
                state.agents.remove(&agent);
            }
        }
        state.last += 1;
        let number = state.last;
        state.agents.insert(Arc::clone(agent), Latest { number, began: Instant::now(), is_open: true });
        number
    }

    /// Ends a session. Returns false, without effect, if a later one has begun.
    pub(super) fn end(&self, agent: &str, number: u64) -> bool {
        let mut state = self.0.lock();
        let latest = state.agents.get_mut(agent).filter(|latest| latest.number == number);
        latest.map(|latest| latest.is_open = false).is_some()
    }

    /// The latest session of an agent.
    pub(super) fn of(&self, agent: &str) -> Option<Latest> {
        self.0.lock().agents.get(agent).copied()
    }
}
