//! Which session of an agent is the current one.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

/// Agents that are remembered; of those that are away the one that came first is forgotten first.
const MOST: usize = 1000;

/// The latest session of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latest {
    pub(super) number: u64,
    pub(super) began: Instant,
    pub(super) is_open: bool,
}

/// The latest session of every agent.
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    agents: HashMap<Arc<str>, Latest>,
}

impl Rounds {
    pub(super) fn begin(&self, agent: &Arc<str>) -> u64 {
        let mut state = self.0.lock();
        if state.agents.len() >= MOST && !state.agents.contains_key(agent) {
            let away = state.agents.iter().filter(|(_, latest)| !latest.is_open);
            if let Some(agent) = away.min_by_key(|(_, latest)| latest.number).map(|(agent, _)| Arc::clone(agent)) {
                state.agents.remove(&agent);
            }
        }
        state.last += 1;
        let number = state.last;
        state.agents.insert(Arc::clone(agent), Latest { number, began: Instant::now(), is_open: true });
        number
    }

    /// A session ended; an older one than the latest changes nothing.
    pub(super) fn end(&self, agent: &str, number: u64) {
        if let Some(latest) = self.0.lock().agents.get_mut(agent).filter(|latest| latest.number == number) {
            latest.is_open = false;
        }
    }

    pub(super) fn of(&self, agent: &str) -> Option<Latest> {
        self.0.lock().agents.get(agent).copied()
    }
}
