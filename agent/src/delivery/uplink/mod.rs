//! The way to the aggregator: one stream at a time, everything unacknowledged sent again on the next.
//!
//! A stream is a pair of channels, whoever is at the other end: the aggregator in this process, or a bridge over gRPC
//! ([`remote`]). On each stream the agent says hello, waits for the welcome with the marks of its lanes, and then sends
//! batches as the lanes have them. A lane that the aggregator refuses is set aside, and tried again after a while and on
//! the next stream; the others go on. In between go the states of memory profiles, which are in no lane: what a stream
//! did not deliver is whole in the next.

mod remote;
#[cfg(test)]
mod tests;

use std::time::Duration;

use chainscope_proto::{
    VERSIONS,
    v1::{Hello, RecordReply, RecordRequest, Welcome, record_reply::Reply, record_request::Request},
};
pub use remote::Remote;
use tokio::sync::mpsc;

use crate::{
    clock::realtime_ns,
    delivery::lanes::{AckError, shared::SharedLanes},
    memory::Board,
};

/// How long an aggregator may take to say welcome: it may be opening a large database.
const WELCOME: Duration = Duration::from_secs(30);
/// Shortest and longest pause before another attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How long records may gather before they are sent: an aggregator syncs its disk once a batch.
const GATHER: Duration = Duration::from_millis(5);

/// How often a lane that the aggregator refuses is tried again.
const ASIDE: Duration = Duration::from_secs(30);

/// The channels of one stream.
#[derive(Debug)]
pub struct Uplink {
    /// To the aggregator: a hello, then batches.
    pub requests: mpsc::Sender<RecordRequest>,
    /// From it: a welcome, then acknowledgements.
    pub replies: mpsc::Receiver<RecordReply>,
}

/// Where streams come from.
pub enum Link {
    /// The aggregator of this process: one stream for the life of both.
    Channels(Uplink),
    /// An aggregator elsewhere.
    Remote(Remote),
    /// Called for each stream; none: there will be no more.
    Reopen(Box<dyn FnMut() -> Option<Uplink> + Send>),
}

impl From<Uplink> for Link {
    fn from(uplink: Uplink) -> Self {
        Self::Channels(uplink)
    }
}

impl From<Remote> for Link {
    fn from(remote: Remote) -> Self {
        Self::Remote(remote)
    }
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}")]
    Connect(String),
    #[error("the aggregator ended the stream")]
    Ended,
    #[error("the aggregator did not say welcome within {0:?}")]
    Silent(Duration),
    #[error("the aggregator speaks version {0} of the record path, this agent {least} to {greatest}", least = VERSIONS.0, greatest = VERSIONS.1)]
    Version(u32),
    #[error("the aggregator's first reply is no welcome")]
    NoWelcome,
    #[error(transparent)]
    Ack(#[from] AckError),
}

/// Sends what the lanes and the profiles have until they are closed and empty, or no more streams come.
pub(crate) async fn run(lanes: SharedLanes, board: Board, mut link: Link, agent: String) {
    let mut pause = PAUSES.0;
    loop {
        let mut is_last = false;
        let uplink = match &mut link {
            Link::Channels(_) => {
                is_last = true;
                let Link::Channels(uplink) = std::mem::replace(&mut link, Link::Reopen(Box::new(|| None))) else {
                    return;
                };
                Ok(uplink)
            }
            Link::Remote(remote) => remote.connect().await.map_err(StreamError::Connect),
            Link::Reopen(open) => match open() {
                Some(uplink) => Ok(uplink),
                None => return,
            },
        };
        let result = match uplink {
            Ok(uplink) => stream(&lanes, &board, uplink, &agent, &mut pause).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => return,
            Err(error) if is_last => {
                tracing::error!(%error, "no more records can be delivered");
                return;
            }
            Err(error) => {
                chainscope_hygiene::warn_limited!(%error, "the stream to the aggregator will be opened again")
            }
        }
        // Apart, so that many agents do not return all at once.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One stream, to its end. `Ok`: everything was delivered and nothing more will come.
async fn stream(
    lanes: &SharedLanes,
    board: &Board,
    uplink: Uplink,
    agent: &str,
    pause: &mut Duration,
) -> Result<(), StreamError> {
    let Uplink { requests, mut replies } = uplink;
    let asked = lanes.names();
    let hello = Hello {
        least_version: VERSIONS.0,
        greatest_version: VERSIONS.1,
        build: concat!("chainscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        agent: agent.to_owned(),
        epoch: lanes.epoch().0.to_vec(),
        realtime_ns: realtime_ns(),
        nodes: asked.clone(),
    };
    requests.send(request(Request::Hello(hello))).await.map_err(|_| StreamError::Ended)?;
    let welcome = tokio::time::timeout(WELCOME, replies.recv()).await.map_err(|_| StreamError::Silent(WELCOME))?;
    let welcome = welcomed(welcome)?;
    tracing::info!(
        build = %chainscope_hygiene::EscapedTruncated(&welcome.build),
        skew_ms = realtime_ns().saturating_sub(welcome.realtime_ns) / 1_000_000,
        "connected to the aggregator"
    );
    *pause = PAUSES.0;
    for node in lanes.welcome(&welcome.marks, &asked) {
        tracing::warn!(
            node,
            "the aggregator counts this lane otherwise: it lost its database, or this data folder is in use twice"
        );
    }
    board.begin_stream(welcome.memory);
    let mut next = lanes.next_batch();
    let mut state = board.next();
    // Whether a state goes before a batch: in turn, so that neither waits for the end of the other.
    let mut is_states_turn = false;
    let mut again = tokio::time::interval_at(tokio::time::Instant::now() + ASIDE, ASIDE);
    loop {
        let is_delivered = next.is_none() && state.is_none() && lanes.is_empty() && board.is_settled();
        if is_delivered && lanes.is_closing() && board.is_closed() {
            return Ok(());
        }
        tokio::select! {
            reply = replies.recv() => {
                match reply.ok_or(StreamError::Ended)?.reply {
                    Some(Reply::Ack(ack)) => lanes.acknowledge(&ack.node, ack.next_sequence)?,
                    Some(Reply::Refused(refused)) => {
                        if lanes.set_aside(&refused.node) {
                            let reason = chainscope_hygiene::EscapedTruncated(&refused.reason);
                            chainscope_hygiene::warn_limited!(
                                node = %chainscope_hygiene::EscapedTruncated(&refused.node),
                                %reason,
                                "the aggregator does not take the records of this node: they are kept"
                            );
                        }
                        if next.as_ref().is_some_and(|batch| batch.node == refused.node) {
                            next = lanes.next_batch();
                        }
                    }
                    Some(Reply::Memory(ack)) => {
                        board.acknowledge(&ack);
                        state = state.or_else(|| board.next());
                    }
                    // A newer aggregator may say other things too.
                    _ => {}
                }
            }
            _ = again.tick() => lanes.resume_aside(),
            permit = requests.reserve(), if next.is_some() || state.is_some() => {
                let permit = permit.map_err(|_| StreamError::Ended)?;
                is_states_turn = !is_states_turn;
                if let Some(message) = state.take_if(|_| is_states_turn || next.is_none()) {
                    permit.send(request(Request::Memory(message)));
                    state = board.next();
                } else if let Some(batch) = next.take() {
                    permit.send(request(Request::Batch(batch)));
                    next = lanes.next_batch();
                }
            }
            () = board.rung(), if state.is_none() => state = board.next(),
            () = lanes.rung(), if next.is_none() => {
                if !lanes.is_closing() {
                    tokio::time::sleep(GATHER).await;
                }
                next = lanes.next_batch();
            }
        }
    }
}

fn welcomed(reply: Option<RecordReply>) -> Result<Welcome, StreamError> {
    match reply.ok_or(StreamError::Ended)?.reply {
        Some(Reply::Welcome(welcome)) if (VERSIONS.0..=VERSIONS.1).contains(&welcome.version) => Ok(welcome),
        Some(Reply::Welcome(welcome)) => Err(StreamError::Version(welcome.version)),
        _ => Err(StreamError::NoWelcome),
    }
}

fn request(request: Request) -> RecordRequest {
    RecordRequest { request: Some(request) }
}
