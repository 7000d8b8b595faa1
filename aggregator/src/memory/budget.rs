//! Bytes of all profiles: a bound on what agents keep in memory by their states.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// Maximum bytes of all profiles.
const MAX_BYTES: usize = 512 << 20;
/// Maximum bytes of the profiles of one agent, so that one agent cannot use up the space of all others.
const MAX_AGENT_BYTES: usize = MAX_BYTES / 2;

/// The maximum is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BudgetExceeded {
    /// That of one agent.
    #[error("the memory profiles of this agent would take more than {MAX_AGENT_BYTES} bytes")]
    Agent,
    /// That of all agents.
    #[error("the memory profiles of all agents would take more than {MAX_BYTES} bytes")]
    Total,
}

impl BudgetExceeded {
    /// Value of a label.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Agent => "agent_bytes",
            Self::Total => "total_bytes",
        }
    }
}

/// Bytes of all profiles.
#[derive(Debug, Default)]
pub(super) struct Budget(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    total: usize,
    agents: BTreeMap<Arc<str>, usize>,
}

impl Budget {
    /// A share of no bytes.
    pub(super) fn share(self: &Arc<Self>, agent: &Arc<str>) -> Share {
        Share { budget: Arc::clone(self), agent: Arc::clone(agent), bytes: 0 }
    }

    fn add(&self, agent: &Arc<str>, bytes: usize) -> Result<(), BudgetExceeded> {
        let mut used = self.0.lock();
        let of_agent = used.agents.get(agent).copied().unwrap_or(0).saturating_add(bytes);
        let total = used.total.saturating_add(bytes);
        if of_agent > MAX_AGENT_BYTES {
            return Err(BudgetExceeded::Agent);
        }
        if total > MAX_BYTES {
            return Err(BudgetExceeded::Total);
        }
        used.total = total;
        used.agents.insert(Arc::clone(agent), of_agent);
        Ok(())
    }

    fn subtract(&self, agent: &str, bytes: usize) {
        let mut used = self.0.lock();
        used.total = used.total.saturating_sub(bytes);
        if let Some(of_agent) = used.agents.get_mut(agent) {
            *of_agent = of_agent.saturating_sub(bytes);
            if *of_agent == 0 {
                used.agents.remove(agent);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        let used = self.0.lock();
        assert_eq!(used.total, used.agents.values().sum::<usize>());
        used.total
    }
}

/// The bytes of one profile, returned to the budget with it.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    agent: Arc<str>,
    bytes: usize,
}

impl Share {
    /// Adds bytes.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.budget.add(&self.agent, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Returns all bytes but these.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let unused = self.bytes.saturating_sub(bytes);
        self.budget.subtract(&self.agent, unused);
        self.bytes -= unused;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
