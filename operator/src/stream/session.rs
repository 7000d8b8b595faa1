//! One stream: a snapshot, then what changes, until one of the reasons to end it comes up.

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
    delta::{PART_BYTES, Part, Sent},
    metrics::Metrics,
};
use crate::desired::Desired;

/// Pause between two statuses of one client: an agent that says more has to wait.
const INTAKE_PAUSE: Duration = Duration::from_millis(200);
/// A stream's life at most, whatever its token says.
const LONGEST: Duration = Duration::from_hours(24);

/// Whom a stream is for, and hence what is on it.
pub(crate) trait Audience: Send {
    /// What it is told about, each by its key.
    type Item: Message + PartialEq;
    /// What a part is sent as.
    type Update: Send;
    /// What it says meanwhile.
    type Report: Send;
    /// Its name in metrics.
    const NAME: &'static str;

    /// What it should hold; none is as good as nothing.
    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<Self::Item>>>;
    /// Makes the message of a part.
    fn update(&self, part: Part<Self::Item>) -> Self::Update;
    /// Takes its word, or ends the stream.
    fn heard(&mut self, report: Self::Report, desired: &Desired) -> Result<(), Status>;
}

/// Serves a stream until its end, and returns why it ended.
pub(crate) async fn run<A: Audience>(
    audience: &mut A,
    mut desired: watch::Receiver<Arc<Desired>>,
    reports: impl Stream<Item = Result<A::Report, Status>>,
    over: impl Future<Output = Status>,
    out: mpsc::Sender<A::Update>,
    metrics: &Metrics,
) -> Status {
    let (mut reports, mut over) = (pin!(reports), pin!(over));
    let _open = metrics.open(A::NAME);
    let mut sent = Sent::new(PART_BYTES);
    let mut waiting: VecDeque<Part<A::Item>> = VecDeque::new();
    let mut intake = Instant::now();
    desired.mark_changed();
    loop {
        tokio::select! {
            biased;
            status = &mut over => return status,
            () = out.closed() => return Status::cancelled("the client went away"),
            // Asks for the difference only when the one before is on its way: what happens meanwhile is one update.
            changed = desired.changed(), if waiting.is_empty() => {
                if changed.is_err() {
                    return Status::unavailable("the operator is going down");
                }
                let now = Arc::clone(&desired.borrow_and_update());
                let nothing = BTreeMap::new();
                waiting = sent.next(audience.desired(&now).unwrap_or(&nothing)).into();
            }
            Ok(room) = out.reserve(), if !waiting.is_empty() => {
                if let Some(part) = waiting.pop_front() {
                    metrics.sent(A::NAME, part.changed.len() + part.removed.len());
                    room.send(audience.update(part));
                }
            }
            report = async { sleep_until(intake).await; reports.next().await } => match report {
                Some(Ok(report)) => {
                    intake = Instant::now() + INTAKE_PAUSE;
                    let now = Arc::clone(&desired.borrow());
                    if let Err(status) = audience.heard(report, &now) {
                        return status;
                    }
                }
                Some(Err(status)) => return status,
                None => return Status::cancelled("the client went away"),
            },
        }
    }
}

/// Reasons to end a stream that the client has no part in.
pub(crate) struct Ends {
    pub(crate) expires: SystemTime,
    pub(crate) serving: watch::Receiver<bool>,
    pub(crate) stop: CancellationToken,
    pub(crate) superseded: CancellationToken,
    pub(crate) metrics: Metrics,
}

impl Ends {
    /// Waits for the first of them.
    pub(crate) async fn first(mut self) -> Status {
        let left = self.expires.duration_since(SystemTime::now()).unwrap_or_default().min(LONGEST);
        let (reason, status) = tokio::select! {
            () = sleep(left) => ("expired", Status::unauthenticated("the token has expired: come back with the new one")),
            () = self.superseded.cancelled() => ("superseded", Status::aborted("a newer stream of this host took over")),
            () = self.stop.cancelled() => ("stopped", Status::unavailable("the operator is going down")),
            _ = self.serving.wait_for(|serving| !serving) => ("leader", not_serving()),
        };
        self.metrics.ended(reason);
        status
    }
}

/// What a replica says that does not lead, or does not know yet what is desired.
pub(crate) fn not_serving() -> Status {
    Status::unavailable("this replica of the operator does not lead, or has not read the cluster yet: try again")
}
