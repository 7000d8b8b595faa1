//! Watches of `TezosNode` and `NodeTrace` resources, pods and Secrets.
//!
//! `kube::runtime::watcher` lists, watches and recovers; its [`Event`]s are forwarded with objects reduced to the inputs
//! of the reconciler. `kube::runtime::reflector` is not used: its store would hold a second, unreduced copy of every pod
//! of the cluster beside the reconciler's own indexes.

use std::{collections::BTreeMap, fmt::Debug};

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
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{is_status, pod::SlimPod};
use crate::{
    crd::{NodeTrace, TezosNode},
    reconcile::{Key, NodeInput, NodeKind, PodInput, SecretInput},
};

/// Objects per page of a list. Bounds the memory that a list takes in addition to the reduced objects.
const PAGE_SIZE: u32 = 250;

/// A change of a watched object.
#[derive(Debug)]
pub enum ObjectChange {
    /// Of a `TezosNode` or a `NodeTrace`.
    Node(NodeKind, Box<Event<(Key, NodeInput)>>),
    /// Of a pod.
    Pod(Event<(Key, PodInput)>),
    /// Of a Secret that contains an identity.
    Secret(Key, SecretInput),
}

/// Watches all resources of a kind that describes nodes until the receiver is dropped.
pub async fn nodes(client: Client, kind: NodeKind, changes: mpsc::Sender<ObjectChange>) {
    match kind {
        NodeKind::TezosNode => nodes_of::<TezosNode>(client, kind, &changes).await,
        NodeKind::NodeTrace => nodes_of::<NodeTrace>(client, kind, &changes).await,
    }
}

async fn nodes_of<K>(client: Client, kind: NodeKind, changes: &mpsc::Sender<ObjectChange>)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    NodeInput: From<K>,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    let events = watcher(api, watcher::Config::default().page_size(PAGE_SIZE));
    let reduce = |DeserializeGuard(node)| {
        let input = node.map_or_else(|invalid| NodeInput::invalid(kind, invalid), NodeInput::from);
        (input.key.clone(), input)
    };
    forward(&format!("{kind}s"), events, reduce, |event| ObjectChange::Node(kind, Box::new(event)), changes).await;
}

/// Watches all pods that have not terminated until the receiver is dropped.
pub async fn pods(client: Client, changes: mpsc::Sender<ObjectChange>) {
    let api: Api<SlimPod> = Api::all(client);
    let not_terminated = "status.phase!=Succeeded,status.phase!=Failed";
    let events = watcher(api, watcher::Config::default().page_size(PAGE_SIZE).fields(not_terminated));
    forward("pods", events, SlimPod::into_input, ObjectChange::Pod, &changes).await;
}

async fn forward<K, T>(
    kind: &str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    reduce: impl Fn(K) -> T,
    wrap: impl Fn(Event<T>) -> ObjectChange,
    changes: &mpsc::Sender<ObjectChange>,
) where
    K: kube::Resource + Clone + 'static,
{
    let mut events = std::pin::pin!(events.default_backoff());
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(Event::Init) => Event::Init,
            Ok(Event::InitApply(object)) => Event::InitApply(reduce(object)),
            Ok(Event::InitDone) => Event::InitDone,
            Ok(Event::Apply(object)) => Event::Apply(reduce(object)),
            Ok(Event::Delete(object)) => Event::Delete(reduce(object)),
            Err(error) => {
                chainscope_hygiene::warn_limited!(error = %error, "cannot watch {kind}; retrying");
                continue;
            }
        };
        if changes.send(wrap(event)).await.is_err() {
            return;
        }
    }
}

/// Watches of single Secrets. They are stopped when this is dropped.
pub struct SecretWatches {
    client: Client,
    changes: mpsc::Sender<ObjectChange>,
    watches: BTreeMap<Key, SecretWatch>,
}

struct SecretWatch {
    /// For which reference it was started: one that is referenced again is read again.
    reference: u64,
    task: AbortHandle,
}

impl SecretWatches {
    /// Creates an empty set.
    pub fn new(client: Client, changes: mpsc::Sender<ObjectChange>) -> Self {
        Self { client, changes, watches: BTreeMap::new() }
    }

    /// Starts and stops watches so that exactly `wanted` are watched, each since its reference began.
    pub fn set<'a>(&mut self, wanted: impl Iterator<Item = (&'a Key, u64)>) {
        let mut before = std::mem::take(&mut self.watches);
        for (key, reference) in wanted {
            let watch = match before.remove(key) {
                Some(watch) if watch.reference == reference => watch,
                other => {
                    if let Some(watch) = other {
                        watch.task.abort();
                    }
                    let watch = watch_secret(self.client.clone(), key.clone(), self.changes.clone());
                    SecretWatch { reference, task: tokio::spawn(watch).abort_handle() }
                }
            };
            self.watches.insert(key.clone(), watch);
        }
        before.into_values().for_each(|watch| watch.task.abort());
    }
}

impl Drop for SecretWatches {
    fn drop(&mut self) {
        self.watches.values().for_each(|watch| watch.task.abort());
    }
}

async fn watch_secret(client: Client, key: Key, changes: mpsc::Sender<ObjectChange>) {
    let api: Api<Secret> = Api::namespaced(client, &key.namespace);
    let mut events = std::pin::pin!(watch_object(api, &key.name).default_backoff());
    while let Some(event) = events.next().await {
        let input = match event {
            Ok(Some(secret)) => SecretInput::Present(secret.data.unwrap_or_default().into()),
            Ok(None) => SecretInput::Absent,
            Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error))
                if is_status(&error, 403) =>
            {
                SecretInput::Unreadable("the API server denies the operator access".to_owned())
            }
            // The last state is kept while the API server is unavailable.
            Err(error) => {
                chainscope_hygiene::warn_limited!(error = %error, secret = %key, "cannot watch Secret; retrying");
                continue;
            }
        };
        if changes.send(ObjectChange::Secret(key.clone(), input)).await.is_err() {
            return;
        }
    }
}
