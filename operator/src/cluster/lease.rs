//! Leader election with a `coordination.k8s.io` Lease.
//!
//! As in client-go, clocks of other hosts are not trusted. A replica acquires a Lease when it has observed no change of
//! it for the Lease's duration. The leader resigns when it could not renew the Lease for a shorter time, so that there is
//! at most one leader.
//!
//! `kubert::lease` is not used: version 0.25 needs kube 1.1 and k8s-openapi 0.25, and it compares the holder's `renewTime`
//! with the local clock, so that clocks that differ by more than the Lease's duration lead to two leaders.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::is_status;

/// Duration of the Lease without a renewal (`LeaseDuration` of client-go).
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time after the last renewal at which the leader resigns (`RenewDeadline`).
const RENEW_DEADLINE: Duration = Duration::from_secs(8);
/// Interval between two attempts to acquire or renew (`RetryPeriod`).
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// The action for an observed Lease.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Another replica holds the Lease.
    Wait,
    /// Acquire or renew the Lease by writing this specification.
    Write(LeaseSpec),
}

/// This replica's view of the Lease.
#[derive(Debug)]
struct Candidate {
    identity: String,
    /// The last observed specification, and the time of its first observation.
    observed: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    fn evaluate(&mut self, lease: Option<&LeaseSpec>, now: Instant, clock: Timestamp) -> Step {
        let Some(lease) = lease else { return Step::Write(self.spec(None, clock)) };
        if self.observed.as_ref().is_none_or(|(observed, _)| observed != lease) {
            self.observed = Some((lease.clone(), now));
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        let stated = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = stated.map_or(LEASE_DURATION, Duration::from_secs);
        if holder.is_empty() || holder == self.identity || now.duration_since(since) >= duration {
            return Step::Write(self.spec(Some(lease), clock));
        }
        Step::Wait
    }

    /// The specification with this replica as the holder.
    fn spec(&self, before: Option<&LeaseSpec>, clock: Timestamp) -> LeaseSpec {
        let mine = before.filter(|lease| lease.holder_identity.as_deref() == Some(&*self.identity));
        let transitions = before.and_then(|lease| lease.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: mine.and_then(|lease| lease.acquire_time.clone()).or(Some(MicroTime(clock))),
            renew_time: Some(MicroTime(clock)),
            lease_transitions: Some(if mine.is_some() || before.is_none() {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}

/// Participates in the election until `stop` is cancelled, and then releases the Lease. `is_leader` receives the result.
pub async fn run(
    client: Client,
    namespace: &str,
    name: &str,
    identity: String,
    is_leader: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    let mut candidate = Candidate { identity, observed: None };
    let mut renewed: Option<Instant> = None;
    loop {
        let began = Instant::now();
        match tokio::time::timeout(REQUEST_TIMEOUT, attempt(&api, name, namespace, &mut candidate)).await {
            Ok(Ok(true)) => renewed = Some(began),
            // Another replica holds the Lease.
            Ok(Ok(false)) => renewed = None,
            Ok(Err(error)) => chainscope_hygiene::warn_limited!(error = %error, "cannot renew the Lease; retrying"),
            Err(_) => chainscope_hygiene::warn_limited!("a request for the Lease timed out; retrying"),
        }
        let holds_lease = renewed.is_some_and(|renewed| renewed.elapsed() < RENEW_DEADLINE);
        is_leader.send_if_modified(|before| {
            if *before != holds_lease {
                tracing::info!(is_leader = holds_lease, "leader election");
            }
            std::mem::replace(before, holds_lease) != holds_lease
        });
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(RETRY_PERIOD) => {}
        }
    }
    if is_leader.send_replace(false) {
        let _ = tokio::time::timeout(REQUEST_TIMEOUT, release(&api, name, &candidate.identity)).await;
    }
}

/// Reads the Lease and acquires or renews it if possible. Returns whether this replica holds it.
#[expect(clippy::disallowed_methods, reason = "the renew time of the Lease")]
async fn attempt(api: &Api<Lease>, name: &str, namespace: &str, candidate: &mut Candidate) -> kube::Result<bool> {
    let found = api.get_opt(name).await?;
    let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
    let Step::Write(spec) = candidate.evaluate(spec.as_ref(), Instant::now(), Timestamp::now()) else {
        return Ok(false);
    };
    let written = match found {
        // With the resource version that was read: a concurrent write leads to a conflict.
        Some(lease) => {
            let lease = Lease { spec: Some(spec), ..lease };
            api.replace(name, &PostParams::default(), &lease).await
        }
        None => {
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            };
            api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        Err(error) if is_status(&error, 409) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the Lease if this replica holds it.
#[expect(clippy::disallowed_methods, reason = "the renew time of the Lease")]
async fn release(api: &Api<Lease>, name: &str, identity: &str) {
    let Ok(Some(mut lease)) = api.get_opt(name).await else { return };
    let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity)) else {
        return;
    };
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    if let Err(error) = api.replace(name, &PostParams::default(), &lease).await {
        tracing::warn!(%error, "cannot release the Lease; it expires by itself");
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::json;
    use tonic::codegen::http::{Request, Response};

    use super::*;

    fn candidate(identity: &str) -> Candidate {
        Candidate { identity: identity.to_owned(), observed: None }
    }

    fn written(step: Step) -> LeaseSpec {
        match step {
            Step::Write(spec) => spec,
            Step::Wait => panic!("waits"),
        }
    }

    #[test]
    fn the_first_replica_acquires_and_renews_the_lease() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        let first = written(a.evaluate(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(first.holder_identity.as_deref(), Some("a"));
        let later = Timestamp::from_second(5).unwrap();
        let second = written(a.evaluate(Some(&first), start + Duration::from_secs(5), later));
        assert_eq!(second.acquire_time, first.acquire_time);
        assert_eq!(second.renew_time, Some(MicroTime(later)));
        assert_eq!(second.lease_transitions, Some(0));
    }

    #[test]
    fn another_replica_waits_while_the_lease_is_renewed() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let mut lease = written(a.evaluate(None, start, Timestamp::UNIX_EPOCH));
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(b.evaluate(Some(&lease), now, Timestamp::UNIX_EPOCH), Step::Wait);
            if second % 10 == 0 {
                // A holder whose clock is far behind keeps the Lease: only changes count.
                let clock = Timestamp::from_second(i64::try_from(second).unwrap() - 100_000).unwrap();
                lease = written(a.evaluate(Some(&lease), now, clock));
            }
        }
    }

    #[test]
    fn a_holder_that_stops_renewing_is_replaced() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let lease = written(a.evaluate(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(b.evaluate(Some(&lease), start, Timestamp::UNIX_EPOCH), Step::Wait);
        assert_eq!(b.evaluate(Some(&lease), start + Duration::from_millis(14_999), Timestamp::UNIX_EPOCH), Step::Wait);
        let taken = written(b.evaluate(Some(&lease), start + LEASE_DURATION, Timestamp::UNIX_EPOCH));
        assert_eq!(taken.holder_identity.as_deref(), Some("b"));
        assert_eq!(taken.lease_transitions, Some(1));
        assert_eq!(a.evaluate(Some(&taken), start + LEASE_DURATION, Timestamp::UNIX_EPOCH), Step::Wait);
    }

    #[test]
    fn a_released_lease_is_acquired_at_once() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let mut lease = written(a.evaluate(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(b.evaluate(Some(&lease), start, Timestamp::UNIX_EPOCH), Step::Wait);
        lease.holder_identity = Some(String::new());
        assert_eq!(
            written(b.evaluate(Some(&lease), start, Timestamp::UNIX_EPOCH)).holder_identity.as_deref(),
            Some("b")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_requests_are_not_answered_resigns_in_time() {
        let mut requests = 0;
        let service = tower::service_fn(move |request: Request<Body>| {
            requests += 1;
            let number = requests;
            async move {
                let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "NotFound", "code": 404});
                let (status, body) = match number {
                    1 => (404, missing.to_string().into_bytes()),
                    2 => (201, request.into_body().collect().await?.to_bytes().into()),
                    _ => std::future::pending().await,
                };
                let response: Response<Body> = Response::builder().status(status).body(body.into()).unwrap();
                Ok::<_, kube::Error>(response)
            }
        });
        let (leader, mut is_leader) = watch::channel(false);
        let (client, stop) = (Client::new(service, "chainscope"), CancellationToken::new());
        tokio::spawn(run(client, "chainscope", "lease", "a".to_owned(), leader, stop));
        is_leader.wait_for(|is_leader| *is_leader).await.unwrap();
        let acquired = Instant::now();
        is_leader.wait_for(|is_leader| !is_leader).await.unwrap();
        assert!(acquired.elapsed() < LEASE_DURATION, "{:?}", acquired.elapsed());
    }

    #[test]
    fn a_leader_resigns_before_the_lease_expires() {
        // A renewal counts from the start of its request, and the deadline is checked after one request and one pause.
        assert!(RENEW_DEADLINE + REQUEST_TIMEOUT + RETRY_PERIOD < LEASE_DURATION);
    }
}
