//! Taking records from agents.
//!
//! ```text
//! agent ══ hello, batches ══▶ session ─┐                       ┌─▶ store.append … append, then one sync
//! agent ══ hello, batches ══▶ session ─┼─▶ bounded queue ─▶ writer
//!       ◀═ welcome, acks ════          ┘                       └─▶ an ack a lane, and the rows become visible
//! ```
//!
//! [`session`] is one conversation; the gRPC service and the in-process channel pair both run it. One writer thread
//! appends everything that waits, syncs once, and then acknowledges: the more agents send, the more share a sync.
//! An agent forgets only what was acknowledged, so whatever a cut or a kill leaves in between is sent again and
//! recognised by its sequence.
//!
//! State comes on the same stream and goes another way: it is merged in memory ([`crate::memory`]) and acknowledged at
//! once, because the agent can tell it anew.

mod agents;
mod error;
pub(crate) mod grpc;
mod session;
mod trust;
mod writer;

use std::{sync::Arc, time::Duration};

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

pub(crate) use self::{
    agents::{AgentInfo, Agents},
    trust::Proof,
    writer::Writer,
};
pub use self::{error::SessionError, trust::IngestTrust};
use crate::{Error, catalog::Catalog, config::Limits, memory::Memory, metrics::IngestMetrics, nodes::Nodes};

/// Largest message that an agent may send: batches are of at most 1 MiB, unless a single record is larger.
pub const MAX_MESSAGE_BYTES: usize = (8 << 20) + (64 << 10);

/// Messages that an in-process agent may have on the way.
const CHANNEL: usize = 16;

/// Time that sessions have to end once they should.
const FAREWELL: Duration = Duration::from_secs(10);

/// What all sessions share. Cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) build: String,
    pub(crate) nodes: Arc<Nodes>,
    /// Which nodes have pods on which hosts, if an operator says so.
    pub(crate) catalog: Option<Arc<Catalog>>,
    pub(crate) writer: Writer,
    /// Where states of memory go.
    pub(crate) memory: Arc<Memory>,
    pub(crate) agents: Agents,
    pub(crate) metrics: Arc<IngestMetrics>,
    /// A permit is a KiB of batches that wait for the writer.
    pub(crate) room: Arc<Semaphore>,
    pub(crate) room_kib: u32,
    pub(crate) stop: CancellationToken,
    pub(crate) sessions: TaskTracker,
    /// Agents of this process connect from threads of their own.
    runtime: Handle,
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
        let room_kib = u32::try_from(limits.max_ingest_bytes >> 10).unwrap_or(u32::MAX).max(1);
        let writer = Writer::start(store.clone(), Arc::clone(&nodes), Arc::clone(&metrics))?;
        Ok(Self {
            shared: Arc::new(Shared {
                build: build.to_owned(),
                nodes,
                catalog,
                writer,
                memory,
                agents: Agents::default(),
                metrics,
                room: Arc::new(Semaphore::new(room_kib as usize)),
                room_kib,
                stop: CancellationToken::new(),
                sessions: TaskTracker::new(),
                runtime: Handle::current(),
            }),
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A session with an agent of this process: where its requests go in, and where the replies come out. The replies
    /// end when the session does; why it ended early is in the log.
    pub fn connect(&self) -> (mpsc::Sender<RecordRequest>, mpsc::Receiver<RecordReply>) {
        let (requests, incoming) = mpsc::channel(CHANNEL);
        let (outgoing, replies) = mpsc::channel(CHANNEL);
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

    /// Ends all sessions after what they have already received, and the writer after what it was given.
    pub(crate) async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.sessions.close();
        if timeout(FAREWELL, self.shared.sessions.wait()).await.is_err() {
            warn_limited!("an agent does not take its acknowledgements: it is left alone");
        }
        self.shared.writer.stop().await;
    }
}

/// [`session`] with an agent that proved who it is; without a proof everything is taken.
pub(crate) fn session_of<S>(
    ingest: &Ingest,
    proof: Option<Proof>,
    requests: S,
) -> impl Stream<Item = Result<RecordReply, SessionError>> + Send + use<S>
where
    S: Stream<Item = RecordRequest> + Send + 'static,
{
    let (replies, stream) = mpsc::channel(CHANNEL);
    let shared = Arc::clone(&ingest.shared);
    let talk = async move {
        let closed = replies.clone();
        tokio::select! {
            () = session::run(&shared, proof, requests, &replies) => {}
            () = closed.closed() => {}
        }
    };
    ingest.shared.sessions.spawn_on(talk, &ingest.shared.runtime);
    ReceiverStream::new(stream)
}

/// One conversation with an agent: a hello is answered by a welcome that says where its lanes stand; each batch, once it
/// is durable, by an acknowledgement (one for several, if they came fast). An error ends the stream.
///
/// May be called from any thread. The session ends when `requests` does (after the last acknowledgement), when
/// the returned stream is dropped, or when the aggregator ends.
pub fn session<S>(ingest: &Ingest, requests: S) -> impl Stream<Item = Result<RecordReply, SessionError>> + Send + use<S>
where
    S: Stream<Item = RecordRequest> + Send + 'static,
{
    session_of(ingest, None, requests)
}
