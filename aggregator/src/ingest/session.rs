//! One session with one agent.

use std::{future::pending, pin::pin, sync::Arc, time::Instant};

use chainscope_proto::{
    VERSIONS,
    v1::{
        Ack, Batch, Hello, HighWaterMark, MemoryAck, MemoryState, Record, RecordReply, RecordRequest, Refused, Welcome,
        record_reply, record_request::Request,
    },
};
use futures::{FutureExt as _, Stream, StreamExt as _};
use prost::Message as _;
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until},
};

use super::{
    Received, SessionError,
    admission::{Admission, register},
    agents::SessionGuard,
    shared::Shared,
    syncer::Outcome,
    trust::Proof,
    validate::Validator,
    writer::Append,
};
use crate::{clock::now_ns, memory::AgentSession};

/// Maximum batches of one session that wait for their sync.
const MAX_IN_FLIGHT: usize = 32;

/// Bytes of an epoch.
const EPOCH_BYTES: usize = 16;

/// Maximum bytes of the name of an agent.
const MAX_AGENT_BYTES: usize = 253;

/// Maximum bytes of the version of an agent.
const MAX_BUILD_BYTES: usize = 1024;

type Replies = mpsc::Sender<Result<RecordReply, SessionError>>;

/// Serves a session to its end. An error is its last reply.
pub(super) async fn run<S: Stream<Item = Received>>(
    shared: &Shared,
    proof: Option<Proof>,
    requests: S,
    replies: &Replies,
) {
    if let Err(error) = serve(shared, proof, requests, replies).await {
        shared.metrics.session_errors.inc();
        // Fails if the agent has closed the connection.
        let _ = replies.send(Err(error)).await;
    }
}

async fn serve<S: Stream<Item = Received>>(
    shared: &Shared,
    proof: Option<Proof>,
    requests: S,
    replies: &Replies,
) -> Result<(), SessionError> {
    let mut requests = pin!(requests);
    let admission = proof.map(Admission::new);
    let mut expiry = pin!(expires(admission.as_ref().map(Admission::until)));
    let first = tokio::select! {
        first = requests.next() => first,
        () = expiry.as_mut() => return Err(SessionError::TokenExpired),
        () = sleep(shared.hello_timeout) => return Err(SessionError::HelloTimeout(shared.hello_timeout)),
        () = shared.stop.cancelled() => return Err(SessionError::Stopping),
    };
    let hello = match first.transpose()?.map(|request| request.request) {
        None => return Ok(()),
        Some(Some(Request::Hello(hello))) => hello,
        Some(_) => return Err(SessionError::NoHello),
    };
    let mut session = Session::open(shared, admission, hello, replies).await?;
    let mut has_expired = false;
    loop {
        tokio::select! {
            biased;
            Some(outcome) = session.outcomes.recv() => session.acknowledge(outcome, replies).await?,
            () = shared.stop.cancelled() => break,
            () = expiry.as_mut() => {
                has_expired = true;
                break;
            }
            request = requests.next(), if session.in_flight < MAX_IN_FLIGHT => match request {
                Some(request) => session.receive(shared, request?, replies).await?,
                None => break,
            },
        }
    }
    // Requests that were received before the end are still stored and acknowledged.
    loop {
        if !has_expired
            && session.in_flight < MAX_IN_FLIGHT
            && let Some(Some(request)) = requests.next().now_or_never()
        {
            session.receive(shared, request?, replies).await?;
        } else if session.in_flight > 0
            && let Some(outcome) = session.outcomes.recv().await
        {
            session.acknowledge(outcome, replies).await?;
        } else {
            return if has_expired { Err(SessionError::TokenExpired) } else { Ok(()) };
        }
    }
}

/// Completes at the instant, if there is one.
async fn expires(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// An open session with one agent.
struct Session {
    agent: Arc<str>,
    epoch: Arc<[u8]>,
    /// Batches that the writer has not acknowledged.
    in_flight: usize,
    results: mpsc::UnboundedSender<Outcome>,
    /// At most [`MAX_IN_FLIGHT`] at a time.
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    guard: SessionGuard,
    /// Merges the states of memory.
    round: Arc<AgentSession>,
    /// Decides which streams are accepted; none: all.
    admission: Option<Admission>,
    validator: Validator,
}

impl Session {
    /// Checks the hello and sends the welcome.
    async fn open(
        shared: &Shared,
        admission: Option<Admission>,
        hello: Hello,
        replies: &Replies,
    ) -> Result<Self, SessionError> {
        let received_ns = now_ns();
        check_hello(&hello, shared.nodes.max())?;
        if let Some(admission) = &admission {
            admission.check_agent(&hello.agent)?;
        }
        let version = common_version(&hello, VERSIONS, &shared.build)?;
        let agent: Arc<str> = hello.agent.as_str().into();
        let epoch: Arc<[u8]> = hello.epoch.as_slice().into();
        // The marks include everything that an earlier session of this agent left in the queue.
        let marks = shared.writer.marks(Arc::clone(&agent), Arc::clone(&epoch), hello.nodes.clone()).await?;
        let marks = hello
            .nodes
            .iter()
            .zip(marks)
            .map(|(node, next_sequence)| HighWaterMark { node: node.clone(), next_sequence });
        let guard = shared.agents.connect(&hello, version, received_ns);
        let round = Arc::new(shared.memory.begin(&agent));
        let welcome = Welcome {
            version,
            build: shared.build.clone(),
            realtime_ns: now_ns(),
            high_water_marks: marks.collect(),
            memory: true,
        };
        send(replies, record_reply::Reply::Welcome(welcome)).await?;
        #[expect(clippy::disallowed_methods, reason = "one result per batch in flight, whose number is limited")]
        let (results, outcomes) = mpsc::unbounded_channel();
        Ok(Self {
            agent,
            epoch,
            in_flight: 0,
            results,
            outcomes,
            guard,
            round,
            admission,
            validator: Validator::default(),
        })
    }

    /// Handles a request. Waits while the queue of the writer is full.
    async fn receive(
        &mut self,
        shared: &Shared,
        request: RecordRequest,
        replies: &Replies,
    ) -> Result<(), SessionError> {
        let mut batch = match request.request {
            Some(Request::Batch(batch)) => batch,
            Some(Request::Memory(state)) => return self.merge(shared, state, replies).await,
            Some(Request::Hello(_)) => return Err(SessionError::SecondHello),
            None => return Err(SessionError::UnknownRequest),
        };
        let refused = match &mut self.admission {
            Some(admission) => admission.refuses(shared, &self.epoch, &batch).await?,
            None => register(shared, &batch.node).err(),
        };
        if let Some(reason) = refused {
            shared.metrics.refused_batches.inc();
            return send(replies, record_reply::Reply::Refused(Refused { node: batch.node, reason })).await;
        }
        check_sequence(&batch)?;
        let bytes = batch.encoded_len();
        self.validator.replace_invalid(&self.agent, &mut batch.records, &shared.metrics);
        self.guard.count(batch.records.len(), bytes);
        let kib =
            u32::try_from(memory(&batch, bytes) >> 10).unwrap_or(u32::MAX).saturating_add(1).min(shared.max_permits);
        let permit =
            Arc::clone(&shared.queue_permits).acquire_many_owned(kib).await.map_err(|_| SessionError::Stopping)?;
        shared.writer.append(Append {
            agent: Arc::clone(&self.agent),
            epoch: Arc::clone(&self.epoch),
            batch,
            bytes,
            result: self.results.clone(),
            _permit: permit,
        })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Merges a part of a state. The session handles no other request meanwhile.
    async fn merge(&mut self, shared: &Shared, state: MemoryState, replies: &Replies) -> Result<(), SessionError> {
        let refused = match &self.admission {
            Some(admission) => admission.refuses_state(shared, &state.node),
            None => register(shared, &state.node).err(),
        };
        if let Some(refused) = refused {
            shared.metrics.refused_batches.inc();
            let ack = MemoryAck { node: state.node, profile: state.profile, refused, ..MemoryAck::default() };
            return send(replies, record_reply::Reply::Memory(ack)).await;
        }
        shared.metrics.memory_states.inc();
        let round = Arc::clone(&self.round);
        // A keyframe of a large process takes tens of milliseconds of CPU time.
        let merged = tokio::task::spawn_blocking(move || round.merge(state)).await;
        match merged.map_err(|_| SessionError::Stopping)? {
            Some(ack) => send(replies, record_reply::Reply::Memory(ack)).await,
            None => Ok(()),
        }
    }

    /// Acknowledges batches.
    async fn acknowledge(&mut self, outcome: Outcome, replies: &Replies) -> Result<(), SessionError> {
        let Outcome { node, batches, result } = outcome;
        self.in_flight = self.in_flight.saturating_sub(batches);
        let next_sequence = result?;
        self.guard.acknowledged(&node);
        send(replies, record_reply::Reply::Ack(Ack { node, next_sequence })).await
    }
}

async fn send(replies: &Replies, reply: record_reply::Reply) -> Result<(), SessionError> {
    replies.send(Ok(RecordReply { reply: Some(reply) })).await.map_err(|_| SessionError::Stopping)
}

fn check_hello(hello: &Hello, max_nodes: usize) -> Result<(), SessionError> {
    let bad = |field, why| Err(SessionError::BadHello { field, why });
    if hello.agent.is_empty() || hello.agent.len() > MAX_AGENT_BYTES {
        return bad("agent", "it must have 1 to 253 bytes");
    }
    if hello.agent.chars().any(char::is_control) {
        return bad("agent", "it has control characters");
    }
    if hello.epoch.len() != EPOCH_BYTES {
        return bad("epoch", "it must have 16 bytes");
    }
    if hello.build.len() > MAX_BUILD_BYTES {
        return bad("build", "it must have at most 1024 bytes");
    }
    if hello.nodes.len() > max_nodes {
        return bad("nodes", "they are more than this aggregator accepts");
    }
    Ok(())
}

fn check_sequence(batch: &Batch) -> Result<(), SessionError> {
    match batch.first_sequence.checked_add(batch.records.len() as u64) {
        Some(_) => Ok(()),
        None => Err(SessionError::Overflow { node: batch.node.clone() }),
    }
}

/// Memory of a batch of this encoded length, about.
fn memory(batch: &Batch, encoded: usize) -> usize {
    encoded + batch.records.capacity() * size_of::<Record>()
}

/// The greatest version that both sides support.
fn common_version(hello: &Hello, (least, greatest): (u32, u32), build: &str) -> Result<u32, SessionError> {
    let common = greatest.min(hello.greatest_version);
    if common >= least.max(hello.least_version) {
        return Ok(common);
    }
    Err(SessionError::NoCommonVersion {
        agent: hello.agent.clone(),
        agent_build: hello.build.clone(),
        agent_least: hello.least_version,
        agent_greatest: hello.greatest_version,
        build: build.to_owned(),
        least,
        greatest,
    })
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{Batch, Hello, Record};
    use prost::Message as _;

    use super::{SessionError, common_version, memory};
    use crate::{ingest::codec::MAX_RECORDS, limits::Limits};

    #[test]
    fn small_records_take_their_memory_of_the_batches_that_wait_and_not_all_of_it() {
        let batch = Batch { records: vec![Record::default(); 1_000], ..Batch::default() };
        assert!(memory(&batch, batch.encoded_len()) > 1_000 * size_of::<Record>());
        // The largest batch of an agent.
        let largest = (1 << 20) + MAX_RECORDS * size_of::<Record>();
        assert!(largest < Limits::default().max_ingest_bytes, "{largest}");
    }

    fn agree(agent: (u32, u32), own: (u32, u32)) -> Option<u32> {
        let hello = Hello { least_version: agent.0, greatest_version: agent.1, ..Hello::default() };
        common_version(&hello, own, "b").ok()
    }

    #[test]
    fn the_greatest_common_version_is_used() {
        assert_eq!(agree((1, 1), (1, 1)), Some(1));
        assert_eq!(agree((1, 3), (2, 4)), Some(3));
        assert_eq!(agree((2, 4), (1, 3)), Some(3));
        assert_eq!(agree((1, 9), (2, 3)), Some(3));
        for (agent, own) in [((2, 3), (1, 1)), ((1, 1), (2, 3)), ((0, 0), (1, 1)), ((3, 1), (1, 3))] {
            assert_eq!(agree(agent, own), None, "{agent:?} and {own:?}");
        }
    }

    #[test]
    fn a_version_error_names_both_sides_and_their_versions() {
        let hello = Hello {
            least_version: 2,
            greatest_version: 3,
            build: "9.9\n".into(),
            agent: "host-7".into(),
            ..Hello::default()
        };
        let text = common_version(&hello, (1, 1), "0.1").unwrap_err().to_string();
        assert!(text.contains("agent host-7 (build 9.9\\u{a}) supports 2 to 3"), "{text}");
        assert!(text.contains("this aggregator (build 0.1) 1 to 1"), "{text}");
        assert!(matches!(common_version(&hello, (1, 1), ""), Err(SessionError::NoCommonVersion { .. })));
    }
}
