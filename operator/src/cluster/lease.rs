//! Who leads: one replica holds a Lease and renews it.
//!
//! As in client-go, nobody trusts another machine's clock. A replica takes a Lease over when it has itself seen no
//! change of it for the time that the Lease states. The leader stops leading when it could not renew for less than that
//! time, so that there are never two.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::is_status;

/// How long a Lease holds without a sign of its holder.
const DURATION: Duration = Duration::from_secs(15);
/// How long a leader leads without having renewed.
const DEADLINE: Duration = Duration::from_secs(8);
/// Between two looks at the Lease.
const RETRY: Duration = Duration::from_secs(2);
/// For one request.
const PATIENCE: Duration = Duration::from_secs(4);

/// What to do about the Lease as it is.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Another one holds it.
    Wait,
    /// Write this.
    Write(LeaseSpec),
}

/// What this replica knows of the Lease.
#[derive(Debug)]
struct Candidate {
    identity: String,
    /// The Lease as it was seen last, and since when it is so.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    fn look(&mut self, lease: Option<&LeaseSpec>, now: Instant, clock: Timestamp) -> Step {
        let Some(lease) = lease else { return Step::Write(self.spec(None, clock)) };
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease.clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        let stated = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let holds = stated.map_or(DURATION, Duration::from_secs);
        if holder.is_empty() || holder == self.identity || now.duration_since(since) >= holds {
            return Step::Write(self.spec(Some(lease), clock));
        }
        Step::Wait
    }

    /// The Lease with this replica as its holder.
    fn spec(&self, before: Option<&LeaseSpec>, clock: Timestamp) -> LeaseSpec {
        let mine = before.filter(|lease| lease.holder_identity.as_deref() == Some(&*self.identity));
        let transitions = before.and_then(|lease| lease.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
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

/// Takes part in the election until told to stop; then hands the Lease over at once. `leading` says who leads.
pub async fn elect(
    client: Client,
    namespace: &str,
    name: &str,
    identity: String,
    leading: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    let mut candidate = Candidate { identity, seen: None };
    let mut renewed: Option<Instant> = None;
    loop {
        let began = Instant::now();
        match tokio::time::timeout(PATIENCE, attempt(&api, name, namespace, &mut candidate)).await {
            Ok(Ok(true)) => renewed = Some(began),
            // Another one holds it: nothing to wait for.
            Ok(Ok(false)) => renewed = None,
            Ok(Err(error)) => chainscope_hygiene::warn_limited!(error = %error, "cannot renew the Lease; trying again"),
            Err(_) => chainscope_hygiene::warn_limited!("the API server does not answer about the Lease; trying again"),
        }
        let leads = renewed.is_some_and(|renewed| renewed.elapsed() < DEADLINE);
        leading.send_if_modified(|before| {
            if *before != leads {
                tracing::info!(leads, "leader election");
            }
            std::mem::replace(before, leads) != leads
        });
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    if leading.send_replace(false) {
        let _ = tokio::time::timeout(PATIENCE, release(&api, name, &candidate.identity)).await;
    }
}

/// Looks once; says whether this replica holds the Lease now.
async fn attempt(api: &Api<Lease>, name: &str, namespace: &str, candidate: &mut Candidate) -> kube::Result<bool> {
    let found = api.get_opt(name).await?;
    let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
    let Step::Write(spec) = candidate.look(spec.as_ref(), Instant::now(), Timestamp::now()) else { return Ok(false) };
    let written = match found {
        // The version that was read goes with it: whoever was quicker wins.
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

/// Gives the Lease back, if it is still this replica's.
async fn release(api: &Api<Lease>, name: &str, identity: &str) {
    let Ok(Some(mut lease)) = api.get_opt(name).await else { return };
    let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity)) else {
        return;
    };
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    if let Err(error) = api.replace(name, &PostParams::default(), &lease).await {
        tracing::warn!(%error, "cannot hand over the Lease; it runs out by itself");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(identity: &str) -> Candidate {
        Candidate { identity: identity.to_owned(), seen: None }
    }

    fn written(step: Step) -> LeaseSpec {
        match step {
            Step::Write(spec) => spec,
            Step::Wait => panic!("waits"),
        }
    }

    #[test]
    fn the_first_takes_it_and_renews_it() {
        let (start, mut a) = (Instant::now(), candidate("a"));
        let first = written(a.look(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(first.holder_identity.as_deref(), Some("a"));
        let later = Timestamp::from_second(5).unwrap();
        let second = written(a.look(Some(&first), start + Duration::from_secs(5), later));
        assert_eq!(second.acquire_time, first.acquire_time);
        assert_eq!(second.renew_time, Some(MicroTime(later)));
        assert_eq!(second.lease_transitions, Some(0));
    }

    #[test]
    fn another_waits_as_long_as_the_lease_changes() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let mut lease = written(a.look(None, start, Timestamp::UNIX_EPOCH));
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(b.look(Some(&lease), now, Timestamp::UNIX_EPOCH), Step::Wait);
            if second % 10 == 0 {
                // A holder whose clock is far behind counts as well: what matters is that something changed.
                let clock = Timestamp::from_second(i64::try_from(second).unwrap() - 100_000).unwrap();
                lease = written(a.look(Some(&lease), now, clock));
            }
        }
    }

    #[test]
    fn a_holder_that_fell_silent_is_replaced() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let lease = written(a.look(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(b.look(Some(&lease), start, Timestamp::UNIX_EPOCH), Step::Wait);
        assert_eq!(b.look(Some(&lease), start + Duration::from_millis(14_999), Timestamp::UNIX_EPOCH), Step::Wait);
        let taken = written(b.look(Some(&lease), start + DURATION, Timestamp::UNIX_EPOCH));
        assert_eq!(taken.holder_identity.as_deref(), Some("b"));
        assert_eq!(taken.lease_transitions, Some(1));
        assert_eq!(a.look(Some(&taken), start + DURATION, Timestamp::UNIX_EPOCH), Step::Wait);
    }

    #[test]
    fn a_lease_that_was_handed_over_is_taken_at_once() {
        let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
        let mut lease = written(a.look(None, start, Timestamp::UNIX_EPOCH));
        assert_eq!(b.look(Some(&lease), start, Timestamp::UNIX_EPOCH), Step::Wait);
        lease.holder_identity = Some(String::new());
        assert_eq!(written(b.look(Some(&lease), start, Timestamp::UNIX_EPOCH)).holder_identity.as_deref(), Some("b"));
    }

    #[test]
    fn a_leader_stops_before_another_may_begin() {
        // A renewal counts from when it was asked for; a round is one request and a pause, and only then it is checked.
        assert!(DEADLINE + PATIENCE + RETRY < DURATION);
    }
}
