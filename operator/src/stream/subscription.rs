//! One subscription: sends a snapshot and then changes, and receives reports, until the stream ends.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{Stream, StreamExt as _};
use prost::Message;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    delta::{ClientState, PART_BYTES, Part},
    metrics::Metrics,
};
use crate::desired::Desired;

/// Minimum interval between two reports of a client; further reports wait in the transport.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum lifetime of a stream, whatever the expiry of its token.
const MAX_LIFETIME: Duration = Duration::from_hours(24);

/// A kind of client, with the types of its messages.
pub(crate) trait Subscriber: Send {
    /// An item of the desired state.
    type Item: Message + PartialEq;
    /// The message of an update.
    type Update: Send;
    /// The message of a report.
    type Report: Send;
    /// Name in metrics.
    const NAME: &'static str;

    /// The part of the desired state for this client, by key; `None` is empty.
    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<Self::Item>>>;
    /// Converts a part to a message.
    fn to_update(&self, part: Part<Self::Item>) -> Self::Update;
    /// Handles a report; an error ends the stream.
    fn on_report(&mut self, report: Self::Report, desired: &Desired) -> Result<(), Status>;
}

/// Runs a subscription until it ends, and returns the reason.
pub(crate) async fn run<S: Subscriber>(
    subscriber: &mut S,
    mut desired: watch::Receiver<Arc<Desired>>,
    reports: impl Stream<Item = Result<S::Report, Status>>,
    end: impl Future<Output = Status>,
    out: mpsc::Sender<S::Update>,
    metrics: &Metrics,
) -> Status {
    let (mut reports, mut end) = (pin!(reports), pin!(end));
    let _open = metrics.open(S::NAME);
    let mut client = ClientState::new(PART_BYTES);
    let mut pending: VecDeque<Part<S::Item>> = VecDeque::new();
    let mut next_report = Instant::now();
    desired.mark_changed();
    loop {
        tokio::select! {
            biased;
            status = &mut end => return status,
            () = out.closed() => return Status::cancelled("the client disconnected"),
            // The next update is computed after the last one was sent: changes in between are merged.
            changed = desired.changed(), if pending.is_empty() => {
                if changed.is_err() {
                    return Status::unavailable("the operator is shutting down");
                }
                let now = Arc::clone(&desired.borrow_and_update());
                let empty = BTreeMap::new();
                pending = client.update(subscriber.desired(&now).unwrap_or(&empty)).into();
            }
            Ok(permit) = out.reserve(), if !pending.is_empty() => {
                if let Some(part) = pending.pop_front() {
                    metrics.sent(S::NAME, part.changed.len() + part.removed.len());
                    permit.send(subscriber.to_update(part));
                }
            }
            report = async { sleep_until(next_report).await; reports.next().await } => match report {
                Some(Ok(report)) => {
                    next_report = Instant::now() + REPORT_INTERVAL;
                    let now = Arc::clone(&desired.borrow());
                    if let Err(status) = subscriber.on_report(report, &now) {
                        return status;
                    }
                }
                Some(Err(status)) => return status,
                None => return Status::cancelled("the client disconnected"),
            },
        }
    }
}

/// Conditions that end a stream independently of the client.
pub(crate) struct Lifetime {
    pub(crate) expires: SystemTime,
    pub(crate) serving: watch::Receiver<bool>,
    pub(crate) stop: CancellationToken,
    pub(crate) superseded: CancellationToken,
    pub(crate) metrics: Metrics,
}

impl Lifetime {
    /// Waits until the first condition is met, and returns the reason.
    pub(crate) async fn end(mut self) -> Status {
        #[expect(clippy::disallowed_methods, reason = "an expiry is a wall-clock time")]
        let left = self.expires.duration_since(SystemTime::now()).unwrap_or_default().min(MAX_LIFETIME);
        let (reason, status) = tokio::select! {
            () = sleep(left) => ("expired", Status::unauthenticated("the token has expired: reconnect with a new one")),
            () = self.superseded.cancelled() => ("superseded", Status::aborted("replaced by a newer stream of this host")),
            () = self.stop.cancelled() => ("stopped", Status::unavailable("the operator is shutting down")),
            _ = self.serving.wait_for(|serving| !serving) => ("leader", not_serving()),
        };
        self.metrics.ended(reason);
        status
    }
}

/// The status returned by a replica that is not the leader, or whose desired state is not complete.
pub(crate) fn not_serving() -> Status {
    Status::unavailable("this replica is not the leader, or its initial lists are not complete: reconnect")
}
