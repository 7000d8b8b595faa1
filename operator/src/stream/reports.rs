//! Collects the last report of each agent and publishes them for the controller.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chainscope_proto::v1::HostStatus;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::monotonic_ns,
    desired::{AgentReport, HostName, Reports},
};

/// Minimum interval between two publications: with 1,000 agents that report every ten seconds, 10 instead of 100 per
/// second.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Reports of all agents of this leadership term.
pub(crate) struct AgentRegistry {
    inner: parking_lot::Mutex<Inner>,
    changed: Notify,
    published: watch::Sender<Arc<Reports>>,
}

#[derive(Default)]
struct Inner {
    reports: Reports,
    streams: BTreeMap<HostName, Current>,
    next: u64,
}

/// The newest stream of a host's agent.
struct Current {
    number: u64,
    superseded: CancellationToken,
}

impl AgentRegistry {
    pub(crate) fn new() -> (Arc<Self>, watch::Receiver<Arc<Reports>>) {
        let (published, receiver) = watch::channel(Arc::default());
        let registry = Self { inner: parking_lot::Mutex::default(), changed: Notify::new(), published };
        (Arc::new(registry), receiver)
    }

    /// Registers a stream; an older stream of the same host is cancelled.
    pub(crate) fn open(self: &Arc<Self>, host: &str) -> AgentStream {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        let superseded = CancellationToken::new();
        let current = Current { number, superseded: superseded.clone() };
        if let Some(older) = inner.streams.insert(host.to_owned(), current) {
            older.superseded.cancel();
        }
        inner.update(host, |report| report.connect(true));
        drop(inner);
        self.changed.notify_one();
        AgentStream { registry: Arc::clone(self), host: host.to_owned(), number, superseded }
    }

    /// Publishes changes until the sender of `serving` is dropped. Reports are discarded when a leadership term ends.
    pub(crate) async fn publish(&self, mut serving: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                changed = serving.changed() => match changed {
                    Ok(()) if *serving.borrow_and_update() => {}
                    Ok(()) => {
                        let mut inner = self.inner.lock();
                        *inner = Inner { next: inner.next, ..Inner::default() };
                    }
                    // The controller stopped.
                    Err(_) => return,
                },
            }
            self.published.send_replace(Arc::new(self.inner.lock().reports.clone()));
            sleep(PUBLISH_INTERVAL).await;
        }
    }
}

impl Inner {
    fn update(&mut self, host: &str, change: impl FnOnce(&mut AgentReport)) {
        change(Arc::make_mut(self.reports.hosts.entry(host.to_owned()).or_default()));
    }
}

impl AgentReport {
    fn connect(&mut self, connected: bool) {
        self.connected = connected;
        if connected {
            self.last_report_ns = monotonic_ns();
        }
    }
}

/// A registered stream. When it is dropped the agent is marked as disconnected, unless a newer stream replaced it.
pub(crate) struct AgentStream {
    registry: Arc<AgentRegistry>,
    host: HostName,
    number: u64,
    superseded: CancellationToken,
}

impl AgentStream {
    /// Cancelled when a newer stream of the host is registered.
    pub(crate) fn superseded(&self) -> CancellationToken {
        self.superseded.clone()
    }

    /// Stores a status of the agent.
    pub(crate) fn report(&self, status: HostStatus) {
        self.update(|report| {
            report.last_report_ns = monotonic_ns();
            report.status = status;
        });
    }

    fn update(&self, change: impl FnOnce(&mut AgentReport)) {
        let mut inner = self.registry.inner.lock();
        if inner.streams.get(&self.host).is_some_and(|current| current.number == self.number) {
            inner.update(&self.host, change);
            drop(inner);
            self.registry.changed.notify_one();
        }
    }
}

impl Drop for AgentStream {
    fn drop(&mut self) {
        self.update(|report| report.connect(false));
    }
}

#[cfg(test)]
mod tests {
    use super::{AgentRegistry, Arc, HostStatus, Reports, watch};

    fn now(registry: &AgentRegistry, host: &str) -> (bool, u64) {
        let report = registry.inner.lock().reports.hosts[host].clone();
        (report.connected, report.status.generation)
    }

    fn status(generation: u64) -> HostStatus {
        HostStatus { generation, ..Default::default() }
    }

    #[test]
    fn a_newer_stream_of_a_host_replaces_the_older() {
        let (registry, _) = AgentRegistry::new();
        let old = registry.open("h");
        old.report(status(1));
        assert_eq!(now(&registry, "h"), (true, 1));
        let new = registry.open("h");
        let other = registry.open("i");
        assert!(old.superseded().is_cancelled() && !new.superseded().is_cancelled());
        old.report(status(2));
        assert_eq!(now(&registry, "h"), (true, 1), "a replaced stream cannot report");
        new.report(status(3));
        drop(old);
        assert_eq!(now(&registry, "h"), (true, 3));
        drop(new);
        assert_eq!(now(&registry, "h"), (false, 3));
        assert!(now(&registry, "i").0);
        drop(other);
    }

    #[tokio::test]
    async fn reports_are_discarded_when_a_leadership_term_ends() {
        let (registry, mut reports) = AgentRegistry::new();
        let (sender, serving) = watch::channel(true);
        let publisher = tokio::spawn({
            let registry = Arc::clone(&registry);
            async move { registry.publish(serving).await }
        });
        let opened = registry.open("h");
        reports.wait_for(|reports| reports.hosts.contains_key("h")).await.unwrap();
        sender.send_replace(false);
        reports.wait_for(|reports| **reports == Reports::default()).await.unwrap();
        opened.report(status(1));
        drop(opened);
        let again = registry.open("h");
        reports.wait_for(|reports| reports.hosts.contains_key("h")).await.unwrap();
        assert_eq!(reports.borrow().hosts["h"].status, HostStatus::default());
        drop((again, sender));
        publisher.await.unwrap();
    }
}
