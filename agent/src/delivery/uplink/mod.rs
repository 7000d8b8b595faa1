//! The uplink: sends records and memory states to the aggregator, one session at a time.
//!
//! A session is a pair of channels; at its other end is the aggregator in this process, or a bridge to gRPC ([`remote`]).
//! In each session the agent sends a hello, waits for the welcome with the high-water marks of its streams, and then sends
//! batches. Unacknowledged records are sent again in the next session. A stream that the aggregator refuses is suspended,
//! and sent again after an interval and in the next session; the other streams continue. States of memory profiles are
//! sent between the batches. They are in no record stream: the next session begins with a keyframe.

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
    delivery::{RecordStreams, stream::AckError},
    memory::ProfileStore,
};

/// Maximum time until the aggregator sends its welcome: it may be opening a large database.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest and longest time before another session.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Time that records wait for more records to be sent with them: an aggregator syncs its disk once a batch.
const LINGER: Duration = Duration::from_millis(5);

/// Interval between attempts to send a stream that the aggregator refuses.
const RESUME_INTERVAL: Duration = Duration::from_secs(30);

/// The channels of one session.
#[derive(Debug)]
pub struct Uplink {
    /// To the aggregator: a hello, then batches.
    pub requests: mpsc::Sender<RecordRequest>,
    /// From it: a welcome, then acknowledgements.
    pub replies: mpsc::Receiver<RecordReply>,
}

/// Source of sessions.
pub enum Link {
    /// The aggregator of this process: one session for the life of both.
    Channels(Uplink),
    /// An aggregator in another process.
    Remote(Remote),
    /// Called for each session; none ends the uplink.
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

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("{0}")]
    Connect(String),
    #[error("the aggregator ended the session")]
    Ended,
    #[error("the aggregator did not send a welcome within {0:?}")]
    WelcomeTimeout(Duration),
    #[error("the aggregator speaks version {0} of the record path, this agent {least} to {greatest}", least = VERSIONS.0, greatest = VERSIONS.1)]
    Version(u32),
    #[error("the aggregator's first reply is not a welcome")]
    NoWelcome,
    #[error(transparent)]
    Ack(#[from] AckError),
}

/// Sends records and memory states until both are closed and delivered, or there are no more sessions.
pub(crate) async fn run(streams: RecordStreams, profiles: ProfileStore, mut link: Link, agent: String) {
    let mut backoff = BACKOFF.0;
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
            Link::Remote(remote) => remote.connect().await.map_err(SessionError::Connect),
            Link::Reopen(open) => match open() {
                Some(uplink) => Ok(uplink),
                None => return,
            },
        };
        let result = match uplink {
            Ok(uplink) => session(&streams, &profiles, uplink, &agent, &mut backoff).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => return,
            Err(error) if is_last => {
                tracing::error!(%error, "no more records can be delivered");
                return;
            }
            Err(error) => {
                chainscope_hygiene::warn_limited!(%error, "the session to the aggregator will be opened again")
            }
        }
        // Jitter: many agents must not reconnect at the same time.
        tokio::time::sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Runs one session. `Ok`: both sources are closed and everything is delivered.
async fn session(
    streams: &RecordStreams,
    profiles: &ProfileStore,
    uplink: Uplink,
    agent: &str,
    backoff: &mut Duration,
) -> Result<(), SessionError> {
    let Uplink { requests, mut replies } = uplink;
    let requested = streams.names();
    let hello = Hello {
        least_version: VERSIONS.0,
        greatest_version: VERSIONS.1,
        build: concat!("chainscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        agent: agent.to_owned(),
        epoch: streams.epoch().0.to_vec(),
        realtime_ns: realtime_ns(),
        nodes: requested.clone(),
    };
    requests.send(request(Request::Hello(hello))).await.map_err(|_| SessionError::Ended)?;
    let welcome = tokio::time::timeout(WELCOME_TIMEOUT, replies.recv())
        .await
        .map_err(|_| SessionError::WelcomeTimeout(WELCOME_TIMEOUT))?;
    let welcome = expect_welcome(welcome)?;
    tracing::info!(
        build = %chainscope_hygiene::EscapedTruncated(&welcome.build),
        skew_ms = realtime_ns().saturating_sub(welcome.realtime_ns) / 1_000_000,
        "connected to the aggregator"
    );
    *backoff = BACKOFF.0;
    for node in streams.begin_session(&welcome.high_water_marks, &requested) {
        tracing::warn!(
            node,
            "the high-water mark of this stream is unexpected: the aggregator lost its database, or a copy of this data folder is in use"
        );
    }
    profiles.begin_stream(welcome.memory);
    let mut next = streams.next_batch();
    let mut state = profiles.next();
    // States and batches are sent in turn.
    let mut is_states_turn = false;
    let mut resume = tokio::time::interval_at(tokio::time::Instant::now() + RESUME_INTERVAL, RESUME_INTERVAL);
    loop {
        let is_delivered = next.is_none() && state.is_none() && streams.is_empty() && profiles.is_settled();
        if is_delivered && streams.is_closing() && profiles.is_closed() {
            return Ok(());
        }
        tokio::select! {
            reply = replies.recv() => {
                match reply.ok_or(SessionError::Ended)?.reply {
                    Some(Reply::Ack(ack)) => streams.acknowledge(&ack.node, ack.next_sequence)?,
                    Some(Reply::Refused(refused)) => {
                        if streams.suspend(&refused.node) {
                            let reason = chainscope_hygiene::EscapedTruncated(&refused.reason);
                            chainscope_hygiene::warn_limited!(
                                node = %chainscope_hygiene::EscapedTruncated(&refused.node),
                                %reason,
                                "the aggregator does not take the records of this node: they are kept"
                            );
                        }
                        if next.as_ref().is_some_and(|batch| batch.node == refused.node) {
                            next = streams.next_batch();
                        }
                    }
                    Some(Reply::Memory(ack)) => {
                        profiles.acknowledge(&ack);
                        state = state.or_else(|| profiles.next());
                    }
                    // A newer aggregator may send other replies.
                    _ => {}
                }
            }
            _ = resume.tick() => streams.resume_suspended(),
            permit = requests.reserve(), if next.is_some() || state.is_some() => {
                let permit = permit.map_err(|_| SessionError::Ended)?;
                is_states_turn = !is_states_turn;
                if let Some(message) = state.take_if(|_| is_states_turn || next.is_none()) {
                    permit.send(request(Request::Memory(message)));
                    state = profiles.next();
                } else if let Some(batch) = next.take() {
                    permit.send(request(Request::Batch(batch)));
                    next = streams.next_batch();
                }
            }
            () = profiles.changed(), if state.is_none() => state = profiles.next(),
            () = streams.wait_sendable(), if next.is_none() => {
                if !streams.is_closing() {
                    tokio::time::sleep(LINGER).await;
                }
                next = streams.next_batch();
            }
        }
    }
}

fn expect_welcome(reply: Option<RecordReply>) -> Result<Welcome, SessionError> {
    match reply.ok_or(SessionError::Ended)?.reply {
        Some(Reply::Welcome(welcome)) if (VERSIONS.0..=VERSIONS.1).contains(&welcome.version) => Ok(welcome),
        Some(Reply::Welcome(welcome)) => Err(SessionError::Version(welcome.version)),
        _ => Err(SessionError::NoWelcome),
    }
}

fn request(request: Request) -> RecordRequest {
    RecordRequest { request: Some(request) }
}
