//! Ingest: receives records and states from agents.
//!
//! ```text
//! agent ══ hello, batches ══▶ session ─┐
//! agent ══ hello, batches ══▶ session ─┼─▶ bounded queue ─▶ writer: append … append, write ─▶ syncer: one sync, then one
//!       ◀═ welcome, acks ════          ┘                                                      ack a stream
//! ```
//!
//! [`session`] serves one connection of an agent, over gRPC or over a pair of channels in one process. The writer thread
//! appends all waiting batches and writes them at once. A second thread syncs what is written, which makes its rows visible,
//! and acknowledges it, while the writer appends the next batches: more load means more batches for each sync. An agent keeps
//! its records until they are acknowledged. After a cut or a kill it sends them again, and the store recognises them by their
//! sequence.
//!
//! States are received in the same session: they are merged in memory ([`crate::memory`]) and acknowledged at once, because
//! an agent can always send a state again.

mod admission;
mod agents;
mod codec;
mod connections;
mod disk_full;
mod elements;
mod error;
pub(crate) mod grpc;
mod health;
mod hosts;
mod session;
mod shared;
mod syncer;
mod trust;
mod validate;
mod writer;

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::{RecordReply, RecordRequest};
use chainscope_store::Store;
use futures::Stream;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::agents::AgentInfo;
use self::{
    agents::Agents,
    hosts::{HostSession, HostSessions},
    shared::Shared,
    trust::Proof,
    writer::Writer,
};
pub use self::{error::SessionError, trust::IngestTrust};
use crate::{Error, catalog::Catalog, limits::Limits, memory::Memory, metrics::IngestMetrics, nodes::Nodes};

/// Maximum encoded bytes of a message of an agent. Batches are of at most 1 MiB, unless a single record is larger.
pub const MAX_MESSAGE_BYTES: usize = (8 << 20) + (64 << 10);

/// A request of an agent, or why it cannot be taken.
type Received = Result<RecordRequest, SessionError>;

/// Capacity of the channels of a session, in messages.
const CHANNEL_CAPACITY: usize = 16;

/// Maximum time until all sessions have ended at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// The ingest of one aggregator. Cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    shared: Arc<Shared>,
}

impl Ingest {
    pub(crate) fn start(
        store: &Store,
        nodes: Arc<Nodes>,
        catalog: Option<Arc<Catalog>>,
        memory: Arc<Memory>,
        metrics: Arc<IngestMetrics>,
        build: &str,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let max_permits = u32::try_from(limits.max_ingest_bytes >> 10).unwrap_or(u32::MAX).max(1);
        let writer = Writer::start(store.clone(), Arc::clone(&nodes), Arc::clone(&metrics))?;
        Ok(Self {
            shared: Arc::new(Shared {
                build: build.to_owned(),
                nodes,
                catalog,
                writer,
                memory,
                agents: Agents::default(),
                hosts: HostSessions::default(),
                metrics,
                queue_permits: Arc::new(Semaphore::new(max_permits as usize)),
                max_permits,
                hello_timeout: limits.client_timeout,
                stop: CancellationToken::new(),
                sessions: TaskTracker::new(),
                runtime: Handle::current(),
            }),
        })
    }

    /// Why records cannot be stored; none if they can.
    pub(crate) fn write_error(&self) -> Option<String> {
        self.shared.writer.health().error()
    }

    /// Completes with the reason once records cannot be stored until the database is opened again.
    pub(crate) async fn failed(&self) -> String {
        self.shared.writer.health().failed().await
    }

    /// The agents that have connected since the start, by name.
    pub(crate) fn agents(&self) -> BTreeMap<String, AgentInfo> {
        self.shared.agents.all()
    }

    /// Opens a session for an agent in this process. Returns the channels of its requests and replies. The replies end
    /// with the session; an error is logged.
    pub fn connect(&self) -> (mpsc::Sender<RecordRequest>, mpsc::Receiver<RecordReply>) {
        let (requests, incoming) = mpsc::channel(CHANNEL_CAPACITY);
        let (outgoing, replies) = mpsc::channel(CHANNEL_CAPACITY);
        let mut session = Box::pin(session(self, ReceiverStream::new(incoming)));
        let relay = async move {
            while let Some(reply) = session.next().await {
                match reply {
                    Ok(reply) => {
                        if outgoing.send(reply).await.is_err() {
                            break;
                        }
                    }
                    Err(error) => warn_limited!(%error, "the session of the agent in this process ended"),
                }
            }
        };
        self.shared.sessions.spawn_on(relay, &self.shared.runtime);
        (requests, replies)
    }

    /// Ends all sessions after the requests that they have received, and then the writer.
    pub(crate) async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.sessions.close();
        if timeout(SHUTDOWN_GRACE, self.shared.sessions.wait()).await.is_err() {
            warn_limited!("the session of an agent that does not read its acknowledgements is abandoned");
        }
        self.shared.writer.stop().await;
    }
}

/// [`session`] with an authenticated agent; without a proof records of all nodes are accepted.
fn session_of<S>(
    ingest: &Ingest,
    proof: Option<Proof>,
    requests: S,
) -> impl Stream<Item = Result<RecordReply, SessionError>> + Send + use<S>
where
    S: Stream<Item = Received> + Send + 'static,
{
    let (replies, stream) = mpsc::channel(CHANNEL_CAPACITY);
    let shared = Arc::clone(&ingest.shared);
    let slot = proof.as_ref().map(|proof| shared.hosts.begin(&proof.host));
    let serve = async move {
        let closed = replies.clone();
        shared.metrics.sessions.inc();
        tokio::select! {
            () = session::run(&shared, proof, requests, &replies) => {}
            () = closed.closed() => {}
            () = replaced(slot.as_ref()) => {
                shared.metrics.session_errors.inc();
                // Fails if the agent does not read: its replies end all the same.
                let _ = closed.try_send(Err(SessionError::Replaced { max: hosts::MAX_SESSIONS }));
            }
        }
        shared.metrics.sessions.dec();
    };
    ingest.shared.sessions.spawn_on(serve, &ingest.shared.runtime);
    ReceiverStream::new(stream)
}

/// Completes when a newer session of the host takes the place of this one.
async fn replaced(session: Option<&HostSession>) {
    match session {
        Some(session) => session.replaced().await,
        None => pending().await,
    }
}

/// Serves one session with an agent. The hello is answered by a welcome with the high-water marks of the agent's streams;
/// each batch, once it is durable, by an acknowledgement. One acknowledgement may answer several batches. An error is the
/// last item.
///
/// May be called from any thread. The session ends after the last acknowledgement once `requests` has ended, when the
/// returned stream is dropped, or when the aggregator stops.
pub fn session<S>(ingest: &Ingest, requests: S) -> impl Stream<Item = Result<RecordReply, SessionError>> + Send + use<S>
where
    S: Stream<Item = RecordRequest> + Send + 'static,
{
    session_of(ingest, None, requests.map(Ok))
}
