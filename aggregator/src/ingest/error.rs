//! Errors that end a session with an agent.

use std::time::Duration;

use tonic::{Code, Status};

use chainscope_hygiene::EscapedTruncated;

/// Why a session with an agent ended. The agent logs the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The first message was not a hello.
    #[error("the first request of a session must be a hello")]
    NoHello,
    /// No hello came in time.
    #[error("no hello came within {0:?}")]
    HelloTimeout(Duration),
    /// A hello came later than first.
    #[error("a session has only one hello")]
    SecondHello,
    /// A message was neither a hello, nor a batch, nor a state.
    #[error("the request is neither hello nor batch nor state: it needs a later version than the negotiated one")]
    UnknownRequest,
    /// The agent's name or epoch is invalid.
    #[error("invalid {field} in the hello: {why}")]
    BadHello {
        /// Field of the hello.
        field: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The hello's agent is not the host of the token.
    #[error(
        "the agent {} has a token of host {}: an agent may only deliver records of its own host",
        EscapedTruncated(agent),
        EscapedTruncated(host)
    )]
    OtherHost {
        /// The agent's name.
        agent: String,
        /// The token's host.
        host: String,
    },
    /// The token of the session has expired.
    #[error("the token has expired: connect again with a newer one")]
    TokenExpired,
    /// There is no version that both sides support.
    #[error(
        "no common version: agent {} (build {}) supports {agent_least} to {agent_greatest}, this aggregator (build {build}) \
         {least} to {greatest}: upgrade the older one",
        EscapedTruncated(agent),
        EscapedTruncated(agent_build)
    )]
    NoCommonVersion {
        /// The agent's name.
        agent: String,
        /// The agent's build.
        agent_build: String,
        /// Least version of the agent.
        agent_least: u32,
        /// Greatest version of the agent.
        agent_greatest: u32,
        /// This aggregator's build.
        build: String,
        /// Least version of this aggregator.
        least: u32,
        /// Greatest version of this aggregator.
        greatest: u32,
    },
    /// Records of a stream are missing.
    #[error(
        "a hole in the stream of node {}: sequence {expected} should come next, the batch begins with {found}",
        EscapedTruncated(node)
    )]
    Hole {
        /// The stream's node.
        node: String,
        /// The next sequence of the stream.
        expected: u64,
        /// The first sequence of the batch.
        found: u64,
    },
    /// A request has too many small elements: they would take much more memory than on the wire.
    #[error("a request has more than {max} {of}, which no agent sends")]
    TooMany {
        /// What there is too much of.
        of: &'static str,
        /// The maximum.
        max: usize,
    },
    /// Newer sessions of the same host take the place of this one.
    #[error("the host has {max} newer sessions: this one ends")]
    Replaced {
        /// The maximum number of sessions of a host.
        max: usize,
    },
    /// The sequence overflows.
    #[error("the sequence of the batch of node {} overflows", EscapedTruncated(node))]
    Overflow {
        /// The stream's node.
        node: String,
    },
    /// The store returned an error. Another attempt may succeed.
    #[error("not stored: {0}")]
    Store(String),
    /// The aggregator is stopping.
    #[error("the aggregator is stopping")]
    Stopping,
}

impl From<SessionError> for Status {
    fn from(error: SessionError) -> Self {
        use SessionError as E;
        let code = match &error {
            E::NoHello | E::SecondHello | E::UnknownRequest | E::BadHello { .. } => Code::InvalidArgument,
            E::NoCommonVersion { .. } => Code::FailedPrecondition,
            E::OtherHost { .. } => Code::PermissionDenied,
            E::HelloTimeout(_) => Code::DeadlineExceeded,
            E::TokenExpired => Code::Unauthenticated,
            E::Hole { .. } | E::Overflow { .. } => Code::OutOfRange,
            E::TooMany { .. } | E::Replaced { .. } => Code::ResourceExhausted,
            E::Store(_) | E::Stopping => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
