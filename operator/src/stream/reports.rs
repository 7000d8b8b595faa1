//! What the agents said last, collected from all streams and published for reconcile.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chainscope_proto::v1::HostStatus;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::desired::{HostName, HostReported, Reports};

/// Pause between two publications: with 1,000 agents that report every ten seconds, ten a second instead of a hundred.
const PAUSE: Duration = Duration::from_millis(100);

/// Everything the agents said since this program leads.
pub(crate) struct Registry {
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

/// The stream of a host's agent; of two the newer.
struct Current {
    number: u64,
    superseded: CancellationToken,
}

impl Registry {
    pub(crate) fn new() -> (Arc<Self>, watch::Receiver<Arc<Reports>>) {
        let (published, receiver) = watch::channel(Arc::default());
        let registry = Self { inner: parking_lot::Mutex::default(), changed: Notify::new(), published };
        (Arc::new(registry), receiver)
    }

    /// An agent's stream begins; an older one of the same host is told to end.
    pub(crate) fn open(self: &Arc<Self>, host: &str) -> Opened {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        let superseded = CancellationToken::new();
        let current = Current { number, superseded: superseded.clone() };
        if let Some(older) = inner.streams.insert(host.to_owned(), current) {
            older.superseded.cancel();
        }
        inner.update(host, |reported| reported.connect(true));
        drop(inner);
        self.changed.notify_one();
        Opened { registry: Arc::clone(self), host: host.to_owned(), number, superseded }
    }

    /// Publishes what changes, until the end of the program. What was said under another leader is void.
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
                    // Nobody says any more whether this program leads: it ends.
                    Err(_) => return,
                },
            }
            self.published.send_replace(Arc::new(self.inner.lock().reports.clone()));
            sleep(PAUSE).await;
        }
    }
}

impl Inner {
    fn update(&mut self, host: &str, change: impl FnOnce(&mut HostReported)) {
        change(Arc::make_mut(self.reports.hosts.entry(host.to_owned()).or_default()));
    }
}

impl HostReported {
    fn connect(&mut self, connected: bool) {
        if self.connected != connected || self.since_ns == 0 {
            self.connected = connected;
            self.since_ns = now_ns();
        }
        if connected {
            self.heard_ns = now_ns();
        }
    }
}

/// An open stream of an agent. When it is dropped, the agent is taken for gone, unless a newer stream took its place.
pub(crate) struct Opened {
    registry: Arc<Registry>,
    host: HostName,
    number: u64,
    superseded: CancellationToken,
}

impl Opened {
    /// Is cancelled when a newer stream of the host takes over.
    pub(crate) fn superseded(&self) -> CancellationToken {
        self.superseded.clone()
    }

    /// The agent's word is passed on.
    pub(crate) fn heard(&self, status: HostStatus) {
        self.update(|reported| {
            reported.heard_ns = now_ns();
            reported.status = status;
        });
    }

    fn update(&self, change: impl FnOnce(&mut HostReported)) {
        let mut inner = self.registry.inner.lock();
        if inner.streams.get(&self.host).is_some_and(|current| current.number == self.number) {
            inner.update(&self.host, change);
            drop(inner);
            self.registry.changed.notify_one();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.update(|reported| reported.connect(false));
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Arc, HostStatus, Registry, Reports, watch};

    fn now(registry: &Registry, host: &str) -> (bool, u64) {
        let reported = registry.inner.lock().reports.hosts[host].clone();
        (reported.connected, reported.status.generation)
    }

    fn status(generation: u64) -> HostStatus {
        HostStatus { generation, ..Default::default() }
    }

    #[test]
    fn of_two_streams_of_a_host_the_newer_wins() {
        let (registry, _) = Registry::new();
        let old = registry.open("h");
        old.heard(status(1));
        assert_eq!(now(&registry, "h"), (true, 1));
        let new = registry.open("h");
        let other = registry.open("i");
        assert!(old.superseded().is_cancelled() && !new.superseded().is_cancelled());
        old.heard(status(2));
        assert_eq!(now(&registry, "h"), (true, 1), "who was taken over has no say");
        new.heard(status(3));
        drop(old);
        assert_eq!(now(&registry, "h"), (true, 3));
        let since = registry.inner.lock().reports.hosts["h"].since_ns;
        drop(new);
        assert_eq!(now(&registry, "h"), (false, 3));
        assert!(registry.inner.lock().reports.hosts["h"].since_ns > since);
        assert!(now(&registry, "i").0);
        drop(other);
    }

    #[tokio::test]
    async fn what_was_said_under_another_leader_is_void() {
        let (registry, mut reports) = Registry::new();
        let (leads, serving) = watch::channel(true);
        let publisher = tokio::spawn({
            let registry = Arc::clone(&registry);
            async move { registry.publish(serving).await }
        });
        let opened = registry.open("h");
        reports.wait_for(|reports| reports.hosts.contains_key("h")).await.unwrap();
        leads.send_replace(false);
        reports.wait_for(|reports| **reports == Reports::default()).await.unwrap();
        opened.heard(status(1));
        drop(opened);
        let again = registry.open("h");
        reports.wait_for(|reports| reports.hosts.contains_key("h")).await.unwrap();
        assert_eq!(reports.borrow().hosts["h"].status, HostStatus::default());
        drop((again, leads));
        publisher.await.unwrap();
    }
}
