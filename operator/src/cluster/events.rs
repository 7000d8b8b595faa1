//! Rate-limited Events.
//!
//! Every Event is an object in etcd, so their rate is bounded per node and in total; Events above it are dropped and
//! counted. `kube::runtime::events::Recorder` is not used: it merges a repeated reason into the first Event's series and
//! so discards the new note, which names the pod and the error; it needs the additional permission to patch Events; and it has
//! no rate limit.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource as _, api::PostParams};
use tokio::sync::{mpsc, watch};

use super::{MANAGER, client::within_timeout};
use crate::{
    crd::TezosNode,
    reconcile::{EventRecord, Key},
};

/// Maximum length of a note; the API server accepts 1,024 bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// A token bucket.
#[derive(Debug, Clone, Copy)]
struct RateLimit {
    burst: i64,
    /// Time after which a token is added.
    refill_ns: i64,
}

const LIMIT_PER_NODE: RateLimit = RateLimit { burst: 8, refill_ns: 60_000_000_000 };
const LIMIT_TOTAL: RateLimit = RateLimit { burst: 200, refill_ns: 200_000_000 };
/// Number of nodes above which full buckets are removed.
const MAX_BUCKETS: usize = 4096;

/// The rate limits of Events, as token buckets. A bucket is represented by the time at which it is full again.
#[derive(Debug, Default)]
pub struct EventRateLimiter {
    full_ns_by_node: BTreeMap<Key, i64>,
    total_full_ns: i64,
    dropped: u64,
}

impl EventRateLimiter {
    /// Takes a token for an Event about a node. Returns `false`, and counts the Event as dropped, if there is none.
    pub fn allow(&mut self, node: &Key, now_ns: i64) -> bool {
        if self.full_ns_by_node.len() > MAX_BUCKETS {
            self.full_ns_by_node.retain(|_, full_ns| *full_ns > now_ns);
        }
        let node_full_ns = self.full_ns_by_node.get(node).copied().unwrap_or_default();
        let of_node = take_token(node_full_ns, LIMIT_PER_NODE, now_ns);
        let total = take_token(self.total_full_ns, LIMIT_TOTAL, now_ns);
        if let (Some(of_node), Some(total)) = (of_node, total) {
            self.full_ns_by_node.insert(node.clone(), of_node);
            self.total_full_ns = total;
            return true;
        }
        self.dropped = self.dropped.saturating_add(1);
        false
    }

    /// Number of dropped Events.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The time at which the bucket is full after a token is taken; `None` if it is empty.
fn take_token(full_ns: i64, limit: RateLimit, now_ns: i64) -> Option<i64> {
    let next = full_ns.max(now_ns).saturating_add(limit.refill_ns);
    (next <= now_ns.saturating_add(limit.burst.saturating_mul(limit.refill_ns))).then_some(next)
}

/// Creates Events until the sender is dropped, one request at a time. What is queued or in flight when this replica ceases
/// to be the leader is discarded.
pub async fn publish(
    client: Client,
    instance: String,
    mut records: mpsc::Receiver<EventRecord>,
    mut is_leader: watch::Receiver<bool>,
) {
    let mut last_ns = 0;
    while let Some(record) = records.recv().await {
        if !*is_leader.borrow() {
            continue;
        }
        #[expect(clippy::disallowed_methods, reason = "the time of an Event")]
        let now = Timestamp::now();
        // The name contains the time, which therefore has to be unique.
        last_ns = now.as_nanosecond().max(last_ns + 1);
        let event = event(record, &instance, now, last_ns);
        let api: Api<Event> = Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
        let params = PostParams::default();
        tokio::select! {
            created = within_timeout(api.create(&params, &event)) => if let Err(error) = created {
                // Expected in a namespace that is being deleted.
                chainscope_hygiene::warn_limited!(error = %error, "cannot create an Event");
            },
            _ = is_leader.wait_for(|is_leader| !is_leader) => {}
        }
    }
}

fn event(record: EventRecord, instance: &str, now: Timestamp, unique: i128) -> Event {
    let EventRecord { node, uid, is_warning, reason, note } = record;
    let (kind, name) = node.resource();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{unique:x}")),
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
                    (*bytes <= MAX_NOTE_BYTES).then_some(one)
                })
                .collect(),
        ),
        type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(TezosNode::api_version(&()).into_owned()),
            kind: Some(kind.to_string()),
            namespace: Some(node.namespace.to_string()),
            name: Some(name.to_owned()),
            uid: Some(uid),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::cluster::client::tests::unanswered;

    fn record(note: &str) -> EventRecord {
        EventRecord {
            node: Key::new("tezos", "rolling"),
            uid: "u".to_owned(),
            is_warning: true,
            reason: "CannotRecord".to_owned(),
            note: note.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_not_answered_does_not_delay_others_for_ever_and_is_cancelled_with_the_leadership() {
        let (client, mut requests) = unanswered();
        let (events, records) = mpsc::channel(8);
        let (leader, is_leader) = watch::channel(true);
        tokio::spawn(publish(client, "operator-0".to_owned(), records, is_leader));
        for note in ["first", "second"] {
            events.send(record(note)).await.unwrap();
        }
        let mut next = async || timeout(Duration::from_mins(1), requests.recv()).await.expect("a request").unwrap();
        next().await.await.expect_err("it timed out");
        let second = next().await;
        leader.send_replace(false);
        second.await.expect_err("cancelled with the leadership");
        // Whatever was queued in the term that ended is discarded, too.
        events.send(record("stale")).await.unwrap();
        while events.capacity() < events.max_capacity() {
            tokio::task::yield_now().await;
        }
        leader.send_replace(true);
        events.send(record("of the next term")).await.unwrap();
        let _of_next_term = next().await;
        assert!(requests.is_empty());
    }

    #[test]
    fn the_rate_is_limited_per_node() {
        let (flapping, quiet) = (Key::new("a", "flapping"), Key::new("a", "quiet"));
        let mut limiter = EventRateLimiter::default();
        let now = 1_700_000_000_000_000_000;
        let made = (0..100).filter(|_| limiter.allow(&flapping, now)).count();
        assert_eq!(made, 8);
        assert_eq!(limiter.dropped(), 92);
        assert!(limiter.allow(&quiet, now));
        assert!(limiter.allow(&flapping, now + 60_000_000_000));
        assert!(!limiter.allow(&flapping, now + 60_000_000_000));
    }

    #[test]
    fn the_total_rate_is_limited() {
        let mut limiter = EventRateLimiter::default();
        let made = (0..1000).filter(|at| limiter.allow(&Key::new("a", &at.to_string()), 7)).count();
        assert_eq!(made, 200);
    }

    #[test]
    fn a_long_note_is_truncated_at_a_character_boundary() {
        let event = event(record(&"ä".repeat(2000)), "operator-0", Timestamp::UNIX_EPOCH, 255);
        assert_eq!(event.note.as_deref().map(str::len), Some(1000));
        assert_eq!(event.metadata.name.as_deref(), Some("rolling.ff"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.regarding.and_then(|regarding| regarding.uid).as_deref(), Some("u"));
    }
}
