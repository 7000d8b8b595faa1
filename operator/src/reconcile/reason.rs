//! Reasons, statuses and messages of conditions.

/// Maximum length of a text that an agent reported, in characters.
const MAX_TEXT_CHARS: usize = 512;

/// Reasons of conditions and Events, by descending precedence: of several that apply, `Ready` reports the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// This version of the operator cannot parse the specification.
    SpecInvalid,
    /// A pattern of `logs.redact` is not a valid regular expression.
    LogPatternInvalid,
    /// A tracepoint, filter, size, contract or function of a `NodeTrace` is not valid.
    TracepointsInvalid,
    /// No pod matches the selector.
    NoPodsSelected,
    /// The pod has no container of the configured name.
    ContainerNotFound,
    /// The pod is not scheduled.
    PodUnscheduled,
    /// No agent has connected from the pod's host.
    AgentMissing,
    /// The agent of the pod's host connected before, but its last report is too old.
    AgentUnreachable,
    /// The agent runs, but its host does not support recording.
    HostCannotRecord,
    /// The agent has not reported on the pod.
    WaitingForAgent,
    /// The pod has no port of the configured name.
    PortNotFound,
    /// The operator is not configured to read Secrets of this namespace.
    SecretNamespaceNotAllowed,
    /// The Secret does not exist.
    SecretNotFound,
    /// The Secret does not have the configured key.
    SecretKeyNotFound,
    /// The API server denies the operator access to the Secret.
    SecretNotReadable,
    /// The Secret has not been read yet.
    SecretPending,
    /// The content of the Secret is not a valid identity.
    IdentityInvalid,
    /// The container is not running.
    WaitingForContainer,
    /// The node's process exits and restarts repeatedly.
    RestartLoop,
    /// The container is running, but no process of the configured name has been observed in it.
    ProcessNotFound,
    /// The node's process exited.
    ProcessExited,
    /// The process is running, but cannot be recorded.
    CannotRecord,
    /// The executable has not all of the tracepoints, or the agent cannot attach to them.
    TracepointsNotAttached,
    /// The executable has not all of the functions, or the agent cannot time them.
    FunctionsNotTimed,
    /// The agent found no usable identity file.
    IdentityNotRead,
    /// The agent does not use the current identity of the Secret yet.
    IdentityPending,
    /// An older resource of the same kind owns the pod, or a `TezosNode` observes another program of it.
    PodConflict,
    /// The specification disables network recording.
    NetworkDisabled,
    /// The observed state matches the specification.
    Available,
}

impl Reason {
    /// The `reason` field of a condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpecInvalid => "SpecInvalid",
            Self::LogPatternInvalid => "LogPatternInvalid",
            Self::TracepointsInvalid => "TracepointsInvalid",
            Self::NoPodsSelected => "NoPodsSelected",
            Self::ContainerNotFound => "ContainerNotFound",
            Self::PodUnscheduled => "PodUnscheduled",
            Self::AgentMissing => "AgentMissing",
            Self::AgentUnreachable => "AgentUnreachable",
            Self::HostCannotRecord => "HostCannotRecord",
            Self::WaitingForAgent => "WaitingForAgent",
            Self::PortNotFound => "PortNotFound",
            Self::SecretNamespaceNotAllowed => "SecretNamespaceNotAllowed",
            Self::SecretNotFound => "SecretNotFound",
            Self::SecretKeyNotFound => "SecretKeyNotFound",
            Self::SecretNotReadable => "SecretNotReadable",
            Self::SecretPending => "SecretPending",
            Self::IdentityInvalid => "IdentityInvalid",
            Self::WaitingForContainer => "WaitingForContainer",
            Self::RestartLoop => "RestartLoop",
            Self::ProcessNotFound => "ProcessNotFound",
            Self::ProcessExited => "ProcessExited",
            Self::CannotRecord => "CannotRecord",
            Self::TracepointsNotAttached => "TracepointsNotAttached",
            Self::FunctionsNotTimed => "FunctionsNotTimed",
            Self::IdentityNotRead => "IdentityNotRead",
            Self::IdentityPending => "IdentityPending",
            Self::PodConflict => "PodConflict",
            Self::NetworkDisabled => "NetworkDisabled",
            Self::Available => "Available",
        }
    }
}

/// The `status` field of a condition, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConditionStatus {
    False,
    Unknown,
    True,
}

impl ConditionStatus {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::False => "False",
            Self::Unknown => "Unknown",
            Self::True => "True",
        }
    }
}

/// The status of a condition with its reason; its type is given by context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) status: ConditionStatus,
    pub(super) reason: Reason,
    /// Human-readable, without counts and times: every changed message is a write to the API server.
    pub(super) message: String,
}

impl Condition {
    pub(super) fn new(status: ConditionStatus, reason: Reason, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    pub(super) fn available() -> Self {
        Self::new(ConditionStatus::True, Reason::Available, "")
    }
}

/// Text of an agent: limits its length and removes characters that are not printable.
pub(super) fn sanitize(text: &str) -> String {
    text.chars().filter(|&character| chainscope_hygiene::is_printable(character)).take(MAX_TEXT_CHARS).collect()
}
