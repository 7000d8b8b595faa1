//! Events: at a bounded rate a node and in all, because every one is an object that the API server keeps.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource as _, api::PostParams};
use tokio::sync::mpsc;

use super::MANAGER;
use crate::{
    crd::TezosNode,
    reconcile::{Happening, Key},
};

/// Characters of an Event's note; the API server takes 1,024 bytes.
const NOTE: usize = 1000;

/// A rate: so many in a row, then one each so many seconds.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: i64,
    regain_ns: i64,
}

const A_NODE: Rate = Rate { burst: 8, regain_ns: 60_000_000_000 };
const IN_ALL: Rate = Rate { burst: 200, regain_ns: 200_000_000 };

/// Who may still say something.
#[derive(Debug, Default)]
pub struct Limiter {
    /// Up to when the Events so far are paid for.
    nodes: BTreeMap<Key, i64>,
    all_ns: i64,
    held_back: u64,
}

impl Limiter {
    /// Whether an Event about the node may be made now.
    pub fn may(&mut self, node: &Key, now_ns: i64) -> bool {
        if self.nodes.len() > 4096 {
            self.nodes.retain(|_, paid| *paid > now_ns);
        }
        let own = after(self.nodes.get(node).copied().unwrap_or_default(), A_NODE, now_ns);
        let all = after(self.all_ns, IN_ALL, now_ns);
        if let (Some(own), Some(all)) = (own, all) {
            self.nodes.insert(node.clone(), own);
            self.all_ns = all;
            return true;
        }
        self.held_back = self.held_back.saturating_add(1);
        false
    }

    /// Events that were not made.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }
}

fn after(paid_ns: i64, rate: Rate, now_ns: i64) -> Option<i64> {
    let next = paid_ns.max(now_ns).saturating_add(rate.regain_ns);
    (next <= now_ns.saturating_add(rate.burst.saturating_mul(rate.regain_ns))).then_some(next)
}

/// Makes Events until nobody has any more to say. One at a time: they are the least urgent of all requests.
pub async fn publish(client: Client, instance: String, mut happenings: mpsc::Receiver<Happening>) {
    let mut last_ns = 0;
    while let Some(happening) = happenings.recv().await {
        let now = Timestamp::now();
        // The time makes the name, so no two are the same.
        last_ns = now.as_nanosecond().max(last_ns + 1);
        let event = event(happening, &instance, now, last_ns);
        let api: Api<Event> = Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            // A namespace that is being deleted takes none.
            chainscope_hygiene::warn_limited!(error = %error, "cannot make an Event");
        }
    }
}

fn event(happening: Happening, instance: &str, now: Timestamp, unique: i128) -> Event {
    let Happening { node, uid, good, reason, note } = happening;
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{unique:x}", node.name)),
            namespace: Some(node.namespace.to_string()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(MANAGER.to_owned()),
        reporting_instance: Some(instance.chars().take(128).collect()),
        action: Some("Reconcile".to_owned()),
        reason: Some(reason),
        note: Some(
            note.chars()
                .scan(0, |bytes, one| {
                    *bytes += one.len_utf8();
                    (*bytes <= NOTE).then_some(one)
                })
                .collect(),
        ),
        type_: Some(if good { "Normal" } else { "Warning" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(TezosNode::api_version(&()).into_owned()),
            kind: Some(TezosNode::kind(&()).into_owned()),
            namespace: Some(node.namespace.to_string()),
            name: Some(node.name.to_string()),
            uid: Some(uid),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_flaps_does_not_drown_the_others() {
        let (flapping, quiet) = (Key::new("a", "flapping"), Key::new("a", "hygiene"));
        let mut limiter = Limiter::default();
        let now = 1_700_000_000_000_000_000;
        let made = (0..100).filter(|_| limiter.may(&flapping, now)).count();
        assert_eq!(made, 8);
        assert_eq!(limiter.held_back(), 92);
        assert!(limiter.may(&quiet, now));
        assert!(limiter.may(&flapping, now + 60_000_000_000));
        assert!(!limiter.may(&flapping, now + 60_000_000_000));
    }

    #[test]
    fn all_nodes_together_are_bounded() {
        let mut limiter = Limiter::default();
        let made = (0..1000).filter(|at| limiter.may(&Key::new("a", &at.to_string()), 7)).count();
        assert_eq!(made, 200);
    }

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let happening = Happening {
            node: Key::new("tezos", "rolling"),
            uid: "u".to_owned(),
            good: false,
            reason: "CannotRecord".to_owned(),
            note: "ä".repeat(2000),
        };
        let event = event(happening, "operator-0", Timestamp::UNIX_EPOCH, 255);
        assert_eq!(event.note.as_deref().map(str::len), Some(1000));
        assert_eq!(event.metadata.name.as_deref(), Some("rolling.ff"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.regarding.and_then(|regarding| regarding.uid).as_deref(), Some("u"));
    }
}
