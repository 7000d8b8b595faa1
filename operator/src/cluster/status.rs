//! Writes of the `status` subresource by server-side apply.

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::task::JoinSet;

use super::{MANAGER, client::within_timeout, is_status};
use crate::{
    crd::{NodeTrace, NodeTraceStatus, TezosNode},
    reconcile::{Key, NodeKind, StatusWrite},
};

/// Maximum number of concurrent requests.
const MAX_CONCURRENT_WRITES: usize = 8;

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The status is stored.
    Applied,
    /// The node does not exist, or was recreated with another UID.
    Gone,
    /// The request failed.
    Failed,
}

/// Writes statuses; of several pending statuses of a node only the newest is written.
pub struct StatusWriter {
    client: Client,
    pending: BTreeMap<Key, StatusWrite>,
    in_flight: JoinSet<(Key, WriteOutcome)>,
}

impl StatusWriter {
    /// Creates a writer without pending writes.
    pub fn new(client: Client) -> Self {
        Self { client, pending: BTreeMap::new(), in_flight: JoinSet::new() }
    }

    /// Queues a status.
    pub fn add(&mut self, write: StatusWrite) {
        self.pending.insert(write.key.clone(), write);
        self.start_pending();
    }

    /// Discards the pending writes and cancels those in flight: only the leader writes.
    pub fn clear(&mut self) {
        self.pending.clear();
        // Aborts the tasks of the old set.
        self.in_flight = JoinSet::new();
    }

    /// Waits for the next write to complete. Pending while none is in flight.
    pub async fn next(&mut self) -> (Key, WriteOutcome) {
        loop {
            match self.in_flight.join_next().await {
                Some(Ok(done)) => {
                    self.start_pending();
                    return done;
                }
                // The status of the node is written again with its next change.
                Some(Err(error)) => tracing::error!(%error, "a status write panicked"),
                None => std::future::pending().await,
            }
        }
    }

    fn start_pending(&mut self) {
        while self.in_flight.len() < MAX_CONCURRENT_WRITES {
            let Some((key, write)) = self.pending.pop_first() else { return };
            let client = self.client.clone();
            self.in_flight.spawn(async move {
                let outcome = match key.resource().0 {
                    NodeKind::TezosNode => apply::<TezosNode>(client, &write, &write.status).await,
                    NodeKind::NodeTrace => {
                        let status = NodeTraceStatus::from(write.status.clone());
                        apply::<NodeTrace>(client, &write, &status).await
                    }
                };
                (key, outcome)
            });
        }
    }
}

async fn apply<K>(client: Client, write: &StatusWrite, status: &impl Serialize) -> WriteOutcome
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let (_, name) = write.key.resource();
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        // The UID is a precondition: it prevents a write to a recreated node of the same name.
        "metadata": { "name": name, "namespace": &*write.key.namespace, "uid": write.uid },
        "status": status,
    });
    let api: Api<K> = Api::namespaced(client, &write.key.namespace);
    let params = PatchParams::apply(MANAGER).force();
    match within_timeout(api.patch_status(name, &params, &Patch::Apply(body))).await {
        Ok(_) => WriteOutcome::Applied,
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => WriteOutcome::Gone,
        Err(error) => {
            chainscope_hygiene::warn_limited!(error = %error, node = %write.key, "cannot write status; retrying");
            WriteOutcome::Failed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::cluster::client::tests::unanswered;

    fn write(name: &str) -> StatusWrite {
        StatusWrite { key: Key::new("tezos", name), uid: "u".to_owned(), status: Default::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_not_answered_fails() {
        let (client, _requests) = unanswered();
        let mut writer = StatusWriter::new(client);
        writer.add(write("a"));
        let outcome = timeout(Duration::from_mins(1), writer.next()).await.expect("a write without a timeout");
        assert_eq!(outcome, (Key::new("tezos", "a"), WriteOutcome::Failed));
    }

    #[tokio::test(start_paused = true)]
    async fn writes_in_flight_are_cancelled() {
        let (client, mut requests) = unanswered();
        let mut writer = StatusWriter::new(client);
        (0..2 * MAX_CONCURRENT_WRITES).for_each(|at| writer.add(write(&at.to_string())));
        let mut in_flight = Vec::new();
        for _ in 0..MAX_CONCURRENT_WRITES {
            in_flight.push(requests.recv().await.unwrap());
        }
        writer.clear();
        for request in in_flight {
            // Long before its timeout.
            timeout(Duration::from_secs(1), request).await.expect("cancelled at once").expect_err("not answered");
        }
        writer.add(write("next"));
        requests.recv().await.unwrap();
        assert!(requests.is_empty(), "pending writes are discarded");
    }
}
