//! One conversation with one agent.

use std::{future::pending, pin::pin, sync::Arc, time::Instant};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::{
    VERSIONS,
    v1::{
        Ack, Batch, Hello, LaneMark, MemoryAck, MemoryState, RecordReply, RecordRequest, Refused, Welcome,
        record_reply, record_request::Request,
    },
};
use futures::{FutureExt as _, Stream, StreamExt as _};
use prost::Message as _;
use tokio::{sync::mpsc, time::sleep_until};

use super::{
    SessionError, Shared,
    agents::Connected,
    trust::{Admission, Proof},
    writer::{Append, Outcome},
};
use crate::{clock::now_ns, memory::AgentSession, nodes::Unclear};

/// Batches of one session that may wait for their sync.
const IN_FLIGHT: usize = 32;

/// Bytes of a session epoch.
const EPOCH_BYTES: usize = 16;

/// Longest name of an agent, in bytes.
const LONGEST_AGENT: usize = 253;

type Replies = mpsc::Sender<Result<RecordReply, SessionError>>;

/// Runs a session to its end; an error is its last reply.
pub(super) async fn run<S: Stream<Item = RecordRequest>>(
    shared: &Shared,
    proof: Option<Proof>,
    requests: S,
    replies: &Replies,
) {
    shared.metrics.sessions.inc();
    if let Err(error) = talk(shared, proof, requests, replies).await {
        shared.metrics.session_errors.inc();
        // Whoever asked may be gone; then nobody is there to be told.
        let _ = replies.send(Err(error)).await;
    }
    shared.metrics.sessions.dec();
}

async fn talk<S: Stream<Item = RecordRequest>>(
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
        () = shared.stop.cancelled() => return Err(SessionError::Ending),
    };
    let hello = match first.map(|request| request.request) {
        None => return Ok(()),
        Some(Some(Request::Hello(hello))) => hello,
        Some(_) => return Err(SessionError::NoHello),
    };
    let mut lanes = Lanes::greet(shared, admission, hello, replies).await?;
    let mut has_expired = false;
    loop {
        tokio::select! {
            biased;
            Some(outcome) = lanes.outcomes.recv() => lanes.tell(outcome, replies).await?,
            () = shared.stop.cancelled() => break,
            () = expiry.as_mut() => {
                has_expired = true;
                break;
            }
            request = requests.next(), if lanes.in_flight < IN_FLIGHT => match request {
                Some(request) => lanes.take(shared, request, replies).await?,
                None => break,
            },
        }
    }
    // What was received before the end is still stored and acknowledged.
    loop {
        if !has_expired
            && lanes.in_flight < IN_FLIGHT
            && let Some(Some(request)) = requests.next().now_or_never()
        {
            lanes.take(shared, request, replies).await?;
        } else if lanes.in_flight > 0
            && let Some(outcome) = lanes.outcomes.recv().await
        {
            lanes.tell(outcome, replies).await?;
        } else {
            return if has_expired { Err(SessionError::TokenExpired) } else { Ok(()) };
        }
    }
}

/// Ends at that moment, if there is one.
async fn expires(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// The lanes of the session's agent.
struct Lanes {
    agent: Arc<str>,
    epoch: Arc<[u8]>,
    /// Batches given to the writer and not yet answered.
    in_flight: usize,
    results: mpsc::UnboundedSender<Outcome>,
    /// At most [`IN_FLIGHT`] at a time.
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    connected: Connected,
    /// What the agent tells of memory.
    round: Arc<AgentSession>,
    /// Which of them are taken; none: all.
    admission: Option<Admission>,
}

impl Lanes {
    /// Checks the hello and answers it.
    async fn greet(
        shared: &Shared,
        admission: Option<Admission>,
        hello: Hello,
        replies: &Replies,
    ) -> Result<Self, SessionError> {
        let received_ns = now_ns();
        check_hello(&hello)?;
        if let Some(admission) = &admission {
            admission.check_agent(&hello.agent)?;
        }
        let version = common_version(&hello, VERSIONS, &shared.build)?;
        let agent: Arc<str> = hello.agent.as_str().into();
        let epoch: Arc<[u8]> = hello.epoch.as_slice().into();
        // Before the marks are read everything that an earlier session of this agent left in the queue is written.
        let marks = shared.writer.marks(Arc::clone(&agent), Arc::clone(&epoch), hello.nodes.clone()).await?;
        let marks =
            hello.nodes.iter().zip(marks).map(|(node, next_sequence)| LaneMark { node: node.clone(), next_sequence });
        let connected = shared.agents.connect(&hello, version, received_ns);
        let round = Arc::new(shared.memory.begin(&agent));
        let welcome = Welcome {
            version,
            build: shared.build.clone(),
            realtime_ns: now_ns(),
            marks: marks.collect(),
            memory: true,
        };
        send(replies, record_reply::Reply::Welcome(welcome)).await?;
        let (results, outcomes) = mpsc::unbounded_channel();
        Ok(Self { agent, epoch, in_flight: 0, results, outcomes, connected, round, admission })
    }

    /// Hands a batch to the writer, as soon as there is room.
    async fn take(&mut self, shared: &Shared, request: RecordRequest, replies: &Replies) -> Result<(), SessionError> {
        let batch = match request.request {
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
        self.connected.count(batch.records.len(), bytes);
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1).min(shared.room_kib);
        let room = Arc::clone(&shared.room).acquire_many_owned(kib).await.map_err(|_| SessionError::Ending)?;
        shared.writer.append(Append {
            agent: Arc::clone(&self.agent),
            epoch: Arc::clone(&self.epoch),
            batch,
            bytes,
            result: self.results.clone(),
            _room: room,
        })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Merges a part of a state. No other request of this agent is looked at meanwhile.
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
        // A keyframe of a large process takes some ten milliseconds of a processor.
        let merged = tokio::task::spawn_blocking(move || round.merge(state)).await;
        match merged.map_err(|_| SessionError::Ending)? {
            Some(ack) => send(replies, record_reply::Reply::Memory(ack)).await,
            None => Ok(()),
        }
    }

    async fn tell(&mut self, outcome: Outcome, replies: &Replies) -> Result<(), SessionError> {
        let Outcome { node, batches, result } = outcome;
        self.in_flight = self.in_flight.saturating_sub(batches);
        let next_sequence = result?;
        self.connected.acknowledged(&node, next_sequence);
        send(replies, record_reply::Reply::Ack(Ack { node, next_sequence })).await
    }
}

async fn send(replies: &Replies, reply: record_reply::Reply) -> Result<(), SessionError> {
    replies.send(Ok(RecordReply { reply: Some(reply) })).await.map_err(|_| SessionError::Ending)
}

fn check_hello(hello: &Hello) -> Result<(), SessionError> {
    let bad = |field, why| Err(SessionError::BadHello { field, why });
    if hello.agent.is_empty() || hello.agent.len() > LONGEST_AGENT {
        return bad("agent", "it has 1 to 253 bytes");
    }
    if hello.agent.chars().any(char::is_control) {
        return bad("agent", "it has control characters");
    }
    if hello.epoch.len() != EPOCH_BYTES {
        return bad("epoch", "it has 16 bytes");
    }
    Ok(())
}

/// Makes sure that the node is known; or says why it cannot be. That is no reason to end the session: whoever may name a
/// node would hold up all others of its host.
pub(super) fn register(shared: &Shared, node: &str) -> Result<(), String> {
    let Err(unclear) = shared.nodes.register(node) else { return Ok(()) };
    let name = EscapedTruncated(node);
    let reason = match unclear {
        Unclear::Many(most) => {
            format!("node {name} would be one more than the {most} nodes that this aggregator takes")
        }
        Unclear::Bad(_, why) => format!("{name} cannot be the name of a node: {why}"),
        _ => format!("{name} cannot be the name of a node"),
    };
    warn_limited!(%reason, "records of a node are refused");
    Err(reason)
}

fn check_sequence(batch: &Batch) -> Result<(), SessionError> {
    match batch.first_sequence.checked_add(batch.records.len() as u64) {
        Some(_) => Ok(()),
        None => Err(SessionError::Overflow { node: batch.node.clone() }),
    }
}

/// The greatest version that both speak.
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
    use chainscope_proto::v1::Hello;

    use super::{SessionError, common_version};

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
    fn a_version_error_says_who_speaks_what() {
        let hello = Hello {
            least_version: 2,
            greatest_version: 3,
            build: "9.9\n".into(),
            agent: "host-7".into(),
            ..Hello::default()
        };
        let text = common_version(&hello, (1, 1), "0.1").unwrap_err().to_string();
        assert!(text.contains("agent host-7 (build 9.9\\u{a}) speaks 2 to 3"), "{text}");
        assert!(text.contains("this aggregator (build 0.1) 1 to 1"), "{text}");
        assert!(matches!(common_version(&hello, (1, 1), ""), Err(SessionError::NoCommonVersion { .. })));
    }
}
