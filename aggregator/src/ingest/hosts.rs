//! Limit of the sessions of one host.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Maximum number of sessions of one host: that of its agent, and those of cut connections whose end is not noticed yet.
pub(super) const MAX_SESSIONS: usize = 4;

/// Open sessions of authenticated agents.
#[derive(Debug, Clone, Default)]
pub(super) struct HostSessions {
    /// By host, the oldest first; none is empty.
    open: Arc<Mutex<BTreeMap<String, VecDeque<Arc<CancellationToken>>>>>,
}

impl HostSessions {
    /// Begins a session. If the host has too many the oldest one is ended.
    pub(super) fn begin(&self, host: &str) -> HostSession {
        let replaced = Arc::new(CancellationToken::new());
        let mut open = self.open.lock();
        let sessions = open.entry(host.to_owned()).or_default();
        sessions.push_back(Arc::clone(&replaced));
        if sessions.len() > MAX_SESSIONS
            && let Some(oldest) = sessions.pop_front()
        {
            oldest.cancel();
        }
        HostSession { sessions: self.clone(), host: host.to_owned(), replaced }
    }
}

/// A session of a host, open until it is dropped.
#[derive(Debug)]
pub(super) struct HostSession {
    sessions: HostSessions,
    host: String,
    /// Cancelled when a newer session takes the place of this one.
    replaced: Arc<CancellationToken>,
}

impl HostSession {
    /// Completes when a newer session takes the place of this one.
    pub(super) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        let mut open = self.sessions.open.lock();
        let Some(sessions) = open.get_mut(&self.host) else { return };
        sessions.retain(|session| !Arc::ptr_eq(session, &self.replaced));
        if sessions.is_empty() {
            open.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_sessions_of_a_host_are_open() {
        let hosts = HostSessions::default();
        let other = hosts.begin("b");
        let mut sessions: Vec<_> = (0..MAX_SESSIONS + 2).map(|_| hosts.begin("a")).collect();
        let is_replaced = |session: &HostSession| session.replaced.is_cancelled();
        assert_eq!(sessions.iter().filter(|session| is_replaced(session)).count(), 2);
        assert!(is_replaced(&sessions[0]) && is_replaced(&sessions[1]) && !is_replaced(&other));
        // The end of one leaves place for another; the end of a replaced one does not.
        sessions.pop();
        sessions.remove(0);
        sessions.push(hosts.begin("a"));
        assert!(!is_replaced(&sessions[1]));
        drop((sessions, other));
        assert!(hosts.open.lock().is_empty());
    }
}
