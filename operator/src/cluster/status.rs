//! Writes of the `status` subresource by server-side apply.

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::task::{self, JoinSet};

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

/// Writes statuses; of several pending statuses of a node only the newest is written, after the write in flight: two requests
/// may be stored in the other order.
pub struct StatusWriter {
    client: Client,
    pending: BTreeMap<Key, StatusWrite>,
    tasks: JoinSet<WriteOutcome>,
    /// Nodes whose write is in flight.
    in_flight: Vec<(task::Id, Key)>,
}

impl StatusWriter {
    /// Creates a writer without pending writes.
    pub fn new(client: Client) -> Self {
        Self { client, pending: BTreeMap::new(), tasks: JoinSet::new(), in_flight: Vec::new() }
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
        self.tasks = JoinSet::new();
        self.in_flight.clear();
    }

    /// Waits for the next write to complete. Pending while none is in flight.
    pub async fn next(&mut self) -> (Key, WriteOutcome) {
        loop {
            let Some(done) = self.tasks.join_next_with_id().await else { return std::future::pending().await };
            let id = done.as_ref().map_or_else(task::JoinError::id, |(id, _)| *id);
            let at = self.in_flight.iter().position(|(task, _)| *task == id);
            let key = at.map(|at| self.in_flight.swap_remove(at).1);
            self.start_pending();
            match done {
                Ok((_, outcome)) => {
                    if let Some(key) = key {
                        return (key, outcome);
                    }
                }
                // The status of the node is written again with its next change.
                Err(error) => tracing::error!(%error, "a status write panicked"),
            }
        }
    }

    fn start_pending(&mut self) {
        while self.in_flight.len() < MAX_CONCURRENT_WRITES {
            let is_idle = |key: &&Key| !self.in_flight.iter().any(|(_, busy)| busy == *key);
            let Some(key) = self.pending.keys().find(is_idle).cloned() else { return };
            let Some(write) = self.pending.remove(&key) else { return };
            let client = self.client.clone();
            let kind = key.resource().0;
            let write = async move {
                match kind {
                    NodeKind::TezosNode => apply::<TezosNode>(client, &write, &write.status).await,
                    NodeKind::NodeTrace => {
                        let status = NodeTraceStatus::from(write.status.clone());
                        apply::<NodeTrace>(client, &write, &status).await
                    }
                }
            };
            self.in_flight.push((self.tasks.spawn(write).id(), key));
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
    async fn writes_of_one_node_follow_each_other() {
        let (client, mut requests) = unanswered();
        let mut writer = StatusWriter::new(client);
        ["a", "a", "b"].into_iter().for_each(|name| writer.add(write(name)));
        for _ in 0..2 {
            requests.recv().await.unwrap();
        }
        assert!(requests.is_empty(), "the second of `a` waits for the first");
        assert_eq!(writer.next().await.1, WriteOutcome::Failed, "by its timeout");
        requests.recv().await.unwrap();
        assert_eq!(writer.in_flight.len() + writer.pending.len(), 2, "`a` again, and `b`");
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
