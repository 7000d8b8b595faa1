//! Why a session with an agent ended.

use tonic::{Code, Status};

use chainscope_hygiene::EscapedTruncated;

/// Why a session with an agent ended. The text is meant for the agent's log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The first message was not a hello.
    #[error("a session begins with a hello")]
    NoHello,
    /// A hello came later than first.
    #[error("a session has one hello, this is a second")]
    SecondHello,
    /// A message was neither a hello, nor a batch, nor a state.
    #[error("a request is neither hello nor batch nor state: it is of a later version than the one agreed on")]
    UnknownRequest,
    /// The agent's name or epoch is unusable.
    #[error("the hello's {field} is unusable: {why}")]
    BadHello {
        /// Its field.
        field: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The hello's agent is not the host of the token.
    #[error(
        "the agent {} shows a token of host {}: it may speak for its own host only",
        EscapedTruncated(agent),
        EscapedTruncated(host)
    )]
    OtherHost {
        /// The agent's name.
        agent: String,
        /// The token's host.
        host: String,
    },
    /// The token that the session began with has ended.
    #[error("the token has expired: connect again with a newer one")]
    TokenExpired,
    /// There is no version that both speak.
    #[error(
        "no common version: agent {} (build {}) speaks {agent_least} to {agent_greatest}, this aggregator (build {build}) \
         {least} to {greatest}: bring the older one to within one version of the newer",
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
        /// The sequence that should have come next.
        expected: u64,
        /// The first sequence of the batch.
        found: u64,
    },
    /// Sequence numbers end.
    #[error("the batch of node {} goes beyond the last possible sequence", EscapedTruncated(node))]
    Overflow {
        /// The stream's node.
        node: String,
    },
    /// The store refused; trying again may help.
    #[error("not stored: {0}")]
    Store(String),
    /// The aggregator ends.
    #[error("the aggregator ends")]
    Ending,
}

impl From<SessionError> for Status {
    fn from(error: SessionError) -> Self {
        use SessionError as E;
        let code = match &error {
            E::NoHello | E::SecondHello | E::UnknownRequest | E::BadHello { .. } => Code::InvalidArgument,
            E::NoCommonVersion { .. } => Code::FailedPrecondition,
            E::OtherHost { .. } => Code::PermissionDenied,
            E::TokenExpired => Code::Unauthenticated,
            E::Hole { .. } | E::Overflow { .. } => Code::OutOfRange,
            E::Store(_) | E::Ending => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
