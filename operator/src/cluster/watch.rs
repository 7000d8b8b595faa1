//! Watches: what changes in the cluster, as the engine takes it.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    core::error_boundary::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watch_object, watcher},
    },
};
use tokio::{sync::mpsc, task::AbortHandle};

use super::{is_status, pod::SlimPod};
use crate::{
    crd::TezosNode,
    reconcile::{Key, NodeInput, PodInput, SecretInput},
};

/// Objects a page of a list: bounds what a start needs beside what stays.
const PAGE: u32 = 250;

/// A change of a kind of object.
#[derive(Debug)]
pub enum Seen<T> {
    /// A new list begins.
    Begin,
    /// It is there; in a list or by itself.
    Here(Key, T),
    /// It is gone.
    Gone(Key),
    /// The list is over: what was not in it is gone.
    End,
}

/// What may change.
#[derive(Debug)]
pub enum Change {
    /// A `TezosNode`.
    Node(Box<Seen<NodeInput>>),
    /// A pod.
    Pod(Seen<PodInput>),
    /// A Secret that an identity is in.
    Secret(Key, SecretInput),
}

/// Watches every `TezosNode` until nobody listens.
pub async fn nodes(client: Client, changes: mpsc::Sender<Change>) {
    let api: Api<DeserializeGuard<TezosNode>> = Api::all(client);
    let seen = watcher(api, watcher::Config::default().page_size(PAGE));
    let take = |DeserializeGuard(node)| {
        let input = node.map_or_else(NodeInput::from, NodeInput::from);
        (input.key.clone(), input)
    };
    forward("TezosNodes", seen, take, |seen| Change::Node(Box::new(seen)), &changes).await;
}

/// Watches every pod that has not ended until nobody listens.
pub async fn pods(client: Client, changes: mpsc::Sender<Change>) {
    let api: Api<SlimPod> = Api::all(client);
    let lasting = "status.phase!=Succeeded,status.phase!=Failed";
    let seen = watcher(api, watcher::Config::default().page_size(PAGE).fields(lasting));
    forward("pods", seen, SlimPod::into_input, Change::Pod, &changes).await;
}

async fn forward<K, T>(
    what: &str,
    seen: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    take: impl Fn(K) -> (Key, T),
    wrap: impl Fn(Seen<T>) -> Change,
    changes: &mpsc::Sender<Change>,
) where
    K: kube::Resource + Clone + 'static,
{
    let mut seen = std::pin::pin!(seen.default_backoff());
    while let Some(event) = seen.next().await {
        let change = match event {
            Ok(Event::Init) => Seen::Begin,
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                let (key, input) = take(object);
                Seen::Here(key, input)
            }
            Ok(Event::Delete(object)) => Seen::Gone(take(object).0),
            Ok(Event::InitDone) => Seen::End,
            Err(error) => {
                chainscope_hygiene::warn_limited!(error = %error, "cannot watch {what}; trying again");
                continue;
            }
        };
        if changes.send(wrap(change)).await.is_err() {
            return;
        }
    }
}

/// The watches of single Secrets. Dropping it ends them.
pub struct Secrets {
    client: Client,
    changes: mpsc::Sender<Change>,
    watches: BTreeMap<Key, AbortHandle>,
}

impl Secrets {
    /// Watches none yet.
    pub fn new(client: Client, changes: mpsc::Sender<Change>) -> Self {
        Self { client, changes, watches: BTreeMap::new() }
    }

    /// Watches these and no others.
    pub fn follow<'a>(&mut self, wanted: impl Iterator<Item = &'a Key>) {
        let mut before = std::mem::take(&mut self.watches);
        for key in wanted {
            let watch = before.remove(key).unwrap_or_else(|| {
                tokio::spawn(secret(self.client.clone(), key.clone(), self.changes.clone())).abort_handle()
            });
            self.watches.insert(key.clone(), watch);
        }
        before.into_values().for_each(|watch| watch.abort());
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.watches.values().for_each(AbortHandle::abort);
    }
}

async fn secret(client: Client, key: Key, changes: mpsc::Sender<Change>) {
    let api: Api<Secret> = Api::namespaced(client, &key.namespace);
    let mut seen = std::pin::pin!(watch_object(api, &key.name).default_backoff());
    while let Some(event) = seen.next().await {
        let input = match event {
            Ok(Some(secret)) => SecretInput::Present(secret.data.unwrap_or_default().into()),
            Ok(None) => SecretInput::Absent,
            Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error))
                if is_status(&error, 403) =>
            {
                SecretInput::Unreadable("the API server does not allow the operator to read it".to_owned())
            }
            // What was read stays as it is while the API server is away.
            Err(error) => {
                chainscope_hygiene::warn_limited!(error = %error, secret = %key, "cannot watch a Secret; trying again");
                continue;
            }
        };
        if changes.send(Change::Secret(key.clone(), input)).await.is_err() {
            return;
        }
    }
}
