//! Statuses, written by server-side apply under this program's own name.

use std::collections::BTreeMap;

use kube::{
    Api, Client, Resource as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::task::JoinSet;

use super::{MANAGER, is_status};
use crate::{
    crd::TezosNode,
    reconcile::{Key, StatusWrite},
};

/// Requests at the same time.
const AT_ONCE: usize = 8;

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is stored.
    Stored,
    /// The node is gone, or another of that name took its place.
    Gone,
    /// It is not stored.
    Failed,
}

/// The statuses that wait, the newest of each node, and the requests under way.
pub struct Statuses {
    client: Client,
    waiting: BTreeMap<Key, StatusWrite>,
    under_way: JoinSet<(Key, Written)>,
}

impl Statuses {
    /// Nothing to write.
    pub fn new(client: Client) -> Self {
        Self { client, waiting: BTreeMap::new(), under_way: JoinSet::new() }
    }

    /// Writes a status when its turn comes.
    pub fn add(&mut self, write: StatusWrite) {
        self.waiting.insert(write.key.clone(), write);
        self.go_on();
    }

    /// Writes nothing of what still waits.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The next write that ended. Pending for ever while there is none.
    pub async fn next(&mut self) -> (Key, Written) {
        loop {
            match self.under_way.join_next().await {
                Some(Ok(done)) => {
                    self.go_on();
                    return done;
                }
                // A write that panicked is as good as none; its node is written at the next change.
                Some(Err(error)) => tracing::error!(%error, "a write of a status broke off"),
                None => std::future::pending().await,
            }
        }
    }

    fn go_on(&mut self) {
        while self.under_way.len() < AT_ONCE {
            let Some((key, write)) = self.waiting.pop_first() else { return };
            let api: Api<TezosNode> = Api::namespaced(self.client.clone(), &key.namespace);
            self.under_way.spawn(async move {
                let written = apply(&api, &write).await;
                (key, written)
            });
        }
    }
}

async fn apply(api: &Api<TezosNode>, write: &StatusWrite) -> Written {
    let body = json!({
        "apiVersion": TezosNode::api_version(&()),
        "kind": TezosNode::kind(&()),
        // The uid is a condition: not the status of another node that has the name now.
        "metadata": { "name": &*write.key.name, "namespace": &*write.key.namespace, "uid": write.uid },
        "status": write.status,
    });
    let params = PatchParams::apply(MANAGER).force();
    match api.patch_status(&write.key.name, &params, &Patch::Apply(body)).await {
        Ok(_) => Written::Stored,
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Written::Gone,
        Err(error) => {
            chainscope_hygiene::warn_limited!(error = %error, node = %write.key, "cannot write a status; trying again");
            Written::Failed
        }
    }
}
